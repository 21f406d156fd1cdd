// Package subject drives a workspace CLI, the subject of a test, through its command line and nothing else: Devsy's verbs, JSON and
// exit codes. It holds the CLI to that contract: whatever breaches it is a ContractError that names the verb.
package subject

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dagger/parity/internal/proc"
)

// CLI is one workspace CLI with the home of one case. It is safe for concurrent use. Each method runs one command, which is ended
// when the context is done.
type CLI struct {
	Argv []string // the program and its first arguments: {"/x/parity", "devsy"} or {"/x/devsy"}
	Home Home
}

// Home is what a case's commands see of the machine: folders of the case's own, and the environment that they need.
type Home struct {
	Dir     string   // holds every folder of the home; absolute. NewHome makes them.
	MSBHome string   // MSB_HOME
	Path    string   // PATH
	Extra   []string // further entries, KEY=VALUE
}

// homeFolders are the variables that name a folder of the home, and the folder.
var homeFolders = [][2]string{
	{"HOME", "home"}, {"DEVSY_HOME", "devsy"},
	{"XDG_CONFIG_HOME", "config"}, {"XDG_DATA_HOME", "data"}, {"XDG_STATE_HOME", "state"},
	{"XDG_CACHE_HOME", "cache"}, {"XDG_RUNTIME_DIR", "run"},
}

// NewHome makes the folders of h, which may exist, private to this user.
func NewHome(h Home) (Home, error) {
	for _, f := range homeFolders {
		if err := os.MkdirAll(filepath.Join(h.Dir, f[1]), 0o700); err != nil {
			return h, fmt.Errorf("make the home of a case: %w", err)
		}
	}
	return h, nil
}

// Environ is the whole environment of the home's commands. Nothing of this process's own comes through, proxy variables least
// of all.
func (h Home) Environ() []string {
	env := []string{"PATH=" + h.Path, "MSB_HOME=" + h.MSBHome, "DEVSY_CONFIG=", "DEVSY_DISABLE_TELEMETRY=true"}
	for _, f := range homeFolders {
		env = append(env, f[0]+"="+filepath.Join(h.Dir, f[1]))
	}
	return append(env, h.Extra...)
}

// ErrNotFound is what Status gives for a workspace that does not exist.
var ErrNotFound = errors.New("workspace not found")

// missing is the exit code of `workspace status` for a workspace that does not exist.
const missing = 75

// ContractError is a breach of the command-line contract.
type ContractError struct {
	Verb     string // such as "workspace status"
	Expected string
	Seen     string
	Cause    error // the command's own error, or nil
}

// Error names the verb, what the contract says and what was seen.
func (e *ContractError) Error() string {
	msg := fmt.Sprintf("%s breaks the command-line contract: expected %s; seen %s", e.Verb, e.Expected, e.Seen)
	if e.Cause != nil {
		msg += "; " + e.Cause.Error()
	}
	return msg
}

// Unwrap gives the command's own error.
func (e *ContractError) Unwrap() error { return e.Cause }

// UpError is a `workspace up` that failed as the contract says: exit code 1, with the reason in JSON.
type UpError struct {
	Message string
	Cause   error // the *proc.Error
}

// Error gives the reason in the CLI's own words.
func (e *UpError) Error() string { return "workspace up: " + e.Message }

// Unwrap gives the command's own error, which has its last words.
func (e *UpError) Unwrap() error { return e.Cause }

// ProviderAdd registers the provider source under a name, with options.
func (c CLI) ProviderAdd(ctx context.Context, source, name string, options map[string]string) error {
	args := []string{"provider", "add", source, "--name", name}
	_, err := c.run(ctx, nil, append(args, pairs("-o", options)...)...)
	return err
}

// ProviderDelete removes a provider. One that does not exist is no error.
func (c CLI) ProviderDelete(ctx context.Context, name string) error {
	_, err := c.run(ctx, nil, "provider", "delete", name, "--ignore-not-found")
	return err
}

