// Package customdriver runs the workspaces of a CLI that has a custom driver, such as DevPod or
// Devsy, as MicroSandbox machines. Such a CLI runs one command for each thing that it wants of a
// workspace. The environment of the command says which workspace and what.
package customdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/driver"
)

// The variables by which a CLI says what it wants.
const (
	EnvID         = "DEVCONTAINER_ID"          // which workspace
	EnvRunOptions = "DEVCONTAINER_RUN_OPTIONS" // what to run: RunOptions in JSON
	EnvUser       = "DEVCONTAINER_USER"        // who runs the command
	EnvCommand    = "DEVCONTAINER_COMMAND"     // the command, for a shell
)

// guestLog is where the words of a machine's own command are, in the machine.
const guestLog = "/run/parity-driver.log"

// cleanupDeadline bounds the removal of what a failed run left.
const cleanupDeadline = time.Minute

// Driver runs the machines of one MSB_HOME.
type Driver struct {
	machines     msbdriver.Driver
	states       states
	log          io.Writer
	wrongOptions error // no machine can be made with them; one that is there can still be deleted
}

// New gives a driver that is configured by an environment: MicroSandbox as package msbdriver finds
// it, MSB_HOME being msb's own default if it is not set, and the options of the machines that are
// made. Log is told of what becomes of images.
func New(environ []string, log io.Writer) (Driver, error) {
	if os.Getenv("MSB_HOME") == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return Driver{}, fmt.Errorf("MSB_HOME is not set, and there is no home folder for its default: %w", err)
		}
		if err := os.Setenv("MSB_HOME", filepath.Join(home, ".microsandbox")); err != nil {
			return Driver{}, err
		}
	}
	client, err := msbdriver.Locate()
	if err != nil {
		return Driver{}, err
	}
	d := Driver{machines: msbdriver.Driver{MSB: client, Log: log}, states: states{filepath.Join(client.Home, "parity-driver")}, log: log}
	d.machines.Options, d.wrongOptions = msbdriver.ParseEnvironment(environ)
	return d, nil
}

// Details is what a CLI reads of a workspace's machine.
type Details struct {
	ID      string
	Created string // RFC 3339
	State   State
	Config  Config
}

// State is a machine's state.
type State struct {
	Status    string // running or exited
	StartedAt string // another one after each start
}

// Config is what a machine was made with.
type Config struct {
	Labels map[string]string
	User   string
}

// Find looks for a workspace's machine. One that is absent is nil and no error.
func (d Driver) Find(ctx context.Context, id string) (*Details, error) {
	m, found, err := d.machines.Find(ctx, id)
	if err != nil || !found {
		return nil, err
	}
	s, err := d.states.read(m.ID)
	if err != nil {
		return nil, err
	}
	details := &Details{ID: m.ID, Created: m.CreatedAt.Format(time.RFC3339Nano), Config: Config{Labels: s.Labels, User: m.User}}
	details.State.Status = "exited"
	if m.Running {
		details.State.Status = "running"
	}
	started := s.StartedAt
	if started.IsZero() {
		started = m.CreatedAt
	}
	details.State.StartedAt = started.Format(time.RFC3339Nano)
	return details, nil
}

// Run makes a workspace's machine in place of the one that there may be, which stays until the
// image is there, and starts what the options want to be run in it. A machine that cannot be made
// ready is removed again.
func (d Driver) Run(ctx context.Context, id string, o RunOptions) error {
	if d.wrongOptions != nil {
		return fmt.Errorf("%w; set it right with the CLI's options of the provider", d.wrongOptions)
	}
	if err := o.check(); err != nil {
		return err
	}
	if given := o.privileges(); len(given) > 0 {
		fmt.Fprintf(d.log, "%s: not passed on, as the machine has a kernel of its own\n", strings.Join(given, ", "))
	}
	create, err := d.machines.Prepare(ctx, id, driver.RunOptions{Image: o.Image, User: o.User, Environment: o.Env})
	if err != nil {
		return err
	}
	if err := d.Delete(ctx, id); err != nil {
		return fmt.Errorf("remove the machine that there was: %w", err)
	}
	s := o.state()
	if err := d.states.write(create.Name, s); err != nil { // before the machine: none is ever found without its labels
		return err
	}
	if err = d.machines.Create(ctx, id, create); err == nil {
		err = d.launch(ctx, id, s)
	}
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupDeadline)
	defer cancel()
	return errors.Join(err, d.Delete(ctx, id))
}

