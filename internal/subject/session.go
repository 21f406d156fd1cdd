package subject

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/sshclient"
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
	client  *sshclient.Client
	process *proc.Process
	stderr  *lastWords
	closing sync.Once
	closed  error
}

// settle is how long a command has to end once its connection broke, so that the error can say why.
const settle = 2 * time.Second

// Dial opens a session to a workspace as a user of the guest's: the one that up reported. The
// context bounds the opening only; the session then stays until Close, or until its command dies.
// Bytes before the SSH banner are a *ContractError.
func (c CLI) Dial(ctx context.Context, id, user string) (*Session, error) {
	s := &Session{verb: "workspace ssh " + id + " --stdio", stderr: &lastWords{}}
	cmd := c.cmd(adapter.Args(c.adapter().Commands[adapter.Stdio].Run, map[string]string{"id": id}, nil)...)
	started := time.Now()
	stream, err := s.start(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.verb, err)
	}
	go func() {
		res, err := s.process.Wait()
		res.Stderr = s.stderr.bytes() // standard output is the SSH connection
		c.record(cmd.Argv, started, res, err)
	}()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	err = s.handshake(stream, user)
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
		s.client.Connection.Close() // a child that the command left may hold the pipes open
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

func (s *Session) handshake(p *pipes, user string) error {
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
	config := sshserver.ClientConfig(func(_ string, _ net.Addr, key ssh.PublicKey) error {
		s.HostKey = key
		return nil
	})
	config.User = user
	conn, channels, requests, err := ssh.NewClientConn(sshserver.Conn(p), s.verb, config)
	if err != nil {
		return err
	}
	s.client = &sshclient.Client{Connection: ssh.NewClient(conn, channels, requests), Where: "in the workspace"}
	return nil
}

// Result is what a command that ran over a session left.
type Result = sshclient.Result

// RunError is the error of a command that ran to its end over a healthy session and did not exit with 0. Any other error of Run is the
// connection's or the context's.
type RunError = sshclient.RunError

// Run runs a shell command in the workspace; a nil stdin is empty. When ctx is done it returns at once and closes the command's
// channel, which ends the command; the session stays. A stdin whose Read blocks for ever keeps a goroutine.
func (s *Session) Run(ctx context.Context, command string, stdin io.Reader) (Result, error) {
	res, err := s.client.Run(ctx, command, stdin)
	return res, s.explain(ctx, fmt.Sprintf("%.200q did not run to its end", command), err)
}

// Upload copies a file of this machine to an absolute path in the workspace and gives it the mode's permission bits. The file is there
// under its name only when it has arrived whole. The guest needs a shell with cat, chmod, wc and mv.
func (s *Session) Upload(ctx context.Context, localPath, remotePath string, mode fs.FileMode) error {
	return s.explain(ctx, "the upload did not come to its end", s.client.Upload(ctx, localPath, remotePath, mode))
}

// Alive checks that the session answers: a fresh nonce comes back.
func (s *Session) Alive(ctx context.Context) error {
	return s.explain(ctx, "the SSH session is not healthy", s.client.Alive(ctx))
}

// explain makes an error of the session's own, unless it is a command's or a file's.
func (s *Session) explain(ctx context.Context, what string, err error) error {
	if !sshclient.Broke(err) {
		return err
	}
	return s.broken(ctx, what, err)
}

// Done is closed once the session's command has died, which ends the session.
func (s *Session) Done() <-chan struct{} { return s.process.Done() }

// hangUp is how long a session's command has to end once its standard input is closed: a CLI with a
// large agent needs seconds for it on a busy machine.
const hangUp = 30 * time.Second

// Close hangs up and waits for the command to end. The error says that it did not end by itself
// within hangUp of that, and was ended. Closing again returns the same error.
func (s *Session) Close() error {
	s.closing.Do(func() {
		s.client.Connection.Close()
		select {
		case <-s.process.Done():
		case <-time.After(hangUp):
			s.process.Stop()
			s.closed = fmt.Errorf("%s still ran %s after its standard input was closed, and was ended; its last words: %q",
				s.verb, hangUp, s.stderr.bytes())
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

// lastWords keeps the last bytes written to it.
type lastWords struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastWords) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const keep = 4 << 10
	l.buf = append(l.buf, b...)
	l.buf = l.buf[max(0, len(l.buf)-keep):]
	return len(b), nil
}

func (l *lastWords) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]byte(nil), l.buf...)
}
