package runtimeclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin/runner"

	"dagger/parity/internal/proc"
)

// drain is how long the handshake's pipe may stay open once the runtime has exited: something that it left behind may hold it.
const drain = 2 * time.Second

// process is a runtime's process, as go-plugin drives one. It is in a process group of its own, so that a signal to the host's group
// (a Ctrl-C) does not end it in the middle of a call, and it is killed when the host dies.
type process struct {
	cmd    proc.Cmd
	stdout handshakeReader
	stderr proc.Tail
	log    io.Writer // gets what stderr gets

	mu      sync.Mutex
	running *proc.Process
	ended   bool // it is to start no more
}

var _ runner.Runner = (*process)(nil)

// Start implements runner.Runner.
func (p *process) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		r.Close()
		return context.Canceled
	}
	p.cmd.Stdout, p.cmd.Stderr = w, p.words()
	if p.running, err = proc.Start(context.Background(), p.cmd); err != nil {
		r.Close()
		return err
	}
	p.stdout = handshakeReader{File: r, done: p.running.Done()}
	go func() {
		<-p.running.Done()
		_ = r.SetReadDeadline(time.Now().Add(drain))
	}()
	return nil
}

// words is where what the runtime says of itself goes.
func (p *process) words() io.Writer {
	if p.log == nil {
		return &p.stderr
	}
	return io.MultiWriter(&p.stderr, p.log)
}

// Stdout implements runner.Runner.
func (p *process) Stdout() io.ReadCloser { return &p.stdout }

// Stderr implements runner.Runner: what the process writes to standard error is kept here, and go-plugin gets none of it.
func (p *process) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Wait implements runner.Runner.
func (p *process) Wait(context.Context) error {
	_, err := p.running.Wait()
	return err
}

// Kill implements runner.Runner: it ends the process group.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	running := p.running
	if running == nil {
		p.ended = true
		p.mu.Unlock()
		return nil
	}
	select {
	case <-running.Done(): // it ended by itself
	default:
		p.ended = true
	}
	p.mu.Unlock()
	running.Stop()
	return nil
}

// ID implements runner.Runner.
func (p *process) ID() string {
	if p.running == nil {
		return ""
	}
	return strconv.Itoa(p.running.PID())
}

// Name implements runner.Runner.
func (p *process) Name() string { return p.cmd.Argv[0] }

// Diagnose implements runner.Runner.
func (p *process) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner.
func (p *process) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin implements runner.Runner.
func (p *process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// crashed says how the process ended, if it has ended although nobody asked it to.
func (p *process) crashed() (how error, ended bool) {
	p.mu.Lock()
	running, asked := p.running, p.ended
	p.mu.Unlock()
	if running == nil || asked {
		return nil, false
	}
	select {
	case <-running.Done():
		_, how = running.Wait()
		var failed *proc.Error
		switch {
		case how == nil:
			how = errors.New("the runtime exited with code 0")
		case errors.As(how, &failed): // what it wrote to standard error came here in two ways
			all := *failed
			all.Stderr = p.stderr.String()
			how = &all
		}
		return how, true
	default:
		return nil, false
	}
}

// endRest ends what a process that has crashed left in its group.
func (p *process) endRest() {
	if _, ended := p.crashed(); ended {
		_ = p.running.Signal(syscall.SIGKILL)
	}
}

// handshakeReader is what the process says on standard output. Its end is seen once the process was reaped, if that is why it ended:
// whoever sees it can ask how.
type handshakeReader struct {
	*os.File
	done <-chan struct{}

	mu   sync.Mutex
	line []byte // the beginning of the first line
}

func (r *handshakeReader) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	wait := time.Duration(0)
	r.mu.Lock()
	if len(r.line) < maxLine && !bytes.Contains(r.line, []byte("\n")) {
		r.line = append(r.line, b[:n]...)
		if n > 0 && bytes.Count(r.line, []byte("|")) < 3 {
			wait = lastWords
		}
	}
	r.mu.Unlock()
	if err != nil {
		wait, err = drain, io.EOF
	}
	if wait > 0 {
		select {
		case <-r.done:
		case <-time.After(wait):
		}
	}
	return n, err
}

const maxLine = 1 << 10

// lastWords is how long a program that says something else than a handshake has to say why and end, before it is ended for it.
const lastWords = 300 * time.Millisecond

// first gives the first line, and whether there was any.
func (r *handshakeReader) first() (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line, _, _ := bytes.Cut(r.line[:min(len(r.line), maxLine)], []byte("\n"))
	return string(bytes.TrimSpace(line)), len(r.line) > 0
}
