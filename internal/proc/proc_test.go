package proc_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/proc"
)

// envRunSleep makes the test program run a program that does not end by itself.
const envRunSleep = "PARITY_TEST_RUN_SLEEP"

func TestMain(m *testing.M) {
	if os.Getenv(envRunSleep) != "" {
		c := sh("echo sleeping; exec sleep 600")
		c.Stdout = os.Stdout
		_, err := proc.Run(context.Background(), c)
		fmt.Fprintln(os.Stderr, "the sleep ended:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func sh(script string) proc.Cmd { return proc.Cmd{Argv: []string{"sh", "-c", script}} }

// patience bounds every wait of these tests. It is never reached when they pass.
const patience = 30 * time.Second

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestRunGivesWhatTheProcessPrintedAndItsExitCode(t *testing.T) {
	c := sh(`cat; echo "$WORD in $(pwd)"; echo oops >&2; exit 23`)
	c.Stdin, c.Env, c.Dir = strings.NewReader("in,"), []string{"WORD=word", "PATH=" + os.Getenv("PATH")}, t.TempDir()
	res, err := proc.Run(bounded(t), c)
	if want := "in,word in " + c.Dir + "\n"; string(res.Stdout) != want || string(res.Stderr) != "oops\n" {
		t.Errorf("stdout %q, want %q; stderr %q", res.Stdout, want, res.Stderr)
	}
	if code, exited := proc.ExitCode(err); code != 23 || !exited || res.ExitCode != 23 || res.Elapsed <= 0 {
		t.Errorf("ExitCode gives %d, %v; the result is %d after %s", code, exited, res.ExitCode, res.Elapsed)
	}
	for _, part := range []string{"sh -c ", "exited with code 23", "its last words:\n    oops"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q: %v", part, err)
		}
	}
	if res, err := proc.Run(bounded(t), sh("true")); err != nil || res.ExitCode != 0 {
		t.Errorf("true gives %+v, %v", res, err)
	}
	if code, exited := proc.ExitCode(nil); code != 0 || exited {
		t.Errorf("no error has the exit code %d, %v", code, exited)
	}
	if _, exited := proc.ExitCode(fmt.Errorf("wrapped: %w", err)); !exited {
		t.Error("a wrapped error has lost its exit code")
	}
}

func TestRunTellsASignalFromAHighExitCode(t *testing.T) {
	for script, want := range map[string]struct {
		code int
		text string
	}{
		"kill -KILL $$": {137, "ended with code 137 (killed)"},
		"exit 143":      {143, "ended with code 143 (terminated)"},
		"exit 255":      {255, "exited with code 255"},
	} {
		res, err := proc.Run(bounded(t), sh(script))
		if code, exited := proc.ExitCode(err); res.ExitCode != want.code || code != want.code || !exited || !strings.HasSuffix(err.Error(), want.text) {
			t.Errorf("%s gives %d, %d %v, %v", script, res.ExitCode, code, exited, err)
		}
	}
}

func TestErrorHasTheLastLinesOfStderrWhereverTheyWent(t *testing.T) {
	var stderr bytes.Buffer
	c := sh(`for i in $(seq 1 100); do echo line $i >&2; done; exit 1`)
	c.Stderr = &stderr
	res, err := proc.Run(bounded(t), c)
	if len(res.Stderr) != 0 || strings.Count(stderr.String(), "\n") != 100 {
		t.Errorf("the caller's writer has %d lines, and the result %q", strings.Count(stderr.String(), "\n"), res.Stderr)
	}
	if text := err.Error(); !strings.Contains(text, "    line 89\n") || !strings.HasSuffix(text, "    line 100") || strings.Contains(text, "line 88\n") {
		t.Errorf("the error is to have the last 12 lines: %v", err)
	}
}

func TestRunKeepsABoundedPartOfALargeOutputAndReadsAll(t *testing.T) {
	const limit = 16 << 20
	res, err := proc.Run(bounded(t), sh(fmt.Sprintf("head -c %d /dev/zero; echo the end >&2", limit+1<<20)))
	if err != nil || len(res.Stdout) != limit || string(res.Stderr) != "the end\n" {
		t.Errorf("%d bytes were kept, %q, %v", len(res.Stdout), res.Stderr, err)
	}
}

func TestRunOfWhatCannotStartHasNoExitCode(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	mark := filepath.Join(t.TempDir(), "mark")
	for name, c := range map[string]struct {
		ctx  context.Context
		cmd  proc.Cmd
		is   error
		text string
	}{
		"missing":   {bounded(t), proc.Cmd{Argv: []string{"/nonexistent/program", "a b"}}, os.ErrNotExist, "/nonexistent/program 'a b' did not start: "},
		"in PATH":   {bounded(t), proc.Cmd{Argv: []string{"no-such-program"}}, nil, "no-such-program did not start: "},
		"no folder": {bounded(t), proc.Cmd{Argv: []string{"true"}, Dir: "/nonexistent"}, os.ErrNotExist, "true did not start: "},
		"cancelled": {cancelled, sh("touch " + mark), context.Canceled, "did not start: context canceled"},
		"too late":  {past, sh("touch " + mark), context.DeadlineExceeded, "did not start: context deadline exceeded"},
		"empty":     {bounded(t), proc.Cmd{}, nil, "without a program"},
	} {
		res, err := proc.Run(c.ctx, c.cmd)
		if _, exited := proc.ExitCode(err); err == nil || exited || res.ExitCode != -1 {
			t.Errorf("%s: %+v, %v", name, res, err)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a command ran although its context was over")
	}
}

// started starts a script that prints one line, and gives the process and that line.
func started(t *testing.T, ctx context.Context, script string) (*proc.Process, string) {
	t.Helper()
	r, w := io.Pipe()
	c := sh(script)
	c.Stdout = w
	p, err := proc.Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return p, strings.TrimSpace(line)
}

// ended waits until a process that this one is not the parent of is gone, or a zombie.
func ended(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatalf("%q is no process id", pid)
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	_ = syscall.Kill(n, syscall.SIGKILL)
	t.Errorf("process %s still runs", pid)
}

func TestADeadlineEndsTheWholeGroup(t *testing.T) {
	for name, script := range map[string]string{
		"a grandchild":                      `sleep 600 & echo $!; wait`,
		"a grandchild that ignores SIGTERM": `(trap '' TERM; echo $(exec sh -c 'echo $PPID'); exec sleep 600 >/dev/null 2>&1) & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(bounded(t))
			p, pid := started(t, ctx, script)
			cancel()
			res, err := p.Wait()
			if !errors.Is(err, context.Canceled) || res.ExitCode != 128+int(syscall.SIGTERM) {
				t.Errorf("Wait gives %+v, %v", res, err)
			}
			if _, exited := proc.ExitCode(err); exited {
				t.Error("a process that was ended passes for one that exited by itself")
			}
			ended(t, pid)
		})
	}
}

func TestADeadlineIsNamedAsOne(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := proc.Run(ctx, sh("exec sleep 600"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "was still running at its deadline") {
		t.Errorf("at its deadline a command gives %v", err)
	}
}

func TestSIGKILLComesAfterTheGrace(t *testing.T) {
	ctx, cancel := context.WithCancel(bounded(t))
	p, pid := started(t, ctx, `trap '' TERM; echo $$; while :; do sleep 1; done`)
	cancel()
	res, err := p.Wait()
	if !errors.Is(err, context.Canceled) || res.ExitCode != 128+int(syscall.SIGKILL) {
		t.Errorf("Wait gives %+v, %v", res, err)
	}
	ended(t, pid)
}

func TestAProcessThatEndsWellOnSIGTERMIsNoSuccessAtItsDeadline(t *testing.T) {
	ctx, cancel := context.WithCancel(bounded(t))
	p, _ := started(t, ctx, `trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done`)
	cancel()
	if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait gives %v", err)
	}
}

func TestADaemonThatKeepsTheOutputOpenDoesNotHoldUpItsParent(t *testing.T) {
	res, err := proc.Run(bounded(t), sh(`sleep 600 & echo $!`))
	if err != nil || res.ExitCode != 0 {
		t.Errorf("Run gives %+v, %v", res, err)
	}
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(res.Stdout)))
	if convErr != nil {
		t.Fatalf("stdout is %q", res.Stdout)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the daemon does not live on: %v", err)
	}
	// One that failed is a failure, daemon or not.
	res, err = proc.Run(bounded(t), sh(`sleep 600 & echo $!; exit 4`))
	if code, exited := proc.ExitCode(err); code != 4 || !exited {
		t.Errorf("Run gives %v", err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(res.Stdout))); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func TestStopAndSignalOfAProcessThatHasEnded(t *testing.T) {
	p, err := proc.Start(bounded(t), sh("exit 7"))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	p.Stop()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for range 2 {
		if res, err := p.Wait(); res.ExitCode != 7 || err == nil {
			t.Errorf("Wait gives %+v, %v", res, err)
		}
	}
}

func TestAWriterThatFailsIsAnError(t *testing.T) {
	r, w := io.Pipe()
	broken := errors.New("no more room")
	r.CloseWithError(broken)
	c := sh("echo word; exit 0")
	c.Stdout = w
	if _, err := proc.Run(bounded(t), c); !errors.Is(err, broken) {
		t.Errorf("Run gives %v", err)
	}
}

// A program that is given an environment of its own still makes its temporary files where they are removed.
func TestTemporaryFolderIsPassedOn(t *testing.T) {
	t.Setenv("TMPDIR", "/ours")
	for _, test := range []struct {
		env  []string
		want string
	}{
		{[]string{"PATH=/bin"}, "/ours"},
		{[]string{"PATH=/bin", "TMPDIR=/theirs"}, "/theirs"},
		{nil, "/ours"},
	} {
		res, err := proc.Run(bounded(t), proc.Cmd{Argv: []string{"/bin/sh", "-c", "echo $TMPDIR"}, Env: test.env})
		if got := strings.TrimSpace(string(res.Stdout)); err != nil || got != test.want {
			t.Errorf("with %q it is %q (%v), want %q", test.env, got, err, test.want)
		}
	}
}

// A program does not outlive the process that runs it, however that ends.
func TestProgramEndsWithTheProcessThatRunsIt(t *testing.T) {
	parent := exec.Command("/proc/self/exe")
	parent.Env = append(os.Environ(), envRunSleep+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	// The program has the pipe too: it ends once both are gone.
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "sleeping\n" {
		t.Fatalf("it said %q (%v)", line, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, out)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the program is still there, and the process that ran it was killed")
	}
	_ = parent.Wait()
}

func TestRawStderrGoesToTheProcessAsItIs(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := sh(`readlink /proc/$$/fd/2 >&2; exit 5`)
	c.Stderr, c.RawStderr = w, true
	_, err = proc.Run(bounded(t), c)
	w.Close()
	want, linkErr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.Fd()))
	got, readErr := io.ReadAll(r)
	if code, exited := proc.ExitCode(err); code != 5 || !exited || linkErr != nil || readErr != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("stderr of the process is %q, want %q; %v, %v, %v", got, want, err, linkErr, readErr)
	}
}
