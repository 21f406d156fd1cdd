// Package proc runs child processes the one way Parity allows: bounded by a context, in a process group of their own that
// is ended as a whole, always reaped, and with errors that name the command, its exit code and its last words.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
)

// Grace is how long a process group has between SIGTERM and SIGKILL once its context is done.
const Grace = 5 * time.Second

// drain is how long a process that has exited may keep its output open through a child it left behind.
const drain = 2 * time.Second

// tailLines is how many of the last lines of standard error an Error keeps.
const tailLines = 12

// maxSignal is the highest number of a signal: a higher exit code above 128 is a program's own.
const maxSignal = 64

// captureLimit bounds what is kept of an output that the caller did not redirect; the rest is read and dropped.
const captureLimit = 16 << 20

// Cmd is one child process to run.
type Cmd struct {
	Argv []string // the program (looked up in PATH when it has no slash) and its arguments
	Env  []string // the whole environment, save that TMPDIR is this process's if it is not named; nil means this process's own
	Dir  string   // working folder; empty means this process's own

	Stdin  io.Reader // nil means /dev/null
	Stdout io.Writer // nil means captured into Result.Stdout, up to 16 MiB
	Stderr io.Writer // the tail is kept for errors in any case; nil means captured into Result.Stderr

	RawStderr bool // Stderr, an *os.File, is handed to the process as it is; errors then have no last words

	Namespaces uintptr // CLONE_NEW* flags: what is made anew for the process. With CLONE_NEWPID, all that it starts ends with it
}

// Result is what a finished process left.
type Result struct {
	Stdout, Stderr []byte        // what was captured; empty where the caller gave a writer
	ExitCode       int           // 0 to 255, or 128 + the signal that ended it
	Elapsed        time.Duration // from start to reaped
}

// Error says how a process failed. It is the error of Run and Process.Wait whenever the process did not exit with 0.
type Error struct {
	Argv     []string
	ExitCode int   // as in Result; -1 when the process never started
	Cause    error // the context's error, the start's error, or nil for a plain non-zero exit
	Stderr   string
	Elapsed  time.Duration
}

// Error names the command, how it ended and the last lines it wrote to standard error.
func (e *Error) Error() string {
	var how string
	switch {
	case e.ExitCode < 0:
		how = fmt.Sprintf("did not start: %v", e.Cause)
	case errors.Is(e.Cause, context.DeadlineExceeded):
		how = fmt.Sprintf("was still running at its deadline, %s after its start, and was ended", e.Elapsed.Round(time.Millisecond))
	case errors.Is(e.Cause, context.Canceled):
		how = fmt.Sprintf("was cancelled %s after its start", e.Elapsed.Round(time.Millisecond))
	case e.Cause != nil:
		how = e.Cause.Error()
	case e.ExitCode > 128 && e.ExitCode <= 128+maxSignal:
		how = fmt.Sprintf("ended with code %d (%s)", e.ExitCode, syscall.Signal(e.ExitCode-128))
	default:
		how = fmt.Sprintf("exited with code %d", e.ExitCode)
	}
	msg := shellescape.QuoteCommand(e.Argv) + " " + how
	if e.Stderr != "" {
		msg += "; its last words:\n    " + strings.ReplaceAll(e.Stderr, "\n", "\n    ")
	}
	return msg
}

// Unwrap gives the context's or the start's error, so that errors.Is(err, context.DeadlineExceeded) works.
func (e *Error) Unwrap() error { return e.Cause }

// ExitCode gives the exit code that err carries, and whether err is a process that ran and exited by itself: a process that was
// ended at a deadline, was cancelled or never started has none.
func ExitCode(err error) (int, bool) {
	var failed *Error
	if errors.As(err, &failed) && failed.Cause == nil {
		return failed.ExitCode, true
	}
	return 0, false
}

// Run starts the command, waits for it and reaps it. The error is nil only when it exited with 0; otherwise it is an *Error,
// and the Result still holds what the process printed.
func Run(ctx context.Context, c Cmd) (Result, error) {
	p, err := Start(ctx, c)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	return p.Wait()
}

// Process is a started command. It is reaped whether Wait is called or not.
type Process struct {
	cmd            *exec.Cmd
	ctx            context.Context
	started        time.Time
	stdout, stderr *capped
	tail           *Tail
	done           chan struct{}
	result         Result
	err            error
}

