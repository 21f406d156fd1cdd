// Package subject drives a workspace CLI, the subject of a test, through its command line and nothing else: Devsy's verbs, JSON and
// exit codes. It holds the CLI to that contract: whatever breaches it is a ContractError that names the verb.
package subject

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
)

// CLI is one workspace CLI with the home of one case. It is safe for concurrent use. Each method
// runs one command, which is ended when the context is done.
type CLI struct {
	Argv    []string         // the program and its first arguments: {"/x/parity", "devsy"} or {"/x/devsy"}
	Adapter *adapter.Adapter // how the program is spoken to; nil is the contract
	Home    Home

	// Record, if set, is told of each command once it has ended. It may be called from any
	// goroutine.
	Record func(report.Command)
}

// Home is what a case's commands see of the machine: folders of the case's own, and the environment that they need.
type Home struct {
	Dir     string   // holds every folder of the home; absolute. NewHome makes them.
	MSBHome string   // MSB_HOME
	Path    string   // PATH
	Extra   []string // further entries, KEY=VALUE
}

// The folders of a home that adapters name: the CLI's own, and that of HOME.
const (
	cliFolder  = "cli"
	homeFolder = "home"
)

// homeFolders are the variables that name a folder of the home, and the folder.
var homeFolders = [][2]string{
	{"", cliFolder}, {"HOME", homeFolder},
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

// Environ returns the environment of the home's commands, save what the CLI's adapter adds. Nothing
// of this process's own comes through, proxy variables least of all.
func (h Home) Environ() []string {
	env := []string{"PATH=" + h.Path, "MSB_HOME=" + h.MSBHome}
	for _, f := range homeFolders {
		if f[0] != "" {
			env = append(env, f[0]+"="+filepath.Join(h.Dir, f[1]))
		}
	}
	return append(env, h.Extra...)
}

// Deny returns the provider's options that deny a workspace its egress.
func (c CLI) Deny() map[string]string { return c.adapter().Deny }

// names are the folders of the home by the placeholders of adapters.
func (h Home) names() map[string]string {
	return map[string]string{"folder": filepath.Join(h.Dir, cliFolder), "home": filepath.Join(h.Dir, homeFolder)}
}

// contractAdapter is the adapter of a CLI that has none.
var contractAdapter = sync.OnceValue(adapter.Contract)

// adapter returns how the CLI is spoken to.
func (c CLI) adapter() *adapter.Adapter {
	if c.Adapter == nil {
		return contractAdapter()
	}
	return c.Adapter
}

// Environ returns the whole environment of the CLI's commands.
func (c CLI) Environ() []string {
	env := c.Home.Environ()
	a := c.adapter()
	for _, name := range slices.Sorted(maps.Keys(a.Environment)) {
		env = append(env, name+"="+adapter.Fill(a.Environment[name], c.Home.names()))
	}
	return env
}

// ErrNotFound is what Status gives for a workspace that does not exist.
var ErrNotFound = errors.New("workspace not found")

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

// UpError is a `workspace up` that failed and says why, as the contract has it.
type UpError struct {
	Message string
	Stderr  string // all that it wrote to standard error, within report.OutputLimit
	Cause   error  // the *proc.Error
}

// Error returns the reason in the CLI's own words: its message, and the end of standard error,
// where many a CLI says more.
func (e *UpError) Error() string {
	msg := "workspace up: " + e.Message
	var failed *proc.Error
	if errors.As(e.Cause, &failed) && failed.Stderr != "" {
		msg += "; its last words:\n    " + strings.ReplaceAll(failed.Stderr, "\n", "\n    ")
	}
	return msg
}

// Unwrap returns the command's own error.
func (e *UpError) Unwrap() error { return e.Cause }

// ProviderAdd registers the provider source under a name, with options.
func (c CLI) ProviderAdd(ctx context.Context, source, name string, options map[string]string) error {
	_, err := c.run(ctx, adapter.ProviderAdd, nil, map[string]string{"source": source, "name": name}, options)
	return err
}

// ProviderDelete removes a provider. One that does not exist is no error.
func (c CLI) ProviderDelete(ctx context.Context, name string) error {
	return c.removed(c.run(ctx, adapter.ProviderDelete, nil, map[string]string{"name": name}, nil))
}

// providerDeleteExisting removes a provider that exists: that it is not there is an error.
func (c CLI) providerDeleteExisting(ctx context.Context, name string) error {
	_, err := c.run(ctx, adapter.ProviderDelete, nil, map[string]string{"name": name}, nil)
	return err
}

// removed returns the error of a command that removes something. That it is not there is none.
func (c CLI) removed(ran ran, err error) error {
	if err != nil && ran.command.Missing.Is(ran.code, ran.Stdout, ran.Stderr) {
		return nil
	}
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
	Outcome               string
	ContainerID           string
	RemoteUser            string // whom to log in as
	RemoteWorkspaceFolder string // may be empty
}

// Up brings a workspace up. The error is an *UpError if the CLI says why it failed, and a
// *ContractError if it does not.
func (c CLI) Up(ctx context.Context, o UpOptions) (UpResult, error) {
	values := map[string]string{"id": o.ID, "provider": o.Provider, "dir": o.Dir, "devcontainer": o.DevcontainerPath}
	if o.Recreate {
		values["recreate"] = "true"
	}
	res, err := c.run(ctx, adapter.Up, nil, values, o.ProviderOptions)
	if err != nil && (!res.exited || res.code > 128) {
		return UpResult{}, err // it did not get to say anything
	}
	return c.upResult(res, o.ID, err)
}

// upResult reads what an up that ended by itself says. failed is its error.
func (c CLI) upResult(res ran, id string, failed error) (UpResult, error) {
	const verb = "workspace up"
	said := UpResult{Outcome: map[bool]string{true: succeeded, false: failing}[failed == nil]}
	_, says := res.command.Result[adapter.Outcome]
	// A CLI that prints no outcome prints no result when it fails, either.
	if says || failed == nil {
		result, err := res.results(c, id)
		if err != nil {
			return said, &ContractError{Verb: verb, Expected: "a JSON object with an outcome", Seen: shown(res.Stdout), Cause: cmp.Or(failed, err)}
		}
		said = UpResult{said.Outcome, result[adapter.Container], result[adapter.User], result[adapter.Folder]}
		if says {
			said.Outcome = translated(result[adapter.Outcome], res.command.Outcomes)
		}
	}
	breach := func(expected string) (UpResult, error) {
		return said, &ContractError{Verb: verb, Expected: expected, Seen: fmt.Sprintf("exit code %d and %s", res.code, shown(res.Stdout)), Cause: failed}
	}
	switch {
	case failed == nil && said.Outcome == succeeded:
		_, names := res.command.Result[adapter.Container]
		if names && said.ContainerID == "" || said.RemoteUser == "" {
			return breach("containerId and remoteUser")
		}
		return said, nil
	case failed != nil && said.Outcome == failing && res.failed():
		message := res.message(c, id)
		if message != "" {
			return said, &UpError{Message: message, Stderr: report.Bounded(res.Stderr), Cause: failed}
		}
	}
	return breach(`exit code 0 with the outcome "success", or exit code 1 with the outcome "error" and a message`)
}

// The outcomes of up.
const (
	succeeded = "success"
	failing   = "error"
)

// failed tells whether an up that did not exit with 0 ended as one ends that failed.
func (r ran) failed() bool {
	return r.command.Failed == nil || r.command.Failed.Is(r.code, r.Stdout, r.Stderr)
}

// message returns why an up failed. A CLI that has no field for it says it on standard error.
func (r ran) message(c CLI, id string) string {
	if _, has := r.command.Result[adapter.Message]; has {
		result, err := r.results(c, id)
		if err != nil {
			return ""
		}
		return result[adapter.Message]
	}
	lines := strings.Split(strings.TrimSpace(string(r.Stderr)), "\n")
	return cmp.Or(lines[len(lines)-1], "it said nothing on standard error")
}

// Stop stops a workspace.
func (c CLI) Stop(ctx context.Context, id string) error {
	_, err := c.run(ctx, adapter.Stop, nil, map[string]string{"id": id}, nil)
	return err
}

// The states of a workspace that the contract knows. A CLI may have more for a workspace that is neither.
const (
	Running = "Running"
	Stopped = "Stopped"
)

// Status is what `workspace status` says.
type Status struct {
	ID       string
	Context  string // empty if the CLI's adapter has none
	Provider string // likewise
	State    string
}

// Status asks for a workspace's state. The error of one that does not exist is ErrNotFound.
func (c CLI) Status(ctx context.Context, id string) (Status, error) {
	const verb = "workspace status"
	res, err := c.run(ctx, adapter.Status, nil, map[string]string{"id": id}, nil)
	if err != nil && res.command.Missing.Is(res.code, res.Stdout, res.Stderr) {
		return Status{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Status{}, err
	}
	result, err := res.results(c, id)
	if err != nil {
		return Status{}, &ContractError{Verb: verb, Expected: "a JSON object", Seen: shown(res.Stdout), Cause: err}
	}
	s := Status{cmp.Or(result[adapter.ID], id), result[adapter.Context], result[adapter.Provider], result[adapter.State]}
	for field := range res.command.Result {
		if result[field] == "" || field == adapter.ID && result[field] != id {
			return s, &ContractError{Verb: verb, Expected: fmt.Sprintf("the id %q, and %s", id, strings.Join(slices.Sorted(maps.Keys(res.command.Result)), ", ")),
				Seen: shown(res.Stdout)}
		}
	}
	s.State = translated(s.State, res.command.States)
	return s, nil
}

// translated returns Parity's word for a CLI's. If the adapter has words, one that is not among them
// stands for nothing, also if it is a word of Parity's: a CLI has one word for one thing.
func translated(word string, words map[string]string) string {
	if len(words) == 0 {
		return word
	}
	if to, ok := words[word]; ok {
		return to
	}
	return fmt.Sprintf("%q, which the adapter does not know", word)
}

// Workspace is one entry of `workspace list`.
type Workspace struct {
	ID       string
	UID      string // empty if the CLI's adapter has none
	Provider string // likewise
}

// List lists the workspaces of the home.
func (c CLI) List(ctx context.Context) ([]Workspace, error) {
	const verb = "workspace list"
	res, err := c.run(ctx, adapter.List, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	entries, err := res.command.List(adapter.Output{Stdout: res.Stdout, Stderr: res.Stderr})
	if err != nil {
		return nil, &ContractError{Verb: verb, Expected: "a JSON array", Seen: shown(res.Stdout), Cause: err}
	}
	var list []Workspace
	for _, e := range entries {
		for field := range res.command.Result {
			if e[field] == "" {
				return list, &ContractError{Verb: verb, Expected: "id, uid and provider in each entry", Seen: shown(res.Stdout)}
			}
		}
		list = append(list, Workspace{e[adapter.ID], e[adapter.UID], e[adapter.Provider]})
	}
	return list, nil
}

// Find returns the entry of `workspace list` for a workspace. The error of one that is not listed
// is ErrNotFound.
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

// Delete removes a workspace. One that does not exist is no error. With force, it goes whatever
// state it is in.
func (c CLI) Delete(ctx context.Context, id string, force bool) error {
	return c.removed(c.delete(ctx, id, force))
}

// delete runs the command that removes a workspace. Its error may be that there is none.
func (c CLI) delete(ctx context.Context, id string, force bool) (ran, error) {
	values := map[string]string{"id": id}
	if force {
		values["force"] = "true"
	}
	return c.run(ctx, adapter.Delete, nil, values, nil)
}

// SSH runs a shell command in a workspace with `workspace ssh --command`. The error, a *proc.Error,
// has its exit code. A nil stdin is empty.
func (c CLI) SSH(ctx context.Context, id, command string, stdin io.Reader) (proc.Result, error) {
	res, err := c.run(ctx, adapter.SSH, stdin, map[string]string{"id": id, "command": command}, nil)
	var failed *proc.Error
	if code, ok := res.command.ExitCode(adapter.Output{Stdout: res.Stdout, Stderr: res.Stderr}); ok && res.exited && errors.As(err, &failed) {
		read := *failed
		read.ExitCode, res.Result.ExitCode = code, code
		return res.Result, &read
	}
	return res.Result, err
}

// Sandbox returns MicroSandbox's name of a workspace, as `msb inspect` takes it.
func (c CLI) Sandbox(ctx context.Context, w Workspace) (string, error) {
	s := c.adapter().Sandbox
	values := map[string]string{"id": w.ID, "uid": w.UID}
	if len(s.Run) == 0 {
		return cut(adapter.Fill(s.Text, values), cmp.Or(w.UID, w.ID)), nil
	}
	res, err := c.command(ctx, adapter.Command{}, nil, adapter.Args(s.Run, values, nil))
	if err != nil {
		return "", err
	}
	name, err := s.Read(adapter.Output{Stdout: res.Stdout, Stderr: res.Stderr, Values: values})
	if err == nil && name == "" {
		err = errors.New("it is not there")
	}
	if err != nil {
		return "", &ContractError{Verb: strings.Join(adapter.Args(s.Run, values, nil), " "), Expected: "MicroSandbox's name of the workspace " + w.ID, Seen: shown(res.Stdout), Cause: err}
	}
	return name, nil
}

// VMName returns the name of a workspace's sandbox that the contract has: "devsy-" and the uid.
func VMName(uid string) string {
	return cut(adapter.Fill(contractAdapter().Sandbox.Text, map[string]string{"uid": uid}), uid)
}

// cut returns a name that MicroSandbox takes: one longer than 128 characters is cut, and ends in
// "-" and the first 12 hex digits of the SHA-256 of what it is made of.
func cut(name, from string) string {
	const limit = 128
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(from))
	digest := "-" + hex.EncodeToString(sum[:])[:12]
	return name[:limit-len(digest)] + digest
}

// ran is a command of the CLI that has ended.
type ran struct {
	proc.Result
	command adapter.Command
	code    int  // its exit code
	exited  bool // by itself; else there is no code
}

// results reads the command's results.
func (r ran) results(c CLI, id string) (map[string]string, error) {
	values := c.Home.names()
	values["id"] = id
	return r.command.Results(adapter.Output{Stdout: r.Stdout, Stderr: r.Stderr, Values: values})
}

// run runs the command for a verb. What the CLI has no command for has succeeded.
func (c CLI) run(ctx context.Context, verb adapter.Verb, stdin io.Reader, values, options map[string]string) (ran, error) {
	command := c.adapter().Commands[verb]
	if len(command.Run) == 0 {
		return ran{command: command, exited: true}, nil
	}
	return c.command(ctx, command, stdin, adapter.Args(command.Run, values, map[string][]string{"option": pairs(options)}))
}

// command runs a command with arguments, and records it.
func (c CLI) command(ctx context.Context, command adapter.Command, stdin io.Reader, args []string) (ran, error) {
	cmd := c.cmd(args...)
	cmd.Stdin = stdin
	started := time.Now()
	res, err := proc.Run(ctx, cmd)
	r := ran{Result: res, command: command, exited: err == nil}
	if err != nil {
		r.code, r.exited = proc.ExitCode(err)
	}
	c.record(cmd.Argv, started, res, err)
	return r, err
}

// record tells of a command that has ended.
func (c CLI) record(argv []string, started time.Time, res proc.Result, err error) {
	if c.Record == nil {
		return
	}
	said := report.Command{Argv: argv, Started: started, Elapsed: time.Since(started), ExitCode: res.ExitCode,
		Stdout: report.Bounded(res.Stdout), Stderr: report.Bounded(res.Stderr)}
	if _, exited := proc.ExitCode(err); err != nil && !exited {
		said.Ended = err.Error()
	}
	c.Record(said)
}

func (c CLI) cmd(args ...string) proc.Cmd {
	return proc.Cmd{Argv: append(slices.Clone(c.Argv), args...), Env: c.Environ(), Dir: c.Home.Dir}
}

// shown gives the first bytes of an output for an error.
func shown(out []byte) string {
	const keep = 200
	if len(out) == 0 {
		return "nothing"
	}
	text := report.Bounded(out) // first: half a secret cannot be told by its form
	if cut := len(out) - keep; cut > 0 && len(text) > keep {
		return fmt.Sprintf("%q and %d more bytes", text[:keep], cut)
	}
	return fmt.Sprintf("%q", strings.TrimRight(text, "\n"))
}

// pairs returns options as KEY=VALUE, in the order of their keys.
func pairs(options map[string]string) (list []string) {
	for _, k := range slices.Sorted(maps.Keys(options)) {
		list = append(list, k+"="+options[k])
	}
	return list
}
