package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/reference/remote"
	"dagger/parity/internal/runtimeclient"
)

// there is a workspace whose runtime, and so its machine, is on a remote machine: the agent brings the runtime there and starts it, and carries
// the runtime protocol between it and this process. Only the record of the workspace is here.
type there struct {
	machine remote.Machine
	request agentRequest
	install bool // the runtime is brought there when it is started
}

// agentURL is the environment variable with the folder from which a remote may download the agent.
const agentURL = "DEVSY_AGENT_URL"

// openThere gives the driver of a workspace whose provider runs it on a remote machine. That is not spoken to yet.
func openThere(w workspace, m *manifest.Manifest, options map[string]string) (*external, error) {
	if err := checkOptions(m, options); err != nil {
		return nil, err
	}
	url := m.Agent.URL
	if url == "" {
		if url = os.Getenv(agentURL); url != "" {
			if err := manifest.CheckDownloadURL(agentURL, url); err != nil {
				return nil, err
			}
		}
	}
	t := &there{
		machine: remote.Machine{
			Provider: w.Provider.Name,
			Command:  m.Exec,
			Env:      runtimeEnviron(os.Environ(), m.Options, options),
			Agent: remote.Agent{
				File: "/proc/self/exe", // the agent is this program
				Path: m.Agent.Path,
				URL:  url,
				Args: []string{"devsy", agentName},
				Env:  fault.Environ(),
			},
		},
		request: agentRequest{Workspace: w.ID, Manifest: string(m.Source), Options: options},
	}
	return &external{there: misbehaveThere(t)}, nil
}

// start starts the runtime there.
func (t *there) start(ctx context.Context, log io.Writer) (*runtimeclient.Runtime, error) {
	request := t.request
	request.Do = doStart
	if t.install {
		request.Do = doInstall
	}
	s, err := t.call(ctx, request, log)
	if err != nil {
		return nil, err
	}
	r, err := runtimeclient.Attach(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("the remote of the provider %q: %w", t.machine.Provider, err)
	}
	return r, nil
}

func (t *there) call(ctx context.Context, r agentRequest, log io.Writer) (*remote.Session, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	m := t.machine
	m.Log = log
	return m.Start(ctx, text)
}

// buildsHere refuses what cannot be done for a workspace on a remote machine: what is built on this one does not get there.
func buildsHere(d driver.Driver) error {
	if e, ok := d.(*external); ok && e.there != nil {
		return errors.New("a Dockerfile and Features are not supported on a remote machine: build the image, push it to a registry " +
			"that the remote reaches, and name it in devcontainer.json as image")
	}
	return nil
}

// removeThere removes what the agent keeps for a workspace on a remote machine, if the workspace is on one. The runtime is ended before that.
func removeThere(ctx context.Context, d driver.Driver) error {
	e, ok := d.(*external)
	if !ok || e.there == nil {
		return nil
	}
	release(e)
	request := e.there.request
	request.Do = doRemove
	s, err := e.there.call(ctx, request, e.log)
	if err != nil {
		return err
	}
	return s.Close()
}

// forgetThere is forget, for what is on a remote machine, once an up has failed: without a record nobody would remove it.
func (s state) forgetThere(ctx context.Context, id string, d driver.Driver, failed error) error {
	if _, err := s.workspace(id); failed == nil || !errors.Is(err, errNoRecord) {
		return nil
	}
	return removeThere(ctx, d)
}
