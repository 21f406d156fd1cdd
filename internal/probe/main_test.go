package probe_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"dagger/parity/internal/proc"
)

// program is the static program, built once for all tests as it is built for guests.
var program string

// TestMain runs the tests in network and mount namespaces of their own: it leaves the machine's and starts itself again there, with
// the same process id.
func TestMain(m *testing.M) {
	if os.Getenv("PARITY_TEST_NAMESPACE") == "" {
		runtime.LockOSThread()
		err := syscall.Unshare(syscall.CLONE_NEWNET | syscall.CLONE_NEWNS)
		if err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), "PARITY_TEST_NAMESPACE=1"))
		}
		fmt.Fprintln(os.Stderr, "these tests need root, for namespaces of their own:", err)
		os.Exit(1)
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return 0, fmt.Errorf("make the mounts private: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "parity-probe-test")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "parity-probe")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	_, err = proc.Run(ctx, proc.Cmd{
		Argv: []string{"go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v1.2.3", "-o", program, "dagger/parity/cmd/parity-probe"},
		Env:  append(os.Environ(), "CGO_ENABLED=0"),
	})
	if err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// run runs the program and gives what it left; a code other than the wanted one ends the test.
func run(t *testing.T, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	return runEnv(t, nil, wantCode, args...)
}

func runEnv(t *testing.T, env []string, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	result, err := proc.Run(t.Context(), proc.Cmd{Argv: append([]string{program}, args...), Env: env})
	if result.ExitCode != wantCode {
		t.Fatalf("%s: expected exit code %d, got %d: %v", strings.Join(args, " "), wantCode, result.ExitCode, err)
	}
	return string(result.Stdout), string(result.Stderr)
}
