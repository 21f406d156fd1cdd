package reference_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/subject"
)

// Between two commands, the runtime in the workspace's folder is changed: it is not run, and up brings the right one again.
func TestAChangedRuntimeIsNotRun(t *testing.T) {
	e := newExternalBench(t)
	e.must(e.ProviderAdd(bounded(t), e.manifest, "p", nil))
	_, err := e.up(subject.UpOptions{})
	e.must(err)
	path := e.installed()
	mark := filepath.Join(t.TempDir(), "mark")
	tampered := []byte("#!/bin/sh\ntouch " + mark + "\n")
	e.must(os.Remove(path))
	e.must(os.WriteFile(path, tampered, 0o755))
	for _, args := range [][]string{{"status", "w"}, {"stop", "w"}, {"ssh", "w", "--command", "true"}, {"delete", "w"}} {
		res, code := e.run(append([]string{"workspace"}, args...)...)
		if code != 1 || !strings.Contains(string(res.Stderr), "expected SHA-256 "+sum(e.binary)+", seen "+sum(tampered)) ||
			!strings.Contains(string(res.Stderr), "`workspace up` brings it here again") {
			t.Errorf("%v: %d, %s", args, code, res.Stderr)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the changed runtime was run")
	}
	_, err = e.up(subject.UpOptions{})
	e.must(err)
	if n := e.requests.Load(); n != 1 {
		t.Errorf("%d requests were made: the cache has the right one", n)
	}
	e.must(e.Delete(bounded(t), "w", true))
}

// pidOf waits until exactly one process runs the program, and gives its id.
func (e *externalBench) runtimePID() int {
	e.Helper()
	number := regexp.MustCompile(`\d+`)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		links, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range links {
			if target, _ := os.Readlink(link); strings.HasPrefix(target, e.Home.Dir) {
				pid, _ := strconv.Atoi(number.FindString(link))
				return pid
			}
		}
	}
	e.Fatal("no runtime runs")
	return 0
}

// The runtime is killed while it makes a machine: up says so, and the workspace can be brought up or deleted.
func TestTheRuntimeIsKilledDuringUp(t *testing.T) {
	e := newExternalBench(t)
	e.must(e.ProviderAdd(bounded(t), e.manifest, "p", nil))
	hang := filepath.Join(e.bench.msb, "hang")
	e.must(os.WriteFile(hang, nil, 0o644))
	failed := make(chan error, 1)
	go func() {
		_, err := e.up(subject.UpOptions{})
		failed <- err
	}()
	hanging := filepath.Join(e.bench.msb, "hanging")
	for {
		if text, _ := os.ReadFile(hanging); len(text) > 0 {
			break
		}
		select {
		case err := <-failed:
			t.Fatalf("up ended: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	e.must(syscall.Kill(e.runtimePID(), syscall.SIGKILL))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "the runtime ended during RunImage") {
		t.Errorf("up: %v", err)
	}
	e.must(os.Remove(hang))
	if s, err := e.Status(bounded(t), "w"); err != nil || s.State == subject.Running {
		t.Errorf("status of a half-made workspace: %+v, %v", s, err)
	}
	_, err := e.up(subject.UpOptions{})
	e.must(err)
	e.must(e.Delete(bounded(t), "w", true))
	if left, _ := os.ReadDir(filepath.Join(e.bench.msb, "m")); len(left) > 0 {
		t.Errorf("machines were left: %v", left)
	}
	e.noRuntime()
}

// The CLI is killed during a session: the runtime ends too.
func TestTheCLIIsKilledDuringSSH(t *testing.T) {
	e := newExternalBench(t)
	e.must(e.ProviderAdd(bounded(t), e.manifest, "p", nil))
	_, err := e.up(subject.UpOptions{})
	e.must(err)
	p, err := proc.Start(bounded(t), proc.Cmd{Env: e.Environ(), Argv: append(e.Argv[:2:2], "workspace", "ssh", "w", "--command", "sleep 600")})
	e.must(err)
	t.Cleanup(p.Stop)
	pid := e.runtimePID()
	for deadline := time.Now().Add(time.Minute); len(e.asked("exec")) < 2; time.Sleep(5 * time.Millisecond) { // the first put the agent there
		if time.Now().After(deadline) {
			t.Fatalf("msb was asked for %q", e.asked("exec"))
		}
	}
	e.must(syscall.Kill(p.PID(), syscall.SIGKILL))
	for deadline := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the runtime outlived the CLI")
		}
	}
	e.noRuntime()
	e.must(e.Delete(bounded(t), "w", true))
}
