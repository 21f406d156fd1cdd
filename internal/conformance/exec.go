package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
)

// The checks that others stand on.
const (
	exits     = "Exec: exactly one exit, and last"
	echoes    = "Exec: bytes come back unchanged"
	exitCodes = "Exec: exit codes"
)

var noStreams driver.Streams

func (s *suite) execChecks() []check {
	return []check{
		{exits, "The stream of Exec ends with one exit, after all output.", []string{keeps}, s.asking(s.exits)},
		{exitCodes, "The exit codes 0, 1, 23 and 200 of a command come in the exit, and the call succeeds.", []string{exits}, s.asking(s.exitCodes)},
		{"Exec: a signal is no success", "A command that a signal ended has a signal in its exit, or an exit code that is not 0.",
			[]string{exits}, s.asking(s.signal)},
		{echoes, "What goes into cat comes out of it, whatever the bytes.", []string{exits}, s.asking(s.echo)},
		{"Exec: arguments arrive as they are", "Spaces, quotes, dollars, empty arguments and line breaks are no shell's to change.",
			[]string{exits}, s.asking(s.arguments)},
		{"Exec: environment and working folder", "A command has the environment and the working folder of its start, and the environment of RunImage.",
			[]string{exits}, s.asking(s.environment)},
		{"Exec: standard error is apart", "What a command writes to its two outputs comes as stdout and as stderr.", []string{exits}, s.asking(s.stderr)},
		{"Exec: much in both directions at once", "12 MiB go through cat while they come back, and no byte is lost.", []string{echoes}, s.asking(s.duplex)},
		{"Exec: a command may end before its input", "A command that reads nothing and ends has its exit, while the client still sends.",
			[]string{exitCodes}, s.asking(s.earlyExit)},
		{"Exec: a cancelled command ends", "When the client cancels, the command is ended, and the machine goes on.", []string{exitCodes}, s.asking(s.cancelled)},
	}
}

// shell is a start of a shell script in the workspace of the checks.
func (s *suite) shell(script string, args ...string) *pb.ExecStart {
	return &pb.ExecStart{WorkspaceId: s.workspace, Argv: append([]string{"/bin/sh", "-c", script}, args...)}
}

// run runs a script to its end, and gives how it ended and what it wrote.
func (s *suite) run(ctx context.Context, r *runtimeclient.Runtime, start *pb.ExecStart, in io.Reader) (exit *pb.ExecExit, out, errs string, err error) {
	var outBuffer, errBuffer bytes.Buffer
	exit, err = r.Exec(ctx, start, driver.Streams{In: in, Out: &outBuffer, Err: &errBuffer})
	return exit, outBuffer.String(), errBuffer.String(), r.Explain("Exec", err)
}

// succeeded says whether a command ended with 0, and what else it did.
func succeeded(exit *pb.ExecExit) bool { return exit.GetExitCode() == 0 && exit.GetSignal() == "" }

func ending(exit *pb.ExecExit) string {
	return fmt.Sprintf("the exit code %d and the signal %q", exit.GetExitCode(), exit.GetSignal())
}

func (s *suite) exits(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	return s.exitCode(ctx, r, 0)
}

// exitCode runs a command that ends with a code.
func (s *suite) exitCode(ctx context.Context, r *runtimeclient.Runtime, code int) (expected, seen string, err error) {
	expected = fmt.Sprintf("the output \"x\", then an exit with the code %d and no signal, then the end", code)
	exit, out, _, err := s.run(ctx, r, s.shell(fmt.Sprintf("printf x; exit %d", code)), nil)
	if err != nil {
		return expected, "", err
	}
	if out != "x" || int(exit.GetExitCode()) != code || exit.GetSignal() != "" {
		return broken(expected, "the output %.100q, %s", out, ending(exit))
	}
	return expected, "the same", nil
}

func (s *suite) exitCodes(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	for _, code := range []int{0, 1, 23, 200} {
		if expected, seen, err = s.exitCode(ctx, r, code); err != nil {
			return expected, seen, err
		}
	}
	return "the exit codes 0, 1, 23 and 200", "the same", nil
}

func (s *suite) signal(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = "a signal, or an exit code that is not 0"
	exit, _, _, err := s.run(ctx, r, s.shell("kill -KILL $$"), nil)
	if err != nil {
		return expected, "", err
	}
	if succeeded(exit) {
		return broken(expected, "%s", ending(exit))
	}
	return expected, ending(exit), nil
}