// UpOptions say which workspace to bring up.
type UpOptions struct {
	ID               string
	Provider         string            // the name of a registered provider
	Dir              string            // the workspace's folder
	Recreate         bool              // remove the workspace's machine and make it anew
	DevcontainerPath string            // relative to Dir; empty leaves it to the CLI to find it
	ProviderOptions  map[string]string // they go before the provider's own
}

// UpResult is what a successful `workspace up` says.
type UpResult struct {
	Outcome               string `json:"outcome"`
	ContainerID           string `json:"containerId"`
	RemoteUser            string `json:"remoteUser"`
	RemoteWorkspaceFolder string `json:"remoteWorkspaceFolder"`
}

// Up brings a workspace up. The error is an *UpError when the CLI said why it failed, and a *ContractError when it did not.
func (c CLI) Up(ctx context.Context, o UpOptions) (UpResult, error) {
	args := []string{"workspace", "up", "--ide", "none", "--id", o.ID, "--provider", o.Provider}
	if o.Recreate {
		args = append(args, "--recreate")
	}
	if o.DevcontainerPath != "" {
		args = append(args, "--devcontainer", o.DevcontainerPath)
	}
	args = append(args, pairs("--provider-option", o.ProviderOptions)...)
	res, err := c.run(ctx, nil, append(args, o.Dir)...)

	code, exited := proc.ExitCode(err)
	if err != nil && (!exited || code > 128) {
		return UpResult{}, err // it did not get to say anything
	}
	const verb = "workspace up"
	var said struct {
		UpResult
		Message string `json:"message"`
	}
	if e := decode(verb, res.Stdout, &said, "a JSON object with an outcome", err); e != nil {
		return UpResult{}, e
	}
	switch {
	case err == nil && said.Outcome == "success":
		if said.ContainerID == "" || said.RemoteUser == "" || said.RemoteWorkspaceFolder == "" {
			return said.UpResult, &ContractError{Verb: verb, Expected: "containerId, remoteUser and remoteWorkspaceFolder",
				Seen: shown(res.Stdout)}
		}
		return said.UpResult, nil
	case code == 1 && said.Outcome == "error" && said.Message != "":
		return said.UpResult, &UpError{Message: said.Message, Cause: err}
	}
	return said.UpResult, &ContractError{Verb: verb,
		Expected: `exit code 0 with the outcome "success", or exit code 1 with the outcome "error" and a message`,
		Seen:     fmt.Sprintf("exit code %d and %s", code, shown(res.Stdout)), Cause: err}
}

// Stop stops a workspace.
func (c CLI) Stop(ctx context.Context, id string) error {
	_, err := c.run(ctx, nil, "workspace", "stop", id)
	return err
}

// The states of a workspace that the contract knows. A CLI may have more for a workspace that is neither.
const (
	Running = "Running"
	Stopped = "Stopped"
)

// Status is what `workspace status` says.
type Status struct {
	ID       string `json:"id"`
	Context  string `json:"context"`
	Provider string `json:"provider"`
	State    string `json:"state"`
}

