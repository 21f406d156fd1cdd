package standin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/standin"
)

// The tests run in a native lab. The stand-in is the one in parity.
func TestMain(m *testing.M) {
	labtest.Main(m, "dagger/parity/cmd/parity", "dagger/parity/cmd/parity-probe")
}

// program gives the path of the stand-in, as an msb that has the fault.
func program(t *testing.T, f fault.Fault) string {
	t.Helper()
	dir := t.TempDir()
	link, msb := filepath.Join(dir, standin.Program), filepath.Join(dir, "msb")
	if err := os.Symlink(filepath.Join(labtest.Programs(), "parity"), link); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n%s=%s exec %s \"$@\"\n", fault.Env, f, shellescape.Quote(link))
	if err := os.WriteFile(msb, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return msb
}
