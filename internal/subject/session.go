package subject

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/crypto/ssh"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/sshserver"
)

// Session is one SSH connection into a workspace, over the standard input and output of `workspace ssh ID --stdio`. It is safe for
// concurrent use: many commands may run over it at once.
//
// Nobody is authenticated, on either side: the pipe to the command is the trust, as the command was given the workspace's id. The
// host key is accepted and recorded.
type Session struct {
	HostKey ssh.PublicKey // the key that the server showed

	verb    string
	client  *ssh.Client
	process *proc.Process
	stderr  *capture
	closing sync.Once
	closed  error
}

// settle is how long a command has to end once its connection broke, so that the error can say why.
const settle = 2 * time.Second

// Dial opens a session. The context bounds the opening only; the session then stays until Close, or until its command dies.
// Bytes before the SSH banner are a *ContractError.
func (c CLI) Dial(ctx context.Context, id string) (*Session, error) {
	s := &Session{verb: "workspace ssh " + id + " --stdio", stderr: &capture{limit: 4 << 10, last: true}}
	stream, err := s.start(ctx, c.cmd("workspace", "ssh", id, "--stdio"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.verb, err)
	}
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	err = s.handshake(stream)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		stream.Close()
		err = s.broken(ctx, "no SSH connection", err)
		s.process.Stop()
		return nil, err
	}
	go func() {
		<-s.process.Done()
		s.client.Close() // a child that the command left may hold the pipes open
	}()
	return s, nil
}

// start starts the command with its standard streams connected to the stream, and to s.stderr.
func (s *Session) start(ctx context.Context, cmd proc.Cmd) (*pipes, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer childIn.Close()
	out, childOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer childOut.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, s.stderr
	p := &pipes{Reader: bufio.NewReader(out), Writer: in, in: in, out: out}
	if s.process, err = proc.Start(context.WithoutCancel(ctx), cmd); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (s *Session) handshake(p *pipes) error {
	// x/crypto/ssh skips lines before the banner, and so would hide that --stdio is not clean.
	const banner = "SSH-2.0-"
	first, err := p.Peek(len(banner))
	if len(first) == 0 && err != nil {
		return err
	}
	if string(first) != banner {
		first, _ = p.Peek(p.Buffered()) // at least as much
		return &ContractError{Verb: "workspace ssh --stdio",
			Expected: fmt.Sprintf("the SSH banner, %q, as the first bytes", banner), Seen: shown(first)}
	}
	conn, channels, requests, err := ssh.NewClientConn(sshserver.Conn(p), s.verb, sshserver.ClientConfig(func(_ string, _ net.Addr, key ssh.PublicKey) error {
		s.HostKey = key
		return nil
	}))
	if err != nil {
		return err
	}
	s.client = ssh.NewClient(conn, channels, requests)
	return nil
}

// Result is what a command that ran over a session left.
type Result struct {
	Stdout, Stderr []byte // up to 16 MiB each; the rest is dropped
	ExitCode       int    // 0 to 255, or 128 + the signal that ended it; -1 when it is not known
	ExitSignal     string // such as "KILL"; empty when no signal ended it
	Elapsed        time.Duration
}

// RunError is the error of a command that ran to its end over a healthy session and did not exit with 0. Any other error of Run is the
// connection's or the context's.
type RunError struct {
	Command    string
	ExitCode   int
	ExitSignal string
	Stderr     string // its last 2 KiB
}

// Error names the command, how it ended and its last words.
func (e *RunError) Error() string {
	msg := fmt.Sprintf("%.200q in the workspace exited with code %d", e.Command, e.ExitCode)
	if e.ExitSignal != "" {
		msg = fmt.Sprintf("%.200q in the workspace was ended by signal %s", e.Command, e.ExitSignal)
	}
	if e.Stderr != "" {
		msg += fmt.Sprintf("; its last words: %q", e.Stderr)
	}
	return msg
}

// Run runs a shell command in the workspace; a nil stdin is empty. When ctx is done it returns at once and closes the command's
// channel, which ends the command; the session stays. A stdin whose Read blocks for ever keeps a goroutine.
func (s *Session) Run(ctx context.Context, command string, stdin io.Reader) (Result, error) {
	type outcome struct {
		res Result
		err error
	}
	started := time.Now()
	done := make(chan outcome, 1)
	go func() {
		res, err := s.run(ctx, command, stdin)
		done <- outcome{res, err}
	}()
	o := outcome{res: Result{ExitCode: -1}}
	select {
	case o = <-done:
	case <-ctx.Done():
		o.err = ctx.Err()
	}
	o.res.Elapsed = time.Since(started)
	var ended *RunError
	if o.err != nil && !errors.As(o.err, &ended) {
		o.err = s.broken(ctx, fmt.Sprintf("%.200q did not run to its end", command), o.err)
	}
	return o.res, o.err
}

func (s *Session) run(ctx context.Context, command string, stdin io.Reader) (Result, error) {
	res := Result{ExitCode: -1}
	session, err := s.client.NewSession()
	if err != nil {
		return res, err
	}
	defer session.Close()
	defer context.AfterFunc(ctx, func() { session.Close() })()
	stdout, stderr := &capture{limit: 16 << 20}, &capture{limit: 16 << 20}
	session.Stdout, session.Stderr = stdout, stderr
	if stdin != nil {
		// The session's own copying would report a command that did not read all of its input as failed.
		pipe, err := session.StdinPipe()
		if err != nil {
			return res, err
		}
		go func() {
			_, _ = io.Copy(pipe, stdin)
			pipe.Close()
		}()
	}
	err = session.Run(command)
	res.Stdout, res.Stderr = stdout.bytes(), stderr.bytes()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		res.ExitCode = 0
	case errors.As(err, &exit):
		res.ExitCode, res.ExitSignal = exit.ExitStatus(), exit.Signal()
		last := res.Stderr[max(0, len(res.Stderr)-2<<10):]
		err = &RunError{Command: command, ExitCode: res.ExitCode, ExitSignal: res.ExitSignal, Stderr: string(last)}
	}
	return res, err
}