// through sends bytes through cat and checks what comes back.
func (s *suite) through(ctx context.Context, r *runtimeclient.Runtime, sent []byte) (expected, seen string, err error) {
	expected = fmt.Sprintf("%d bytes with the SHA-256 %x, and the exit code 0", len(sent), sha256.Sum256(sent))
	exit, out, errs, err := s.run(ctx, r, s.shell("exec cat"), bytes.NewReader(sent))
	if err != nil {
		return expected, "", fmt.Errorf("%d bytes came back, and then: %w", len(out), err)
	}
	if out != string(sent) || !succeeded(exit) {
		return broken(expected, "%d bytes with the SHA-256 %x, %s; on standard error %.200q", len(out), sha256.Sum256([]byte(out)), ending(exit), errs)
	}
	return expected, "the same", nil
}

func (s *suite) echo(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	var all []byte
	for b := range 256 {
		all = append(all, byte(b), '\r', '\n', byte(b))
	}
	return s.through(ctx, r, bytes.Repeat(all, 70)) // more than two frames, and none at a boundary of a line
}

func (s *suite) duplex(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	random := make([]byte, s.Duplex)
	_, _ = rand.Read(random)
	return s.through(ctx, r, random)
}

func (s *suite) arguments(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	args := []string{"", "two words", `"quoted"`, "'", "$HOME `id`", `back\slash`, "line\nbreak", "naïve ☃", "-n", "*", ";"}
	expected = fmt.Sprintf("%q", args)
	exit, out, errs, err := s.run(ctx, r, s.shell(`printf '%s\0' "$@"`, append([]string{"sh"}, args...)...), nil)
	if err != nil {
		return expected, "", err
	}
	got := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	if !slices.Equal(got, args) || !succeeded(exit) {
		return broken(expected, "%q, %s; on standard error %.200q", got, ending(exit), errs)
	}
	return expected, "the same", nil
}

func (s *suite) environment(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	start := s.shell(`printf '%s|%s|%s' "$PARITY_CONFORMANCE" "$PARITY_EXEC" "$(pwd)"`)
	start.Environment, start.Workdir = map[string]string{"PARITY_EXEC": "a 'b' $c"}, "/proc"
	expected = `"from RunImage|a 'b' $c|/proc"`
	exit, out, errs, err := s.run(ctx, r, start, nil)
	if err != nil {
		return expected, "", err
	}
	if strconv.Quote(out) != expected || !succeeded(exit) {
		return broken(expected, "%q, %s; on standard error %.200q", out, ending(exit), errs)
	}
	return expected, "the same", nil
}

func (s *suite) stderr(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = `"out" as stdout, and "err" as stderr`
	exit, out, errs, err := s.run(ctx, r, s.shell("printf out; printf err >&2"), nil)
	if err != nil {
		return expected, "", err
	}
	if out != "out" || errs != "err" || !succeeded(exit) {
		return broken(expected, "%.200q as stdout, and %.200q as stderr; %s", out, errs, ending(exit))
	}
	return expected, "the same", nil
}

// endless is an input that goes on until it is closed.
type endless struct{ ctx context.Context }

func (e endless) Read(b []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, io.EOF
	}
	return len(b), nil
}

func (s *suite) earlyExit(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = fmt.Sprintf("the exit code 5 within %s", s.Answer)
	ctx, cancel := context.WithTimeout(ctx, s.Answer)
	defer cancel()
	exit, _, _, err := s.run(ctx, r, s.shell("exit 5"), endless{ctx})
	if err != nil {
		return broken(expected, "%v", err)
	}
	if exit.GetExitCode() != 5 || exit.GetSignal() != "" {
		return broken(expected, "%s", ending(exit))
	}
	return expected, ending(exit), nil
}

// cancelled starts a command, cancels it, and looks in the machine whether it is still there.
func (s *suite) cancelled(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error) {
	expected = fmt.Sprintf("the command is gone within %s, and another one runs", s.Answer)
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := r.Exec(own, s.shell("echo $$; exec sleep 600"), driver.Streams{Out: write})
		write.CloseWithError(errors.Join(err, io.ErrUnexpectedEOF))
		done <- err
	}()
	line := make([]byte, 0, 32)
	for !bytes.Contains(line, []byte("\n")) {
		b := make([]byte, 32)
		n, err := read.Read(b)
		if err != nil {
			return broken(expected, "the command did not start: %v", err)
		}
		line = append(line, b[:n]...)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line)))
	if err != nil {
		return broken(expected, "%q, where its process id should be", line)
	}
	cancel()
	<-done // the client's side: it ends at once
	for deadline := time.Now().Add(s.Answer); ; time.Sleep(100 * time.Millisecond) {
		exit, _, _, err := s.run(ctx, r, s.shell(fmt.Sprintf("kill -0 %d 2>/dev/null", pid)), nil)
		if err != nil {
			return expected, "", err
		}
		if !succeeded(exit) {
			return expected, "the same", nil
		}
		if time.Now().After(deadline) {
			return broken(expected, "process %d is still there", pid)
		}
	}
}
