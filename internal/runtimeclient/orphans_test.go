package runtimeclient_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/runtimeclient"
	"dagger/parity/internal/runtimefake"
)

// pidOf starts a command that says its process id and goes on, and gives that.
func pidOf(t *testing.T, ctx context.Context, d driver.Driver) (pid int, done <-chan error) {
	t.Helper()
	r, w := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		_, err := d.Exec(ctx, "w", []string{"/bin/sh", "-c", "echo $$; exec sleep 600"}, driver.Streams{Out: w})
		w.CloseWithError(err)
		failed <- err
	}()
	line := make([]byte, 32)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(line[:n]))); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	return pid, failed
}

func TestCancellationEndsTheCommand(t *testing.T) {
	r := start(t, command(t, ""))
	d := r.Driver()
	if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	pid, done := pidOf(t, ctx, d)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	ended(t, pid)
	if _, found, err := d.Find(bounded(t), "w"); !found || err != nil {
		t.Errorf("the runtime does not go on: %v, %v", found, err)
	}
}

func TestNothingIsLeftWhenTheRuntimeIsKilled(t *testing.T) {
	r := start(t, command(t, ""))
	d := r.Driver()
	if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		t.Fatal(err)
	}
	pid, done := pidOf(t, bounded(t), d)
	if err := syscall.Kill(r.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "the runtime ended during Exec") {
		t.Errorf("got %v", err)
	}
	r.Close()
	ended(t, r.PID())
	ended(t, pid)
}

// What it started in its process group ends, although its own end came before.
func TestNothingIsLeftOfARuntimeThatCrashes(t *testing.T) {
	dir := t.TempDir()
	path, pidFile := filepath.Join(dir, "runtime"), filepath.Join(dir, "pid")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 600 >/dev/null 2>&1 & echo $! >"+pidFile+"\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := runtimeclient.Start(bounded(t), runtimeclient.Command{Path: path, Env: os.Environ()}); err == nil || !strings.Contains(err.Error(), "exited with code 3") {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	ended(t, pid)
}

func host() {
	c := runtimeclient.Command{Path: os.Args[0], Args: []string{"serve"}, Env: append(os.Environ(), runtimefake.EnvState+"="+os.Getenv(envHost))}
	r, err := runtimeclient.Start(context.Background(), c)
	if err != nil {
		panic(err)
	}
	d := r.Driver()
	if _, err := d.Run(context.Background(), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		panic(err)
	}
	os.Stdout.WriteString(strconv.Itoa(r.PID()) + "\n")
	_, _ = d.Exec(context.Background(), "w", []string{"/bin/sh", "-c", "echo $$; exec sleep 600"}, driver.Streams{Out: os.Stdout})
}

// The host is killed while a command runs: the runtime and the command end, also where the runtime ignores signals.
func TestNothingIsLeftWhenTheHostIsKilled(t *testing.T) {
	temporary := shortTempDir(t)
	for _, fault := range []runtimefake.Fault{"", runtimefake.OutlivesHost} {
		out, w := io.Pipe()
		p, err := proc.Start(bounded(t), proc.Cmd{Argv: []string{self(t)}, Stdout: w,
			Env: append(os.Environ(), envHost+"="+t.TempDir(), runtimefake.EnvFault+"="+string(fault))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		go func() {
			_, err := p.Wait()
			w.CloseWithError(errors.Join(errors.New("the host ended"), err))
		}()
		var pids [2]int
		buffer := make([]byte, 0, 64)
		for strings.Count(string(buffer), "\n") < 2 {
			b := make([]byte, 64)
			n, err := out.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			buffer = append(buffer, b[:n]...)
		}
		go func() { _, _ = io.Copy(io.Discard, out) }()
		for i, line := range strings.Fields(string(buffer)) {
			if pids[i], err = strconv.Atoi(line); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-p.Done() // until then it holds its folder
		for _, pid := range pids {
			ended(t, pid)
		}
	}
	// The folders of their sockets are there still, and go with the next one's start.
	sockets := filepath.Join(temporary, "prt-*")
	if left, _ := filepath.Glob(sockets); len(left) == 0 {
		t.Error("the killed hosts had no folder: this test shows nothing")
	}
	start(t, command(t, "")).Close()
	if left, _ := filepath.Glob(sockets); len(left) > 0 {
		t.Errorf("%q were left", left)
	}
}

func TestCloseEndsARuntimeThatHangs(t *testing.T) {
	r := start(t, command(t, ""))
	if err := syscall.Kill(r.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		r.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("Close does not return")
	}
	ended(t, r.PID())
}

func TestCloseEndsARuntimeThatDoesNotWantTo(t *testing.T) {
	for fault, itself := range map[runtimefake.Fault]bool{"": true, runtimefake.IgnoresShutdown: false} {
		r := start(t, command(t, fault))
		r.Close()
		if running(r.PID()) || r.EndedItself() != itself {
			t.Errorf("fault %q: process %d is there: %v; it ended itself: %v", fault, r.PID(), running(r.PID()), r.EndedItself())
		}
	}
}
