// Package msb is a client for the real msb executable of MicroSandbox: typed results from its JSON, and errors that carry the
// command, its exit code and its last words. What it says of a sandbox is the ground truth of a test; it is checked against
// MicroSandbox 0.7.2.
package msb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"dagger/parity/internal/proc"
)

// Client runs one msb executable with one MSB_HOME. It is safe for concurrent use.
type Client struct {
	Path string   // the msb executable
	Home string   // MSB_HOME: absolute, on a file system with user xattrs
	Env  []string // the environment besides MSB_HOME; nil means this process's own

	// Observe, if set, is told of each msb command that ended: its name, its wall time and its error.
	Observe func(operation string, elapsed time.Duration, err error)
}

// ErrNotFound is what an error about a sandbox that does not exist is, ErrExists that of a create whose name is taken, and ErrNoImage that of
// an image that is not in the image store.
var (
	ErrNotFound = errors.New("sandbox not found")
	ErrExists   = errors.New("sandbox already exists")
	ErrNoImage  = errors.New("image not found")
)

// Status is a sandbox's state in msb's own words.
type Status string

// The statuses that matter to Parity.
const (
	StatusRunning Status = "Running"
	StatusStopped Status = "Stopped"
	StatusCrashed Status = "Crashed"
)

// Sandbox is what `msb inspect` says.
type Sandbox struct {
	Name           string          `json:"name"`
	Status         Status          `json:"status"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	Config         *Config         `json:"config"`          // what is stored
	ActiveConfig   *Config         `json:"active_config"`   // what the running machine has; nil when it is stopped
	PendingChanges json.RawMessage `json:"pending_changes"` // null or empty when stored and active agree
	Raw            json.RawMessage `json:"-"`               // the whole answer
}

// Config is the part of a sandbox's configuration that Parity looks at.
type Config struct {
	Network *Network `json:"network"`
	Runtime *Runtime `json:"runtime"`
}

// Runtime is how a sandbox's commands run. A User of nil is the image's.
type Runtime struct {
	User *string `json:"user"`
}

// Network is a sandbox's network configuration. A Policy of nil means that the key is absent: the default policy.
type Network struct {
	Enabled *bool   `json:"enabled"`
	Policy  *Policy `json:"policy"`
}

// Policy is a sandbox's network policy.
type Policy struct {
	DefaultEgress  string            `json:"default_egress"`
	DefaultIngress string            `json:"default_ingress"`
	Rules          []json.RawMessage `json:"rules"`
}

// CreateOptions describe a sandbox to create and boot.
type CreateOptions struct {
	Name      string
	Image     string // a reference, in msb's image store or pullable
	CPUs      int    // 0 leaves it to msb
	MemoryMiB int    // 0 leaves it to msb
	NoPull    bool   // an image that is not in the image store is an error

	MaxCPUs      int           // how many CPUs the machine can be given while it runs; 0 leaves it to msb
	MaxMemoryMiB int           // how much memory it can be given while it runs; 0 leaves it to msb
	RootDiskGiB  int           // the size of the root disk; 0 leaves it to msb
	IdleTimeout  time.Duration // after how long without activity it is stopped, to the second; 0 means never

	Env        map[string]string
	Labels     map[string]string
	User       string   // empty leaves it to the image
	Workdir    string   // must exist in the image; empty leaves it to the image
	DenyEgress bool     // deny what no rule allows
	NetRules   []string // rules of the network policy, in msb's words; the first one that matches holds
	Copies     []Copy   // put into the guest before its first boot
}

// Copy is a file of the host and the absolute path at which the guest gets it.
type Copy struct{ Source, Target string }

// Listed is a line of `msb list`.
type Listed struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
}

// Image is a line of `msb image ls`.
type Image struct {
	Reference    string `json:"reference"`
	Digest       string `json:"digest"`
	SizeBytes    int64  `json:"size_bytes"`
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// ImageDetails is what `msb image inspect` says.
type ImageDetails struct {
	Digest string `json:"digest"`
	Config struct {
		User string `json:"user"`
	} `json:"config"`
}

// OwnPaths lists the paths that MicroSandbox changes in every guest, or beneath which it has its own, whatever the image has there: it
// mounts over them, writes over them, adds to them (/etc/profile) or sets their mode (/var/tmp).
func OwnPaths() []string {
	return []string{"/.msb", "/dev", "/etc/hostname", "/etc/hosts", "/etc/profile", "/etc/resolv.conf", "/proc", "/sys", "/var/tmp"}
}

// Version gives the version that the executable says it is, such as "0.7.2".
func (c *Client) Version(ctx context.Context) (string, error) {
	res, err := c.run(ctx, "version", "--version")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(res.Stdout)) // "msb 0.7.2"
	if len(fields) == 0 {
		return "", fmt.Errorf("%s --version: expected a version, seen %q", c.Path, res.Stdout)
	}
	return strings.TrimPrefix(fields[len(fields)-1], "v"), nil
}

// Doctor runs `msb doctor`: nil when it sees the CPU flags and the device that KVM needs. It boots nothing.
func (c *Client) Doctor(ctx context.Context) error {
	_, err := c.run(ctx, "doctor", "doctor")
	return err
}

// Create creates a sandbox and boots it. The error of one whose name is taken is ErrExists.
func (c *Client) Create(ctx context.Context, o CreateOptions) error {
	args := []string{"create", "--name", o.Name}
	if o.NoPull {
		args = append(args, "--pull", "never")
	}
	if o.CPUs > 0 {
		args = append(args, "--cpus", strconv.Itoa(o.CPUs))
	}
	if o.MemoryMiB > 0 {
		args = append(args, "--memory", strconv.Itoa(o.MemoryMiB)+"M")
	}
	if o.MaxCPUs > 0 {
		args = append(args, "--max-cpus", strconv.Itoa(o.MaxCPUs))
	}
	if o.MaxMemoryMiB > 0 {
		args = append(args, "--max-memory", strconv.Itoa(o.MaxMemoryMiB)+"M")
	}
	if o.RootDiskGiB > 0 {
		args = append(args, "--root-disk", strconv.Itoa(o.RootDiskGiB)+"G")
	}
	if o.IdleTimeout > 0 {
		args = append(args, "--idle-timeout", strconv.Itoa(int(o.IdleTimeout/time.Second))+"s")
	}
	for _, k := range slices.Sorted(maps.Keys(o.Env)) {
		args = append(args, "--env", k+"="+o.Env[k])
	}
	for _, k := range slices.Sorted(maps.Keys(o.Labels)) {
		args = append(args, "--label", k+"="+o.Labels[k])
	}
	if o.User != "" {
		args = append(args, "--user", o.User)
	}
	if o.Workdir != "" {
		args = append(args, "--workdir", o.Workdir)
	}
	if o.DenyEgress {
		args = append(args, "--net-default-egress", "deny")
	}
	for _, rule := range o.NetRules {
		args = append(args, "--net-rule", rule)
	}
	for _, cp := range o.Copies {
		args = append(args, "--copy-file", cp.Source+":"+cp.Target)
	}
	_, err := c.run(ctx, "create", append(args, o.Image)...)
	return err
}

// Start boots a stopped sandbox. It fails if the sandbox is running.
func (c *Client) Start(ctx context.Context, name string) error {
	_, err := c.run(ctx, "start", "start", name)
	return err
}

// Stop shuts a running sandbox down.
func (c *Client) Stop(ctx context.Context, name string) error {
	_, err := c.run(ctx, "stop", "stop", name)
	return err
}

// Remove removes a sandbox, running or not. The error of one that does not exist is ErrNotFound.
func (c *Client) Remove(ctx context.Context, name string) error {
	_, err := c.run(ctx, "remove", "remove", "--force", name)
	return err
}

// Inspect says what is known of a sandbox. The error of one that does not exist is ErrNotFound.
func (c *Client) Inspect(ctx context.Context, name string) (Sandbox, error) {
	res, err := c.run(ctx, "inspect", "inspect", "--format", "json", name)
	if err != nil {
		return Sandbox{}, err
	}
	s := Sandbox{Raw: json.RawMessage(res.Stdout)}
	return s, decode("inspect", res.Stdout, &s)
}

// List lists the sandboxes of this MSB_HOME.
func (c *Client) List(ctx context.Context) ([]Listed, error) {
	res, err := c.run(ctx, "list", "list", "--format", "json")
	if err != nil {
		return nil, err
	}
	var list []Listed
	return list, decode("list", res.Stdout, &list)
}

// Exec runs a command in a running sandbox and gives what it printed; its exit code is in the *proc.Error. It boots a sandbox that is
// stopped, runs, and stops it again: look at the status first.
func (c *Client) Exec(ctx context.Context, name string, argv []string, stdin io.Reader) (proc.Result, error) {
	return c.ExecAs(ctx, name, ExecOptions{}, argv, stdin)
}

// ExecAs is Exec with options.
func (c *Client) ExecAs(ctx context.Context, name string, o ExecOptions, argv []string, stdin io.Reader) (proc.Result, error) {
	cmd := c.ExecCmdAs(name, o, argv)
	cmd.Stdin = stdin
	return c.runCmd(ctx, "exec", cmd)
}

// ExecCmd is the command of Exec with its standard streams left to the caller: bytes pass both ways unchanged, as they come.
func (c *Client) ExecCmd(name string, argv []string) proc.Cmd {
	return c.ExecCmdAs(name, ExecOptions{}, argv)
}

// ExecOptions say how a command runs, where it is not as the sandbox was made.
type ExecOptions struct {
	User    string
	Workdir string
	Env     map[string]string
}

// ExecCmdAs is ExecCmd with options.
func (c *Client) ExecCmdAs(name string, o ExecOptions, argv []string) proc.Cmd {
	args := []string{"exec", "--quiet", "--stream"}
	if o.User != "" {
		args = append(args, "--user", o.User)
	}
	if o.Workdir != "" {
		args = append(args, "--workdir", o.Workdir)
	}
	for _, k := range slices.Sorted(maps.Keys(o.Env)) {
		args = append(args, "--env", k+"="+o.Env[k])
	}
	return c.cmd(append(append(args, name, "--"), argv...))
}

// CopyIn copies a file of the host to an absolute path in a running sandbox.
func (c *Client) CopyIn(ctx context.Context, name, hostPath, guestPath string) error {
	_, err := c.run(ctx, "copy", "copy", hostPath, name+":"+guestPath)
	return err
}

// Load puts the images of an archive, Docker's or an OCI layout, into the image store, under the references that it has for them. A
// reference that was another image's moves.
func (c *Client) Load(ctx context.Context, archive string) error {
	_, err := c.run(ctx, "load", "load", "--input", archive)
	return err
}

// LoadAs is Load, and the archive's first image also gets the reference ref.
func (c *Client) LoadAs(ctx context.Context, archive, ref string) error {
	_, err := c.run(ctx, "load", "load", "--input", archive, "--tag", ref)
	return err
}

// PullOptions say how an image is pulled.
type PullOptions struct {
	Insecure bool   // over plain HTTP
	CACerts  string // a PEM file with authorities that are trusted besides the machine's; empty is none
	Force    bool   // also when the store has the reference: it then moves to what the registry has
}

// Pull brings an image from its registry into the image store, under its reference. A reference
// that the store has is not asked for again, unless that is forced.
func (c *Client) Pull(ctx context.Context, reference string, o PullOptions) error {
	args := []string{"pull"}
	if o.Insecure {
		args = append(args, "--insecure")
	}
	if o.CACerts != "" {
		args = append(args, "--ca-certs", o.CACerts)
	}
	if o.Force {
		args = append(args, "--force")
	}
	_, err := c.run(ctx, "pull", append(args, reference)...)
	return err
}

// Images lists the image store.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	res, err := c.run(ctx, "image ls", "image", "ls", "--format", "json")
	if err != nil {
		return nil, err
	}
	var list []Image
	return list, decode("image ls", res.Stdout, &list)
}

// InspectImage says what is known of an image of the image store, by the reference under which it was put there. The error of one that is not
// there is ErrNoImage.
func (c *Client) InspectImage(ctx context.Context, reference string) (ImageDetails, error) {
	var details ImageDetails
	res, err := c.run(ctx, "image inspect", "image", "inspect", "--format", "json", reference)
	if err != nil {
		return details, err
	}
	return details, decode("image inspect", res.Stdout, &details)
}

// cmd is a command of msb. It is not made --quiet where it may fail: several commands then fail without a word.
func (c *Client) cmd(args []string) proc.Cmd {
	env := c.Env
	if env == nil {
		env = os.Environ()
	}
	return proc.Cmd{Argv: append([]string{c.Path}, args...), Env: append(env[:len(env):len(env)], "MSB_HOME="+c.Home)}
}

func (c *Client) run(ctx context.Context, operation string, args ...string) (proc.Result, error) {
	return c.runCmd(ctx, operation, c.cmd(args))
}

// aboutOne are the operations on one sandbox whose standard error is msb's own: of others, "not found" is about something else.
var aboutOne = map[string]bool{"start": true, "stop": true, "remove": true, "inspect": true, "copy": true}

func (c *Client) runCmd(ctx context.Context, operation string, cmd proc.Cmd) (proc.Result, error) {
	started := time.Now()
	res, err := proc.Run(ctx, cmd)
	if err != nil && aboutOne[operation] && strings.Contains(string(res.Stderr), "not found") && strings.Contains(string(res.Stderr), "sandbox") {
		err = fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil && operation == "create" && strings.Contains(string(res.Stderr), "already exists") {
		err = fmt.Errorf("%w: %w", ErrExists, err)
	}
	if err != nil && operation == "image inspect" && strings.Contains(string(res.Stderr), "not found") {
		err = fmt.Errorf("%w: %w", ErrNoImage, err)
	}
	if c.Observe != nil {
		c.Observe(operation, time.Since(started), err)
	}
	return res, err
}

func decode(operation string, out []byte, into any) error {
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("msb %s: expected JSON of the shape that MicroSandbox %s has, seen %.200q: %w", operation, PinnedRelease().Version, out, err)
	}
	return nil
}
