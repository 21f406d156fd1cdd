// Package sshclient runs commands and brings files over an SSH connection.
package sshclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/crypto/ssh"
)

// Client is what can be done over a connection. It is safe for concurrent use: many commands may run over it at once.
type Client struct {
	Connection *ssh.Client
	Where      string // the other side in errors, such as "in the workspace"

	Place Place // where commands are run there
}

// Place is where a command is run on the other side. The zero one is where the server runs it.
type Place struct {
	Folder  string   `json:"folder,omitempty"`  // absolute; a command fails where it is not there
	Environ []string `json:"environ,omitempty"` // more of its environment: KEY=VALUE
}

// Command gives the shell command that runs another one at the place, in /bin/sh.
func (p Place) Command(command string) string {
	if p.Folder == "" && len(p.Environ) == 0 {
		return command
	}
	enter := "cd -- " + shellescape.Quote(cmp.Or(p.Folder, ".")) + " || exit; "
	return "exec env " + shellescape.QuoteCommand(append(slices.Clone(p.Environ), "/bin/sh", "-c", enter+command))
}

// Result is what a command left.
type Result struct {
	Stdout, Stderr []byte // up to 16 MiB each; the rest is dropped
	ExitCode       int    // 0 to 255, or 128 + the signal that ended it; -1 when it is not known
	ExitSignal     string // such as "KILL"; empty when no signal ended it
	Elapsed        time.Duration
}

// RunError is the error of a command that ran to its end over a healthy connection and did not exit with 0. Any other error of Run is the
// connection's or the context's.
type RunError struct {
	Where      string
	Command    string
	ExitCode   int
	ExitSignal string
	Stderr     string // its last 2 KiB
}

// Error names the command, how it ended and its last words.
func (e *RunError) Error() string {
	msg := fmt.Sprintf("%.200q %s exited with code %d", e.Command, e.Where, e.ExitCode)
	if e.ExitSignal != "" {
		msg = fmt.Sprintf("%.200q %s was ended by signal %s", e.Command, e.Where, e.ExitSignal)
	}
	if e.Stderr != "" {
		msg += fmt.Sprintf("; its last words: %q", e.Stderr)
	}
	return msg
}

// Broke tells whether an error of a Client is about the connection, or its context, and neither about a command that ended nor a file here.
func Broke(err error) bool {
	var ended *RunError
	var file *fs.PathError
	return err != nil && !errors.As(err, &ended) && !errors.As(err, &file)
}

// Run runs a shell command on the other side; a nil stdin is empty. When ctx is done it returns at once and closes the command's
// channel; the connection stays. Whether that ends the command is the server's affair: OpenSSH's does not. A stdin whose Read blocks for ever keeps a goroutine.
func (c *Client) Run(ctx context.Context, command string, stdin io.Reader) (Result, error) {
	type outcome struct {
		res Result
		err error
	}
	started := time.Now()
	done := make(chan outcome, 1)
	go func() {
		res, err := c.run(ctx, command, stdin)
		done <- outcome{res, err}
	}()
	o := outcome{res: Result{ExitCode: -1}}
	select {
	case o = <-done:
	case <-ctx.Done():
		o.err = ctx.Err()
	}
	o.res.Elapsed = time.Since(started)
	return o.res, o.err
}

func (c *Client) run(ctx context.Context, command string, stdin io.Reader) (Result, error) {
	res := Result{ExitCode: -1}
	session, err := c.Connection.NewSession()
	if err != nil {
		return res, err
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { session.Close() })()
	stdout, stderr := &capture{limit: 16 << 20}, &capture{limit: 16 << 20}
	session.Stdout, session.Stderr = stdout, stderr
	if err = Start(session, c.Place.Command(command), stdin); err != nil {
		return res, err
	}
	err = session.Wait()
	res.Stdout, res.Stderr = stdout.bytes(), stderr.bytes()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		res.ExitCode = 0
	case errors.As(err, &exit):
		res.ExitCode, res.ExitSignal = exit.ExitStatus(), exit.Signal()
		last := res.Stderr[max(0, len(res.Stderr)-2<<10):]
		err = &RunError{Where: c.Where, Command: command, ExitCode: res.ExitCode, ExitSignal: res.ExitSignal, Stderr: string(last)}
	}
	return res, err
}

// Start starts a session's command with a standard input; nil is empty. The session's own copying would report a command that did not read all
// of it as failed, and wait for an input that does not end. The input begins only when the server has started the command: OpenSSH lets
// a command wait for ever whose input had ended before.
func Start(session *ssh.Session, command string, stdin io.Reader) error {
	pipe, err := session.StdinPipe()
	if err != nil {
		return err
	}
	if err := session.Start(command); err != nil {
		return err
	}
	go func() {
		if stdin != nil {
			_, _ = io.Copy(pipe, stdin)
		}
		pipe.Close()
	}()
	return nil
}

// Upload copies a file of this machine to an absolute path on the other side and gives it the mode's permission bits. The file is there
// under its name only when it has arrived whole. It needs a shell there with cat, chmod, wc and mv.
func (c *Client) Upload(ctx context.Context, localPath, remotePath string, mode fs.FileMode) error {
	f, err := os.Open(localPath)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	script := fmt.Sprintf(`set -e; new=%s
trap 'rm -f "$new"' EXIT
cat >"$new"
chmod %04o "$new"
got=$(wc -c <"$new")
if [ "$got" -ne %d ]; then echo "%d bytes were sent, $got arrived" >&2; exit 1; fi
mv -f "$new" %s`, shellescape.Quote(remotePath+".new-"+rand.Text()[:8]),
		mode.Perm(), info.Size(), info.Size(), shellescape.Quote(remotePath))
	if _, err := c.Run(ctx, script, f); err != nil {
		return fmt.Errorf("upload %s to %s: %w", localPath, remotePath, err)
	}
	return nil
}

// Alive checks that the other side answers: a fresh nonce comes back.
func (c *Client) Alive(ctx context.Context) error {
	nonce := rand.Text()
	res, err := c.Run(ctx, "echo "+nonce, nil)
	if err == nil && string(res.Stdout) != nonce+"\n" {
		err = fmt.Errorf("expected %q from an echo, seen %.200q", nonce, res.Stdout)
	}
	return err
}

// capture keeps the first limit bytes written to it.
type capture struct {
	limit int

	mu  sync.Mutex
	buf []byte
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = append(c.buf, b[:min(len(b), c.limit-len(c.buf))]...)
	return len(b), nil
}

func (c *capture) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.buf...)
}