// Upload copies a file of this machine to an absolute path in the workspace and gives it the mode's permission bits. The file is there
// under its name only when it has arrived whole. The guest needs a shell with cat, chmod, wc and mv.
func (s *Session) Upload(ctx context.Context, localPath, remotePath string, mode fs.FileMode) error {
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
	if _, err := s.Run(ctx, script, f); err != nil {
		return fmt.Errorf("upload %s to %s: %w", localPath, remotePath, err)
	}
	return nil
}

// Alive checks that the session answers: a fresh nonce comes back.
func (s *Session) Alive(ctx context.Context) error {
	nonce := rand.Text()
	res, err := s.Run(ctx, "echo "+nonce, nil)
	if err == nil && string(res.Stdout) != nonce+"\n" {
		err = fmt.Errorf("expected %q from an echo, seen %s", nonce, shown(res.Stdout))
	}
	if err != nil {
		return fmt.Errorf("the SSH session is not healthy: %w", err)
	}
	return nil
}

// Done is closed once the session's command has died, which ends the session.
func (s *Session) Done() <-chan struct{} { return s.process.Done() }

// Close hangs up and waits for the command to end. The error says that it did not end by itself within proc.Grace of that, and was
// ended. Closing again gives the same answer.
func (s *Session) Close() error {
	s.closing.Do(func() {
		s.client.Close()
		select {
		case <-s.process.Done():
		case <-time.After(proc.Grace):
			s.process.Stop()
			s.closed = fmt.Errorf("%s still ran %s after its standard input was closed, and was ended; its last words: %q",
				s.verb, proc.Grace, s.stderr.bytes())
		}
	})
	return s.closed
}

// broken makes the error of a connection that failed: with why its command ended, or else with what it said so far.
func (s *Session) broken(ctx context.Context, what string, err error) error {
	select {
	case <-s.process.Done():
	case <-ctx.Done():
	case <-time.After(settle):
	}
	select {
	case <-s.process.Done():
		if _, ended := s.process.Wait(); ended != nil {
			return fmt.Errorf("%s: %s: %w; %w", s.verb, what, err, ended)
		}
		return fmt.Errorf("%s: %s: %w; the command has exited with code 0", s.verb, what, err)
	default:
	}
	if said := s.stderr.bytes(); len(said) > 0 {
		return fmt.Errorf("%s: %s: %w; its last words: %q", s.verb, what, err, said)
	}
	return fmt.Errorf("%s: %s: %w", s.verb, what, err)
}

// pipes is a command's standard output and input as one stream.
type pipes struct {
	*bufio.Reader
	io.Writer
	in, out *os.File
}

func (p *pipes) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

// capture keeps the first limit bytes written to it, or the last.
type capture struct {
	limit int
	last  bool

	mu  sync.Mutex
	buf []byte
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last {
		c.buf = append(c.buf, b...)
		c.buf = c.buf[max(0, len(c.buf)-c.limit):]
	} else {
		c.buf = append(c.buf, b[:min(len(b), c.limit-len(c.buf))]...)
	}
	return len(b), nil
}

func (c *capture) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.buf...)
}
