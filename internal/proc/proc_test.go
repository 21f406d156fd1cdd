package proc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/proc"
)

func sh(script string) proc.Cmd { return proc.Cmd{Argv: []string{"/bin/sh", "-c", script}} }

func TestExitCodesAndOutputsAreApart(t *testing.T) {
	res, err := proc.Run(t.Context(), sh("echo out; echo err >&2; exit 23"))
	code, ok := proc.ExitCode(err)
	if !ok || code != 23 || res.ExitCode != 23 || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
		t.Errorf("code %d (%v), %+v", code, ok, res)
	}
	for _, want := range []string{"/bin/sh -c", "exited with code 23", "its last words", "err"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q lacks %q", err, want)
		}
	}
	if _, err := proc.Run(t.Context(), sh("exit 0")); err != nil {
		t.Error(err)
	}
}

func TestSignalGivesItsCode(t *testing.T) {
	_, err := proc.Run(t.Context(), sh("kill -KILL $$"))
	if code, ok := proc.ExitCode(err); !ok || code != 128+9 || !strings.Contains(err.Error(), "killed") {
		t.Errorf("code %d, %v, %v", code, ok, err)
	}
}

func TestStdinEnvironmentAndFolder(t *testing.T) {
	c := sh("cat; echo $WORD; pwd")
	c.Stdin, c.Env, c.Dir = strings.NewReader("in\n"), []string{"WORD=w"}, "/"
	if res, err := proc.Run(t.Context(), c); err != nil || string(res.Stdout) != "in\nw\n/\n" {
		t.Errorf("%q, %v", res.Stdout, err)
	}
	if res, err := proc.Run(t.Context(), sh("cat")); err != nil || len(res.Stdout) != 0 {
		t.Errorf("without a stdin, cat printed %q, %v", res.Stdout, err)
	}
}

// The deadline ends the whole group: a child of the command too, also when both ignore SIGTERM.
func TestDeadlineEndsTheWholeGroup(t *testing.T) {
	for name, trap := range map[string]string{"polite": "", "stubborn": "trap '' TERM; "} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, w := io.Pipe()
			c := sh(trap + "sleep 600 & echo $!; wait; while :; do sleep 1; done")
			c.Stdout = w
			p, err := proc.Start(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 32)
			n, err := r.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, r) }()
			child, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			_, err = p.Wait()
			if _, exited := proc.ExitCode(err); exited || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "was cancelled") {
				t.Errorf("the error is %v", err)
			}
			for deadline := time.Now().Add(20 * time.Second); syscall.Kill(child, 0) == nil; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the command's child %d is still there", child)
				}
			}
		})
	}
}

func TestDeadlineIsNamed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := proc.Run(ctx, sh("sleep 600"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still running at its deadline") {
		t.Errorf("the error is %v", err)
	}
}

// A daemon that a command leaves behind, with the command's outputs open, is not a failure of the command.
func TestDaemonWithTheOutputsOpenIsNoFailure(t *testing.T) {
	res, err := proc.Run(t.Context(), sh("setsid sleep 30 & echo $!"))
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Errorf("the daemon was to live on: %v", err)
	}
}

func TestWhatDoesNotStart(t *testing.T) {
	_, err := proc.Run(t.Context(), proc.Cmd{Argv: []string{"/no/such/program"}})
	if _, exited := proc.ExitCode(err); exited || !strings.Contains(err.Error(), "/no/such/program did not start") {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := proc.Run(ctx, sh("true")); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if _, err := proc.Run(t.Context(), proc.Cmd{}); err == nil {
		t.Error("a command without a program ran")
	}
}

func TestLongOutputIsBoundedAndTheLastWordsAreKept(t *testing.T) {
	res, err := proc.Run(t.Context(), sh("head -c 20000000 /dev/zero; seq 1 100 >&2; exit 1"))
	if len(res.Stdout) != 16<<20 {
		t.Errorf("%d bytes were kept", len(res.Stdout))
	}
	if !strings.HasSuffix(err.Error(), "\n    99\n    100") || strings.Contains(err.Error(), "\n    88\n") {
		t.Errorf("the error is %v", err)
	}
	if !bytes.HasPrefix(res.Stderr, []byte("1\n2\n")) {
		t.Errorf("stderr begins with %.20q", res.Stderr)
	}
}
