// Package remote reaches another machine through a shell command of the user's, such as ssh: it brings an executable there, the agent,
// starts it, and carries what is said to it.
package remote

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // agent.sh
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/sshserver"
)

// Machine is another machine.
type Machine struct {
	Provider string    // what names the machine in errors: the provider
	Command  string    // a shell command of this machine's that runs the one in its variable COMMAND on the other, and passes streams and exit code
	Env      []string  // the environment of Command, which gets COMMAND too
	Log      io.Writer // what Command says on standard error, for people; nil is nobody. The last of it is in errors in any case
	Agent    Agent
}

// Agent is the executable that the other machine is to have.
type Agent struct {
	File  string        // on this machine
	Path  string        // on the other; absolute
	URL   string        // where the other machine may download it from: below that, as devsy-linux-<arch>. Empty: from nowhere
	Stall time.Duration // how long nothing may come of a download: 30 s
	Args  []string      // it is started with them; with --probe after them it only shows that it runs
	Env   []string      // KEY=VALUE; it is started with that in its environment too
}

// What may take how long.
const (
	stall         = 30 * time.Second
	bringDeadline = 15 * time.Minute // the agent over a slow line
	closeGrace    = 10 * time.Second // the agent's end once nobody speaks to it any more
	endPatience   = 5 * time.Second  // the end of Command once the connection broke
	maxAnswer     = 64 << 10
)

// The answers of the other machine, the agent's and agent.sh's.
const (
	Ready   = "ready"  // the agent: what comes now is the conversation
	Failed  = "failed" // the agent: it could not do what the request says
	missing = "missing"
	kept    = "kept"
	placed  = "placed"
	send    = "send"
)

// Answer is the first line that comes from the other machine, in JSON.
type Answer struct {
	Agent string `json:"agent"`
	Why   string `json:"why,omitempty"`
}

var errMissing = errors.New("the agent is not there")

// Session is the agent, at work: a connection to it. It is a runtimeclient.Way.
type Session struct {
	net.Conn
	machine Machine
	process *proc.Process
}

// Start brings the agent to the machine if it is not there, starts it, and sends it a request, which is one line. It gives the session once the
// agent has answered that it is ready. When ctx is done before that, the agent is ended.
func (m Machine) Start(ctx context.Context, request []byte) (*Session, error) {
	s, err := m.open(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("the remote of the provider %q: %w", m.Provider, err)
	}
	return s, nil
}

func (m Machine) open(ctx context.Context, request []byte) (*Session, error) {
	sum, err := sumOf(m.Agent.File)
	if err != nil {
		return nil, fmt.Errorf("the agent for it: %w", err)
	}
	s, err := m.launch(ctx, sum, request)
	if !errors.Is(err, errMissing) {
		return s, err
	}
	if err := m.bring(ctx, sum); err != nil {
		return nil, err
	}
	if s, err = m.launch(ctx, sum, request); errors.Is(err, errMissing) {
		err = fmt.Errorf("expected the agent at %s, where it was just put; does something else put another one there? %w", m.Agent.Path, err)
	}
	return s, err
}

// launch starts the agent that is there.
func (m Machine) launch(ctx context.Context, sum string, request []byte) (*Session, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirIn.Close()
	out, theirOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer theirOut.Close()
	// Not with ctx: the agent ends what it does by itself, in order, once its input is closed.
	process, err := m.start(context.Background(), m.script("launch", sum), theirIn, theirOut)
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	theirIn.Close()
	theirOut.Close()
	s := &Session{machine: m, process: process}
	stream := &stream{Reader: bufio.NewReaderSize(out, maxAnswer), in: in, out: out}
	unwatch := context.AfterFunc(ctx, func() { stream.Close() })
	_, _ = in.Write(append(request, '\n')) // who does not take it says why
	answer, err := s.answer(stream.Reader)
	if !unwatch() {
		err = ctx.Err()
	}
	s.Conn = sshserver.Conn(stream)
	switch {
	case err != nil:
	case answer.Agent == Ready:
		return s, nil
	case answer.Agent == missing:
		err = errMissing
	default:
		err = errors.New(answer.Why)
	}
	s.Close()
	return nil, err
}

// answer reads the agent's answer.
func (s *Session) answer(from *bufio.Reader) (a Answer, err error) {
	line, err := from.ReadSlice('\n')
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) && len(line) == 0 {
		how, _ := s.Ended()
		return a, how
	}
	return parse(line)
}