// launch does what is due after each boot: the folders of the volumes are made, and the machine's
// own command is started.
func (d Driver) launch(ctx context.Context, id string, s state) error {
	const asRoot = `set -e; mkdir -p "${0%/*}" "$@"; : >"$0"; chmod 666 "$0"`
	if _, err := d.machines.MSB.ExecAs(ctx, msbdriver.Name(id), msb.ExecOptions{User: "root", Workdir: "/"},
		append([]string{"/bin/sh", "-c", asRoot, guestLog}, s.Folders...), nil); err != nil {
		return fmt.Errorf("make the machine ready, for which its image needs /bin/sh, mkdir and chmod: %w", err)
	}
	if len(s.Command) == 0 {
		return nil
	}
	// In a session of its own, where the image has setsid, it outlives the command that starts it.
	const background = `(trap '' HUP; exec $(command -v setsid) "$@") >"$0" 2>&1 </dev/null &`
	if _, err := d.machines.MSB.Exec(ctx, msbdriver.Name(id), append([]string{"/bin/sh", "-c", background, guestLog}, s.Command...), nil); err != nil {
		return fmt.Errorf("start the machine's own command, %s: %w", s.Command[0], err)
	}
	return nil
}

// Start starts a workspace's machine, and what runs in it. One that is running is left as it is.
func (d Driver) Start(ctx context.Context, id string) error {
	m, err := d.existing(ctx, id)
	if err != nil || m.Running {
		return err
	}
	s, err := d.states.read(m.ID)
	if err != nil {
		return err
	}
	if err := d.machines.Start(ctx, id); err != nil {
		return err
	}
	s.StartedAt = time.Now().UTC()
	if err := d.states.write(m.ID, s); err != nil {
		return err
	}
	return d.launch(ctx, id, s)
}

// Stop stops a workspace's machine. One that is stopped or absent is no error: a CLI stops what it
// is about to make anew.
func (d Driver) Stop(ctx context.Context, id string) error {
	err := d.machines.Stop(ctx, id)
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	return err
}

// Delete removes a workspace's machine, whatever its state. One that is absent is no error.
func (d Driver) Delete(ctx context.Context, id string) error {
	if err := d.machines.Delete(ctx, id); err != nil {
		return err
	}
	return d.states.remove(msbdriver.Name(id))
}

// Exec runs a command in a shell of a workspace's running machine, and gives its exit code. No user
// is the machine's own. The error is that of the way there.
func (d Driver) Exec(ctx context.Context, id, user, command string, s driver.Streams) (int, error) {
	if _, err := d.running(ctx, id); err != nil {
		return 0, err
	}
	return d.machines.ExecAs(ctx, id, msb.ExecOptions{User: user}, []string{"/bin/sh", "-c", command}, s)
}

// Logs writes what the machine's own command has said since the machine was started.
func (d Driver) Logs(ctx context.Context, id string, out io.Writer) error {
	if _, err := d.running(ctx, id); err != nil {
		return err
	}
	code, err := d.machines.ExecAs(ctx, id, msb.ExecOptions{User: "root"}, []string{"/bin/cat", guestLog}, driver.Streams{Out: out, Err: d.log})
	if err == nil && code != 0 {
		err = fmt.Errorf("read %s in the machine: exit code %d", guestLog, code)
	}
	return err
}

// existing gives a workspace's machine. One that is absent is an error that says what to do.
func (d Driver) existing(ctx context.Context, id string) (driver.Machine, error) {
	m, found, err := d.machines.Find(ctx, id)
	if err == nil && !found {
		err = fmt.Errorf("%w: workspace %s has no machine %s in %s; bring the workspace up first", driver.ErrNotFound, id, msbdriver.Name(id),
			d.machines.MSB.Home)
	}
	return m, err
}

// running gives a workspace's machine, which has to run: msb would boot a stopped one for a
// command, and stop it again.
func (d Driver) running(ctx context.Context, id string) (driver.Machine, error) {
	m, err := d.existing(ctx, id)
	if err == nil && !m.Running {
		err = fmt.Errorf("the machine %s of workspace %s is not running; start it first", m.ID, id)
	}
	return m, err
}

// check refuses what would change what runs and cannot be had.
func (o RunOptions) check() error {
	if o.Image == "" {
		return fmt.Errorf("%s: image: expected a reference, seen none", EnvRunOptions)
	}
	for _, label := range o.Labels {
		if key, _, ok := strings.Cut(label, "="); !ok || key == "" {
			return fmt.Errorf("%s: labels: expected KEY=VALUE, seen %q", EnvRunOptions, label)
		}
	}
	for _, m := range o.allMounts() {
		if !slices.Contains([]string{"bind", "volume"}, m.Type) {
			return fmt.Errorf("%s: the mount at %s: expected the type bind or volume, seen %q; take it out of devcontainer.json", EnvRunOptions,
				m.Target, m.Type)
		}
		if !filepath.IsAbs(m.Target) {
			return fmt.Errorf("%s: the mount of %q: expected an absolute target, seen %q", EnvRunOptions, m.Source, m.Target)
		}
	}
	for name, asked := range map[string]bool{"userns": o.Userns != "", "uidMap": len(o.UIDMap) > 0, "gidMap": len(o.GIDMap) > 0} {
		if asked {
			return fmt.Errorf("%s: %s: a machine has no user namespace to map; take it out of devcontainer.json", EnvRunOptions, name)
		}
	}
	if own := "linux/" + Architecture(); o.Platform != "" && o.Platform != own {
		return fmt.Errorf("%s: platform %s: machines here are %s", EnvRunOptions, o.Platform, own)
	}
	return nil
}
