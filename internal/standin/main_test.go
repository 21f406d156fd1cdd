package standin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/standin"
)

// The tests run in a native lab, and the test program is the stand-in when it is called by its name.
func TestMain(m *testing.M) {
	lab.Reexec()
	if standin.Called(os.Args[0]) {
		os.Exit(standin.Main(os.Args[1:]))
	}
	labtest.Main(m)
}

// program gives the path of the stand-in, as an msb that has the fault.
func program(t *testing.T, f fault.Fault) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	link, msb := filepath.Join(dir, standin.Program), filepath.Join(dir, "msb")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	// Under the race detector each of the many processes would sleep for a second before it ends.
	script := fmt.Sprintf("#!/bin/sh\nGORACE=atexit_sleep_ms=0 %s=%s exec %s \"$@\"\n", fault.Env, f, shellescape.Quote(link))
	if err := os.WriteFile(msb, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return msb
}
