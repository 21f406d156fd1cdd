package runtimeserver_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/runtimefake"
	pb "dagger/parity/internal/runtimeproto"
)

func TestMain(m *testing.M) {
	if runtimefake.Called() {
		os.Exit(runtimefake.Main())
	}
	os.Exit(m.Run())
}

func environ(t *testing.T) []string {
	return append(os.Environ(), runtimefake.EnvState+"="+t.TempDir(), "GORACE=atexit_sleep_ms=0")
}

func self(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

func TestByHandItSaysWhatItIsForAndEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self(t), "serve")
	cmd.Env = environ(t)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || out.Len() > 0 || !strings.Contains(errs.String(), "a workspace CLI starts this program") {
		t.Errorf("got %v, %q, %q", err, out.String(), errs.String())
	}
}

// The host here is a shell, which takes no care of what it leaves behind.
func TestItEndsWithItsHost(t *testing.T) {
	h := pb.Handshake()
	cmd := exec.Command("sh", "-c", `"$0" serve & echo $!; wait`, self(t))
	cmd.Env = append(environ(t), h.MagicCookieKey+"="+h.MagicCookieValue, "PLUGIN_PROTOCOL_VERSIONS=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var pid int
	for pid == 0 || !strings.HasPrefix(lines.Text(), "1|1|unix|") {
		if !lines.Scan() {
			t.Fatalf("no handshake: %v", lines.Err())
		}
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			pid = n
		}
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the runtime does not run: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, out) // it ends once the runtime, which holds the other end, has ended
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		_ = syscall.Kill(pid, syscall.SIGKILL)
		t.Errorf("the runtime, process %d, outlived its host", pid)
	}
	_ = cmd.Wait()
}
