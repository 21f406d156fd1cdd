//go:build microvm

package msb_test

import (
	"path/filepath"
	"testing"

	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
)

// TestMicroVM runs the real msb and boots real microVMs. It is built with the tag microvm and runs in a lab; scripts/test does so.
func TestMicroVM(t *testing.T) {
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "microsandbox", msb.PinnedRelease().Version, "bin", "msb")
	msbtest.Run(t, func(t *testing.T) *msb.Client { return msbtest.NewClient(t, path) })
}