func parse(line []byte) (a Answer, err error) {
	if err := json.Unmarshal(line, &a); err != nil || a.Agent == "" {
		return a, fmt.Errorf("expected an answer of the agent, seen %.200q: exec.command must print nothing of its own, nor may the start "+
			"files of the shell there", line)
	}
	return a, nil
}

// Ended waits a moment for the end of the way to the agent, and says how it ended.
func (s *Session) Ended() (how error, ended bool) {
	select {
	case <-s.process.Done():
	case <-time.After(endPatience):
		return errors.New("exec.command has closed its output and goes on"), false
	}
	if _, err := s.process.Wait(); err != nil {
		return s.machine.explained(err), true
	}
	return errors.New("the connection to the agent was closed; exec.command ended with code 0"), true
}

// Close ends the agent: by closing its input, or else by ending Command.
func (s *Session) Close() error {
	err := s.Conn.Close()
	select {
	case <-s.process.Done():
	case <-time.After(closeGrace):
		s.process.Stop()
	}
	return err
}

// bring puts the agent on the machine.
func (m Machine) bring(ctx context.Context, sum string) error {
	ctx, cancel := context.WithTimeout(ctx, bringDeadline)
	defer cancel()
	held, hold, err := os.Pipe() // as long as it is open, somebody waits
	if err != nil {
		return err
	}
	defer held.Close()
	defer context.AfterFunc(ctx, func() { hold.Close() })()
	defer hold.Close()
	answer, err := m.ask(ctx, m.script("fetch", sum), held)
	if err == nil && answer.Agent == send {
		m.say("the agent is sent from here, it was not downloaded there: %s", answer.Why)
		file, openErr := os.Open(m.Agent.File)
		if openErr != nil {
			return openErr
		}
		defer file.Close()
		answer, err = m.ask(ctx, m.script("receive", sum), file)
	}
	switch {
	case err != nil:
		return fmt.Errorf("bring the agent there: %w", err)
	case answer.Agent == placed:
		m.say("the agent was put at %s", m.Agent.Path)
	case answer.Agent != kept:
		return fmt.Errorf("bring the agent there: unexpected answer %q", answer.Agent)
	}
	return nil
}

// ask runs something on the machine that ends with an answer.
func (m Machine) ask(ctx context.Context, argv []string, in io.Reader) (a Answer, err error) {
	p, err := m.start(ctx, argv, in, nil)
	if err != nil {
		return a, err
	}
	res, err := p.Wait()
	if err != nil {
		return a, m.explained(err)
	}
	return parse(res.Stdout)
}

// script is the command that runs agent.sh on the machine.
func (m Machine) script(mode, sum string) []string {
	url := m.Agent.URL
	if url != "" {
		url = strings.TrimSuffix(url, "/") + "/devsy-linux-" + runtime.GOARCH
	}
	seconds := strconv.Itoa(int(max(time.Second, cmp.Or(m.Agent.Stall, stall)) / time.Second))
	argv := []string{"/bin/sh", "-c", agentScript, "sh", mode, m.Agent.Path, sum, runtime.GOARCH, url, seconds}
	if len(m.Agent.Env) > 0 {
		argv = append(append([]string{"env"}, m.Agent.Env...), argv...)
	}
	return append(argv, m.Agent.Args...)
}

//go:embed agent.sh
var agentScript string

// start runs a command on the machine.
func (m Machine) start(ctx context.Context, argv []string, in io.Reader, out io.Writer) (*proc.Process, error) {
	env := append(m.Env[:len(m.Env):len(m.Env)], "COMMAND="+shellescape.QuoteCommand(argv))
	p, err := proc.Start(ctx, proc.Cmd{Argv: []string{"/bin/sh", "-c", m.Command}, Env: env, Stdin: in, Stdout: out, Stderr: m.words()})
	return p, m.explained(err)
}

func (m Machine) words() io.Writer {
	if m.Log == nil {
		return io.Discard
	}
	return m.Log
}

func (m Machine) say(format string, values ...any) { fmt.Fprintf(m.words(), format+"\n", values...) }

// explained is the error of exec.command as it may be shown: the command is not, as it may hold a password.
func (m Machine) explained(err error) error {
	var failed *proc.Error
	if !errors.As(err, &failed) {
		return err
	}
	shown := *failed
	shown.Argv = []string{"exec.command"}
	return &shown
}

// stream is the agent's standard input and output.
type stream struct {
	*bufio.Reader
	in, out *os.File
}

func (s *stream) Write(b []byte) (int, error) { return s.in.Write(b) }
func (s *stream) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
