// Package customdriver runs workspaces on MicroSandbox for a workspace CLI that calls a program for
// each step: `driver: custom` of DevPod, and of Devsy. The CLI says in the environment what it wants.
package customdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/driver"
)

// The variables in which a CLI says what it wants.
const (
	envID      = "DEVCONTAINER_ID"          // of every command: the workspace's id
	envOptions = "DEVCONTAINER_RUN_OPTIONS" // of run: JSON
	envUser    = "DEVCONTAINER_USER"        // of exec: as whom; empty is the image's user
	envCommand = "DEVCONTAINER_COMMAND"     // of exec: a shell command
)

// Driver serves one call.
type Driver struct {
	driver    msbdriver.Driver
	workspace string
	getenv    func(string) string
}

// New returns a driver for the call that this process's environment describes. log is told what becomes
// of images. An error says which variable is wrong.
func New(log io.Writer) (*Driver, error) {
	d := &Driver{getenv: os.Getenv, workspace: os.Getenv(envID)}
	if d.workspace == "" {
		return nil, fmt.Errorf("%s is not set: a workspace CLI with `driver: custom` sets it; see docs/driver.md", envID)
	}
	d.driver.Log = log
	var err error
	if d.driver.MSB, err = msbdriver.Locate(); err != nil {
		return nil, err
	}
	return d, nil
}

// details is what a CLI reads of a machine.
type details struct {
	ID      string
	Created string
	State   struct{ Status, StartedAt string }
	Config  struct{ Labels map[string]string }
}

// Find prints the workspace's machine as JSON; nothing if there is none.
func (d *Driver) Find(ctx context.Context, w io.Writer) error {
	m, found, err := d.driver.Find(ctx, d.workspace)
	if err != nil || !found {
		return err
	}
	var said details
	said.ID, said.Created = m.ID, m.CreatedAt.UTC().Format(time.RFC3339Nano)
	said.State.StartedAt = said.Created
	if said.State.Status = "exited"; m.Running {
		said.State.Status = "running"
	}
	if said.Config.Labels, err = d.labels(); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(said)
}

// runOptions are what a CLI asks for. Bind mounts are left to it: it carries the files itself.
type runOptions struct {
	Image      string            `json:"image"`
	User       string            `json:"user"`
	Env        map[string]string `json:"env"`
	Labels     []string          `json:"labels"`
	Privileged *bool             `json:"privileged"`
	Mounts     []struct {
		Type   string `json:"type"`
		Target string `json:"target"`
	} `json:"mounts"`
}

// Run makes the workspace's machine and starts it. The environment has the options of MicroSandbox, such
// as MICROSANDBOX_BLOCK_EGRESS: a value that is none is an error.
func (d *Driver) Run(ctx context.Context) (err error) {
	var o runOptions
	if err := json.Unmarshal([]byte(d.getenv(envOptions)), &o); err != nil {
		return fmt.Errorf("%s: expected JSON with an image, seen %.100q: %w", envOptions, d.getenv(envOptions), err)
	}
	for _, m := range o.Mounts {
		if m.Type == "volume" {
			return fmt.Errorf("a volume for %s was asked for: this driver has no volumes; remove the mount from devcontainer.json", m.Target)
		}
	}
	if d.driver.Options, err = msbdriver.ParseEnvironment(os.Environ()); err != nil {
		return err
	}
	labels := map[string]string{}
	for _, l := range o.Labels {
		name, value, _ := strings.Cut(l, "=")
		labels[name] = value
	}
	if err := d.keep(labels); err != nil {
		return err
	}
	options := driver.RunOptions{Image: o.Image, User: o.User, Environment: o.Env}
	_, err = d.driver.Run(ctx, d.workspace, options)
	if errors.Is(err, driver.ErrExists) {
		if err = d.replaceable(ctx, err); err == nil {
			_, err = d.driver.Run(ctx, d.workspace, options)
		}
	}
	if err != nil && !errors.Is(err, driver.ErrExists) {
		err = errors.Join(err, d.forget())
	}
	return err
}

// replaceable removes a machine that is to be made anew, and returns nil: a CLI that recreates a workspace
// stops its machine, and then runs another one. A machine that runs is not touched: exists is returned.
func (d *Driver) replaceable(ctx context.Context, exists error) error {
	m, found, err := d.driver.Find(ctx, d.workspace)
	switch {
	case err != nil:
		return err
	case found && m.Running:
		return exists
	}
	return d.driver.Delete(ctx, d.workspace)
}

// Start starts the workspace's machine.
func (d *Driver) Start(ctx context.Context) error { return d.driver.Start(ctx, d.workspace) }

// Stop stops it. That there is none is no error: a CLI that recreates a workspace stops it first, whether
// there is a machine or not.
func (d *Driver) Stop(ctx context.Context) error {
	if err := d.driver.Stop(ctx, d.workspace); !errors.Is(err, driver.ErrNotFound) {
		return err
	}
	return nil
}

// Delete removes it. That there is none is no error.
func (d *Driver) Delete(ctx context.Context) error {
	return errors.Join(d.driver.Delete(ctx, d.workspace), d.forget())
}

// Exec runs the command that the CLI asks for in the machine, and returns its exit code.
func (d *Driver) Exec(ctx context.Context, s driver.Streams) (int, error) {
	command := d.getenv(envCommand)
	if command == "" {
		return 0, fmt.Errorf("%s is not set: expected a shell command", envCommand)
	}
	return d.driver.ExecAs(ctx, d.workspace, msb.ExecOptions{User: d.getenv(envUser)}, []string{"/bin/sh", "-c", command}, s)
}

// Architecture is that of the machines.
func Architecture() string { return runtime.GOARCH }

// A CLI keeps texts of any length in labels, so they are in a file beside MicroSandbox's store.

func (d *Driver) labelFile() string {
	return filepath.Join(d.driver.MSB.Home, "parity-driver", msbdriver.Name(d.workspace)+".json")
}

func (d *Driver) labels() (labels map[string]string, err error) {
	text, err := os.ReadFile(d.labelFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &labels)
	}
	return labels, err
}

func (d *Driver) keep(labels map[string]string) error {
	text, err := json.Marshal(labels)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.labelFile()), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(d.labelFile(), text, 0o600)
}

func (d *Driver) forget() error {
	if err := os.Remove(d.labelFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
