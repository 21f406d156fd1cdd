//go:build microvm

package conformance_test

import (
	"os"
	"testing"
	"time"

	"dagger/parity/internal/conformance"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
)

// TestMicroVM holds the reference runtime to everything over the real msb, with real microVMs. It is built with the tag microvm and runs
// in a lab; scripts/test does so.
func TestMicroVM(t *testing.T) {
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parityRuntime(t, self, msbtest.NewClient(t, msb.PinnedRelease().Path(cache)), conformance.Options{Answer: time.Minute})
}
