package reference

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/reference/remote"
)

// agentName is the command of the agent.
const agentName = "agent"

// agentRequest is what the agent on a remote machine is asked for: one line of JSON on its standard input. Its folders are below DEVSY_HOME
// or HOME there.
type agentRequest struct {
	Do        string            `json:"do"`
	Workspace string            `json:"workspace"` // its id
	Manifest  string            `json:"manifest"`  // the provider.yaml that it is of
	Options   map[string]string `json:"options"`
}

// What an agent can be asked for. It answers when it has done that. With a runtime, its standard input and output are then a connection
// to that, until one end closes it.
const (
	doInstall = "install" // bring the runtime to the machine if it is not there, and start it
	doStart   = "start"   // start the runtime that is there
	doRemove  = "remove"  // remove the workspace's folder
)

var errLost = errors.New("the other end of the connection is gone")

// agentCommand is the agent: what this program is on a remote machine.
func agentCommand() *cobra.Command {
	var probe bool
	c := verb(agentName, "Serve one request of a CLI on another machine, over standard input and output", cobra.NoArgs,
		func(ctx context.Context, c *cobra.Command, _ []string) error {
			if probe {
				return nil
			}
			// A write to a CLI that has gone is an error then, and does not end this process before the runtime was ended.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			return serveAgent(ctx, bufio.NewReaderSize(c.InOrStdin(), 64<<10), c.OutOrStdout())
		})
	c.Hidden = true
	c.Flags().BoolVar(&probe, "probe", false, "do nothing: this program runs here")
	return c
}

// serveAgent serves one request. Whatever it has begun ends when nobody is at the other end any more.
func serveAgent(ctx context.Context, in *bufio.Reader, out io.Writer) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun := make(chan struct{})
	go func() { // nothing comes before the answer, save the end
		defer close(begun)
		if _, err := in.Peek(1); err != nil {
			cancel(errLost)
		}
	}()
	e, err := obey(ctx, line)
	if err != nil {
		return errors.Join(respond(out, remote.Answer{Agent: remote.Failed, Why: hostname() + ": " + err.Error()}), &Exit{exitFailure})
	}
	if e == nil {
		return respond(out, remote.Answer{Agent: remote.Ready})
	}
	defer release(e)
	conn, err := e.running.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := respond(out, remote.Answer{Agent: remote.Ready}); err != nil {
		return err
	}
	select {
	case <-begun:
	case <-ctx.Done():
	}
	if ctx.Err() != nil || !relay(ctx, conn, in, out) {
		return nil // the CLI has what it wanted, or is gone
	}
	if how, ended := e.running.Ended(); ended {
		return fmt.Errorf("%s: the runtime ended: %w", hostname(), how)
	}
	return errors.New("the runtime has closed its connection")
}

// obey does what a request says, and gives the runtime that runs then, if one does.
func obey(ctx context.Context, line []byte) (*external, error) {
	var r agentRequest
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	s, err := openState()
	if err != nil {
		return nil, err
	}
	s = agentState(s)
	if err := checkName("workspace id", r.Workspace); err != nil {
		return nil, err
	}
	if r.Do == doRemove {
		return nil, s.removeAgent(r.Workspace)
	}
	m, err := manifest.Parse([]byte(r.Manifest))
	if err != nil {
		return nil, err
	}
	e, err := s.openExternal(r.Workspace, m, r.Options)
	if err != nil {
		return nil, err
	}
	e.store.Cache = agentCache(s, e.store.Cache)
	switch r.Do {
	case doInstall:
		return e, s.bring(ctx, r.Workspace, e)
	case doStart:
		_, err = e.runtime(ctx)
		return e, err
	}
	return nil, fmt.Errorf("unknown request %q", r.Do)
}

// bring installs a workspace's runtime and starts it. What came to nothing leaves nothing.
func (s state) bring(ctx context.Context, id string, e *external) error {
	_, before := os.Lstat(e.store.Dir)
	e.log = os.Stderr
	err := misbehavingInstall(ctx, e)
	if err == nil {
		_, err = e.runtime(ctx)
	}
	if err != nil && errors.Is(before, fs.ErrNotExist) {
		err = errors.Join(err, s.removeAgent(id))
	}
	return err
}

// removeAgent removes what the agent has for a workspace. The records of a CLI on this machine may be in the same folder.
func (s state) removeAgent(id string) error {
	if err := os.RemoveAll(filepath.Join(s.workspaceDir(id), "agent")); err != nil {
		return err
	}
	err := os.Remove(s.workspaceDir(id))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil
	}
	return err
}

// relay carries bytes both ways until one end is closed, or ctx is done, and tells whether that was the runtime's.
func relay(ctx context.Context, conn net.Conn, in io.Reader, out io.Writer) (byRuntime bool) {
	asked, answered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = io.Copy(conn, in)
	}()
	go func() {
		defer close(answered)
		_, _ = io.Copy(out, conn)
	}()
	select {
	case <-asked:
	case <-ctx.Done():
	case <-answered:
		return true
	}
	return false
}

func respond(out io.Writer, a remote.Answer) error {
	text, err := json.Marshal(a)
	if err == nil {
		_, err = out.Write(append(text, '\n'))
	}
	return err
}

// hostname names this machine in errors.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "the remote"
	}
	return name
}