// Start starts the command. When ctx is done, its process group gets SIGTERM and, Grace later, SIGKILL. If this process dies, the
// command gets SIGKILL.
func Start(ctx context.Context, c Cmd) (*Process, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("proc: a command without a program")
	}
	p := &Process{ctx: ctx, started: time.Now(), tail: &Tail{}, done: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		return nil, &Error{Argv: c.Argv, ExitCode: -1, Cause: err}
	}
	p.cmd = exec.Command(c.Argv[0], c.Argv[1:]...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdin = withTempDir(c.Env), c.Dir, c.Stdin
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: c.Namespaces}
	p.cmd.WaitDelay = drain
	if p.cmd.Stdout = c.Stdout; c.Stdout == nil {
		p.stdout = &capped{}
		p.cmd.Stdout = p.stdout
	}
	switch {
	case c.Stderr == nil:
		p.stderr = &capped{}
		p.cmd.Stderr = io.MultiWriter(p.stderr, p.tail)
	case c.RawStderr:
		p.cmd.Stderr = c.Stderr
	default:
		p.cmd.Stderr = io.MultiWriter(c.Stderr, p.tail)
	}
	started := make(chan error)
	go func() {
		// Pdeathsig is about the thread that starts a process, not about this whole process: this thread stays until it has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.reap()
		}
	}()
	if err := <-started; err != nil {
		return nil, &Error{Argv: c.Argv, ExitCode: -1, Cause: err}
	}
	go p.watch()
	return p, nil
}

// withTempDir gives an environment in which temporary files are made where this process makes its own: in a lab that goes with it, and
// not in a folder that outlives a killed run.
func withTempDir(env []string) []string {
	const name = "TMPDIR"
	dir, set := os.LookupEnv(name)
	named := slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	if env == nil || !set || named {
		return env
	}
	return append(slices.Clone(env), name+"="+dir)
}

// PID is the process's id, which is also its process group's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig to the whole process group. A group that is gone is not an error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to process group %d: %w", sig, p.PID(), err)
	}
	return nil
}

// LastWords gives the last lines that the process has written to standard error so far.
func (p *Process) LastWords() string { return p.tail.String() }

// Done is closed once the process has exited and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the process has exited and was reaped; see Run for what it gives.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return p.result, p.err
}

// Stop ends the process group, SIGTERM first, and waits until the process is reaped. SIGKILL comes Grace later, or for what is left of
// the group once the process itself has ended. A process that had ended before is left alone.
func (p *Process) Stop() {
	select {
	case <-p.done:
		return
	default:
	}
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(Grace):
	}
	_ = p.Signal(syscall.SIGKILL) // the group's id is not given out again while it has a member
	<-p.done
}

func (p *Process) watch() {
	select {
	case <-p.done:
	case <-p.ctx.Done():
		p.Stop()
	}
}

func (p *Process) reap() {
	err := p.cmd.Wait()
	p.result = Result{ExitCode: exitCode(p.cmd.ProcessState), Elapsed: time.Since(p.started)}
	if p.stdout != nil {
		p.result.Stdout = p.stdout.bytes()
	}
	if p.stderr != nil {
		p.result.Stderr = p.stderr.bytes()
	}
	failed := &Error{Argv: p.cmd.Args, ExitCode: p.result.ExitCode, Stderr: p.tail.String(), Elapsed: p.result.Elapsed}
	var exit *exec.ExitError
	switch {
	case p.ctx.Err() != nil && err != nil:
		failed.Cause = p.ctx.Err()
		p.err = failed
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && p.result.ExitCode == 0:
		// A daemon that the process left behind may hold its output open: that is not a failure of the process.
	case errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		p.err = failed
	default:
		failed.Cause = err
		p.err = failed
	}
	close(p.done)
}

func exitCode(s interface{ Sys() any }) int {
	status, ok := s.Sys().(syscall.WaitStatus)
	if !ok {
		return -1
	}
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// capped keeps the first captureLimit bytes written to it.
type capped struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (c *capped) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if room := captureLimit - c.buf.Len(); room < len(b) {
		c.buf.Write(b[:max(room, 0)])
	} else {
		c.buf.Write(b)
	}
	return len(b), nil
}

func (c *capped) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.buf.Bytes())
}

// Tail keeps the last lines written to it, to say how something ended. It is safe for concurrent use.
type Tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer. It does not fail.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const keep = 8 << 10
	if t.buf = append(t.buf, b...); len(t.buf) > keep {
		t.buf = bytes.Clone(t.buf[len(t.buf)-keep:])
	}
	return len(b), nil
}

// String gives the last lines, without the line feed at their end.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.buf)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