// Status asks for a workspace's state. The error of one that does not exist is ErrNotFound.
func (c CLI) Status(ctx context.Context, id string) (Status, error) {
	const verb = "workspace status"
	res, err := c.run(ctx, nil, "workspace", "status", id, "--result-format", "json")
	if code, _ := proc.ExitCode(err); code == missing {
		return Status{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Status{}, err
	}
	var s Status
	if err := decode(verb, res.Stdout, &s, "a JSON object", nil); err != nil {
		return Status{}, err
	}
	if s.ID != id || s.Context == "" || s.Provider == "" || s.State == "" {
		return s, &ContractError{Verb: verb, Expected: fmt.Sprintf("the id %q, context, provider and state", id),
			Seen: shown(res.Stdout)}
	}
	return s, nil
}

// Workspace is one entry of `workspace list`.
type Workspace struct {
	ID       string `json:"id"`
	UID      string `json:"uid"`
	Provider struct {
		Name    string          `json:"name"`
		Options json.RawMessage `json:"options"`
	} `json:"provider"`
	Source            json.RawMessage `json:"source"`
	CreationTimestamp time.Time       `json:"creationTimestamp"`
}

// List lists the workspaces of the home.
func (c CLI) List(ctx context.Context) ([]Workspace, error) {
	const verb = "workspace list"
	res, err := c.run(ctx, nil, "workspace", "list", "--result-format", "json")
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(bytes.TrimSpace(res.Stdout), []byte("[")) { // null would decode too
		return nil, &ContractError{Verb: verb, Expected: "a JSON array", Seen: shown(res.Stdout)}
	}
	var list []Workspace
	if err := decode(verb, res.Stdout, &list, "a JSON array", nil); err != nil {
		return nil, err
	}
	for _, w := range list {
		if w.ID == "" || w.UID == "" || w.Provider.Name == "" {
			return list, &ContractError{Verb: verb, Expected: "id, uid and provider.name in each entry", Seen: shown(res.Stdout)}
		}
	}
	return list, nil
}

// Find gives the entry of `workspace list` for a workspace. The error of one that is not listed is ErrNotFound.
func (c CLI) Find(ctx context.Context, id string) (Workspace, error) {
	list, err := c.List(ctx)
	if err != nil {
		return Workspace{}, err
	}
	for _, w := range list {
		if w.ID == id {
			return w, nil
		}
	}
	return Workspace{}, fmt.Errorf("%w: workspace list does not have %q", ErrNotFound, id)
}

// Delete removes a workspace. One that does not exist is no error. With force, it goes whatever state it is in.
func (c CLI) Delete(ctx context.Context, id string, force bool) error {
	args := []string{"workspace", "delete", id, "--ignore-not-found"}
	if force {
		args = append(args, "--force")
	}
	_, err := c.run(ctx, nil, args...)
	return err
}

// SSH runs a shell command in a workspace with `workspace ssh --command`. The error, an *proc.Error, has its exit code. A nil
// stdin is empty.
func (c CLI) SSH(ctx context.Context, id, command string, stdin io.Reader) (proc.Result, error) {
	return c.run(ctx, stdin, "workspace", "ssh", id, "--command", command)
}

// VMName is the name of the MicroSandbox machine of the workspace with this uid, as `msb inspect` takes it: "devsy-" and the
// uid. A name longer than 128 characters is cut, and ends in "-" and the first 12 hex digits of the uid's SHA-256.
func VMName(uid string) string {
	const limit = 128
	name := "devsy-" + uid
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(uid))
	digest := "-" + hex.EncodeToString(sum[:])[:12]
	return name[:limit-len(digest)] + digest
}

func (c CLI) cmd(args ...string) proc.Cmd {
	return proc.Cmd{Argv: append(slices.Clone(c.Argv), args...), Env: c.Home.Environ(), Dir: c.Home.Dir}
}

func (c CLI) run(ctx context.Context, stdin io.Reader, args ...string) (proc.Result, error) {
	cmd := c.cmd(args...)
	cmd.Stdin = stdin
	return proc.Run(ctx, cmd)
}

// decode takes the whole of out as one JSON document.
func decode(verb string, out []byte, into any, expected string, cause error) error {
	if err := json.Unmarshal(out, into); err != nil {
		if cause == nil {
			cause = err
		}
		return &ContractError{Verb: verb, Expected: expected, Seen: shown(out), Cause: cause}
	}
	return nil
}

// shown gives the first bytes of an output for an error.
func shown(out []byte) string {
	const keep = 200
	if len(out) == 0 {
		return "nothing"
	}
	if len(out) > keep {
		return fmt.Sprintf("%q and %d more bytes", out[:keep], len(out)-keep)
	}
	return fmt.Sprintf("%q", strings.TrimRight(string(out), "\n"))
}

func pairs(flag string, options map[string]string) (args []string) {
	for _, k := range slices.Sorted(maps.Keys(options)) {
		args = append(args, flag, k+"="+options[k])
	}
	return args
}
