package cases_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/report"
)

// apart runs the calling test again in a network namespace of its own, and tells whether this is
// it.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv("PARITY_TEST_APART") != "" {
		return true
	}
	child := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(), "PARITY_TEST_APART=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// The lab is measured by a create of MicroSandbox's alone, without the load of its image, and
// nothing of it is left, whatever came of it.
func TestTheLabIsMeasuredByABareCreateAndNothingIsLeft(t *testing.T) {
	if !apart(t) {
		return
	}
	for _, test := range []struct{ create, want string }{{"sleep 0.2", ""}, {"echo no KVM >&2; exit 1", "no KVM"}} {
		dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
		program := filepath.Join(t.TempDir(), "msb")
		script := fmt.Sprintf("#!/bin/sh\necho $1 >>%s\ncase $1 in create) %s;; esac\n", log, test.create)
		if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		env := cases.Env{RunID: "run", Scratch: dir, Emit: func(report.Event) {}, Tools: cases.Tools{MSB: program}}
		took, err := cases.MeasureLab(t.Context(), env)
		if test.want == "" && (err != nil || took < 200*time.Millisecond) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %s, %v", test.create, took, err)
		}
		if asked, _ := os.ReadFile(log); string(asked) != "load\ncreate\nremove\n" {
			t.Errorf("%s: msb was asked for %q", test.create, asked)
		}
		left, _ := os.ReadDir(dir)
		links, err := net.Interfaces()
		if err != nil || len(left) > 0 || len(links) > 1 { // lo stays
			t.Errorf("%s: left %v and %v, %v", test.create, left, links, err)
		}
	}
}
