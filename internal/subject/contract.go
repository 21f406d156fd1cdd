package subject

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"dagger/parity/internal/proc"
)

// ContractOptions say what to hold to the contract, and with what.
type ContractOptions struct {
	CLI             CLI
	Other           Home              // another home, to see that homes are apart
	Source          string            // of the provider: the SOURCE of `provider add`
	ProviderOptions map[string]string // of the provider
	Image           string            // a reference that the provider can run
	Work            string            // an existing folder, for the workspaces' own folders

	// Machine returns what MicroSandbox says of the machine of a name. ErrNoMachine means that it has
	// none; any other error means that it could not be asked. Without it, nothing can be said of
	// what the CLI claims of its machine.
	Machine func(ctx context.Context, name string) (Machine, error)
}

// ErrNoMachine is the error about a machine that MicroSandbox does not have.
var ErrNoMachine = errors.New("MicroSandbox has no such machine")

// Machine is a workspace's machine, as MicroSandbox itself has it.
type Machine struct {
	State     string // in MicroSandbox's words: MachineRunning, MachineStopped or another one
	CreatedAt time.Time
}

// The states of a machine, in MicroSandbox's words.
const (
	MachineRunning = "Running"
	MachineStopped = "Stopped"
)

// ContractCheck is one rule of the contract.
type ContractCheck struct {
	Name     string // the verb and the rule, such as "workspace status: a missing workspace exits 75"
	Sentence string // true when the rule holds

	// On are the names of the earlier checks without which this one can say nothing. It can be run
	// whatever became of the others.
	On []string

	// Run checks the rule. A nil error means that it holds. A *ContractError is a breach; so is the *proc.Error of a command that
	// ended by itself. Any other error, such as the context's, means that it could not be checked.
	Run func(ctx context.Context) (expected, seen string, err error)
}

// The names of what the checks make.
const (
	contractProvider = "parity-contract"
	contractID       = "parity-contract"
	contractBroken   = "parity-contract-broken"
)

// The names of the checks that others stand on.
const (
	checkProvider = "provider add: adds a provider"
	checkArray    = "workspace list: JSON array"
	checkUp       = "workspace up: JSON on success"
	checkRunning  = "workspace status: Running after up"
	checkListed   = "workspace list: shows the workspace"
	checkMachine  = "workspace up: MicroSandbox runs its machine"
	checkStop     = "workspace stop: the state is Stopped"
	checkStart    = "workspace up: starts a stopped workspace"
	checkDelete   = "workspace delete: removes it"
	checkStdio    = "workspace ssh: --stdio is clean (an SSH banner is the first byte, 1 MiB binary round trip)"
)

// Contract gives the checks of the command-line contract, in the order in which they must run: they
// share one workspace, and each says which of those before it it stands on. cleanup removes what
// they made; it must run whatever became of them.
func Contract(o ContractOptions) (checks []ContractCheck, cleanup func(context.Context) error) {
	c := &contract{ContractOptions: o, other: o.CLI}
	c.other.Home = o.Other
	return c.checks(), func(ctx context.Context) error {
		return errors.Join(c.CLI.Delete(ctx, contractBroken, true), c.CLI.Delete(ctx, contractID, true),
			c.CLI.ProviderDelete(ctx, contractProvider))
	}
}

type contract struct {
	ContractOptions
	other CLI

	uid          string // of the workspace, as first listed
	user         string // whom up reported
	tellsMissing bool   // `workspace status` was seen to exit as it must for a workspace that never was
	machine      string // the name of its machine, once MicroSandbox was seen to run it
	createdAt    time.Time
}

func (c *contract) checks() []ContractCheck {
	return []ContractCheck{
		{checkProvider, "`provider add` exits 0 for the provider of the case.", nil, c.providerAdd},
		{checkArray, "`workspace list --result-format json` prints `[]` in a new home.", nil, c.listEmpty},
		{"workspace status: a missing workspace exits 75",
			"`workspace status` of a workspace that does not exist exits with code 75.", nil, c.statusMissing},
		{"workspace up: error JSON and exit 1 for an image that cannot be found",
			"A failing `workspace up` exits 1 and prints an outcome of \"error\" with a message.", on(checkProvider), c.upBroken},
		{checkUp,
			"`workspace up` exits 0 and prints an outcome of \"success\" and what it made.", on(checkProvider), c.up},
		{checkRunning,
			"`workspace status --result-format json` prints id, context, provider and the state Running.", on(checkUp), c.running},
		{checkListed, "`workspace list` has the workspace with its uid and its provider.", on(checkArray, checkUp), c.listed},
		{checkMachine, "MicroSandbox runs the machine whose name follows from the workspace's uid.", on(checkListed), c.machineRuns},
		{"homes are apart: another home does not list it",
			"With the folders of another home, the workspace is neither listed nor found.", on(checkListed), c.apart},
		{"homes are apart: another home does not enter it",
			"With the folders of another home, no command runs in the workspace.", on(checkUp), c.locked},
		{"workspace ssh: exit code 23 passes through --command",
			"`workspace ssh --command` exits with the command's own code.", on(checkUp), c.exitCode},
		{"workspace ssh: stdout and stderr apart",
			"What the command writes to its two outputs comes out of the CLI's two, and nothing else on the first.", on(checkUp), c.outputs},
		{checkStdio,
			"`workspace ssh --stdio` carries SSH from the first byte, and every byte.", on(checkUp), c.stdio},
		{checkStop, "After `workspace stop`, `workspace status` says Stopped.", on(checkRunning), c.stop},
		{"workspace stop: MicroSandbox has stopped its machine", "After `workspace stop`, MicroSandbox says that the machine is stopped.",
			on(checkMachine, checkStop), c.machineStopped},
		{checkStart,
			"`workspace up` of a stopped workspace starts it; it keeps its uid and its machine, with the creation time that it had.",
			on(checkMachine, checkStop), c.start},
		{"workspace ssh: enters a workspace that was stopped and started", "`workspace ssh --command` runs a command in it again.",
			on(checkStart), c.entered},
		{checkDelete,
			"After `workspace delete --force`, the workspace is neither listed nor found.", on(checkListed), c.delete},
		{"workspace delete: MicroSandbox has no machine of it", "After `workspace delete --force`, MicroSandbox has no machine of that name.",
			on(checkMachine, checkDelete), c.machineGone},
		{"workspace delete: again with --ignore-not-found succeeds",
			"`workspace delete --ignore-not-found` of a workspace that does not exist exits 0.", on(checkDelete), c.deleteAgain},
		// A CLI may keep a provider as long as it has a workspace.
		{"provider delete: succeeds, and again with --ignore-not-found",
			"`provider delete --ignore-not-found` exits 0, whether the provider exists or not.", on(checkProvider, checkDelete), c.providerDelete},
	}
}

// missing is the contract's exit code of `workspace status` for a workspace that does not exist.
const missing = 75

// on names what a check stands on.
func on(names ...string) []string { return names }

// breach is a *ContractError about a command that did run.
func breach(verb, expected, seen string) (string, string, error) {
	return expected, seen, &ContractError{Verb: verb, Expected: expected, Seen: seen}
}

// outcome says how a command that had to succeed went.
func outcome(expected string, err error) (string, string, error) {
	if err != nil {
		return expected, err.Error(), err
	}
	return expected, "exit code 0", nil
}

// otherProvider tells whether a CLI names another provider than the contract's. It names none only if
// its adapter has no place for it, which is a deviation.
func otherProvider(name string) bool { return name != "" && name != contractProvider }

// state checks the state that verb left the workspace in.
func (c *contract) state(ctx context.Context, verb, want string) (expected, seen string, err error) {
	expected = fmt.Sprintf("the id %q, the provider %q, a context and the state %s", contractID, contractProvider, want)
	s, err := c.CLI.Status(ctx, contractID)
	if err != nil {
		return expected, err.Error(), err
	}
	seen = fmt.Sprintf("the id %q, the provider %q, the context %q and the state %s", s.ID, s.Provider, s.Context, s.State)
	if otherProvider(s.Provider) || s.State != want {
		return breach(verb, expected, seen)
	}
	return expected, seen, nil
}

// absent checks that a home neither lists nor finds a workspace; verb is the one to blame when it
// does. That `workspace status` exits with another code than it must, or with none, is the matter
// of the check of that: if that did not hold, a workspace is found only if it has a state.
func (c *contract) absent(ctx context.Context, verb string, cli CLI, id string) (expected, seen string, err error) {
	expected = fmt.Sprintf("no %q in `workspace list`, and none that `workspace status` finds", id)
	if c.tellsMissing {
		expected = fmt.Sprintf("no %q in `workspace list`, and exit code %d of `workspace status`", id, missing)
	}
	if w, err := cli.Find(ctx, id); err == nil {
		return breach(verb, expected, fmt.Sprintf("it is listed with the uid %q", w.UID))
	} else if !errors.Is(err, ErrNotFound) {
		return expected, err.Error(), err
	}
	return c.unfound(ctx, verb, expected, cli, id, c.tellsMissing)
}

// unfound checks that `workspace status` does not find a workspace. If it is strict, its exit code
// must say so.
func (c *contract) unfound(ctx context.Context, verb, expected string, cli CLI, id string, strict bool) (string, string, error) {
	s, err := cli.Status(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return expected, "the same", nil
	}
	if err == nil && (strict || s.State == Running || s.State == Stopped) {
		return breach(verb, expected, fmt.Sprintf("`workspace status` exits 0 and says %s", s.State))
	}
	var said *ContractError
	code, ended := proc.ExitCode(err)
	switch {
	case ended && strict:
		return breach(verb, expected, fmt.Sprintf("`workspace status` exits %d: %v", code, err))
	case err == nil:
		return expected, fmt.Sprintf("`workspace status` exits 0 and says %s, which is no state of a workspace", s.State), nil
	case !strict && (ended || errors.As(err, &said)):
		return expected, err.Error(), nil
	}
	return expected, err.Error(), err
}

// folder makes a workspace's folder that asks for an image.
func (c *contract) folder(id, image string) (string, error) {
	dir := filepath.Join(c.Work, id)
	if err := os.MkdirAll(filepath.Join(dir, ".devcontainer"), 0o755); err != nil {
		return "", err
	}
	text := fmt.Sprintf("{\n\t// Made by Parity.\n\t\"image\": %q,\n}\n", image)
	return dir, os.WriteFile(filepath.Join(dir, ".devcontainer", "devcontainer.json"), []byte(text), 0o644)
}

func (c *contract) upOptions(id, dir string) UpOptions {
	return UpOptions{ID: id, Provider: contractProvider, Dir: dir}
}

func (c *contract) providerAdd(ctx context.Context) (expected, seen string, err error) {
	return outcome("exit code 0", c.CLI.ProviderAdd(ctx, c.Source, contractProvider, c.ProviderOptions))
}

func (c *contract) listEmpty(ctx context.Context) (expected, seen string, err error) {
	expected = "a JSON array without entries"
	list, err := c.CLI.List(ctx)
	if err != nil {
		return expected, err.Error(), err
	}
	if len(list) > 0 {
		return breach("workspace list", expected, fmt.Sprintf("the entry %q, the first of %d", list[0].ID, len(list)))
	}
	return expected, "[]", nil
}

func (c *contract) statusMissing(ctx context.Context) (expected, seen string, err error) {
	const verb = "workspace status"
	expected, seen, err = c.unfound(ctx, verb, fmt.Sprintf("exit code %d", missing), c.CLI, contractID, true)
	c.tellsMissing = err == nil
	return expected, seen, err
}

func (c *contract) upBroken(ctx context.Context) (expected, seen string, err error) {
	expected = `exit code 1 and JSON with the outcome "error" and a message`
	// Nothing listens on this port, so the answer is quick and needs no network.
	dir, err := c.folder(contractBroken, "127.0.0.1:1/parity/no-such-image:none")
	if err != nil {
		return expected, err.Error(), err
	}
	_, err = c.CLI.Up(ctx, c.upOptions(contractBroken, dir))
	var failed *UpError
	switch {
	case errors.As(err, &failed):
		seen = fmt.Sprintf("exit code 1 and the message %.300q", failed.Message)
		_ = c.CLI.Delete(ctx, contractBroken, true) // what it left half-made; whether delete works is the matter of other checks, and of cleanup
		return expected, seen, nil
	case err == nil:
		return breach("workspace up", expected, `exit code 0 and the outcome "success"`)
	}
	return expected, err.Error(), err
}

func (c *contract) up(ctx context.Context) (expected, seen string, err error) {
	expected = `exit code 0 and JSON with the outcome "success", containerId and remoteUser`
	dir, err := c.folder(contractID, c.Image)
	if err != nil {
		return expected, err.Error(), err
	}
	res, err := c.CLI.Up(ctx, c.upOptions(contractID, dir))
	if err != nil {
		return expected, err.Error(), err
	}
	c.user = res.RemoteUser
	return expected, fmt.Sprintf("%+v", res), nil
}

func (c *contract) running(ctx context.Context) (expected, seen string, err error) {
	return c.state(ctx, "workspace status", Running)
}

func (c *contract) listed(ctx context.Context) (expected, seen string, err error) {
	expected = fmt.Sprintf("an entry %q with a uid and the provider %q", contractID, contractProvider)
	w, err := c.CLI.Find(ctx, contractID)
	if errors.Is(err, ErrNotFound) {
		return breach("workspace list", expected, "no such entry")
	}
	if err != nil {
		return expected, err.Error(), err
	}
	c.uid = w.UID
	if otherProvider(w.Provider) {
		return breach("workspace list", expected, fmt.Sprintf("the provider %q", w.Provider))
	}
	return expected, fmt.Sprintf("the uid %q and the provider %q", w.UID, w.Provider), nil
}

func (c *contract) apart(ctx context.Context) (expected, seen string, err error) {
	return c.absent(ctx, "workspace list", c.other, contractID)
}

func (c *contract) exitCode(ctx context.Context) (expected, seen string, err error) {
	expected = "exit code 23"
	_, err = c.CLI.SSH(ctx, contractID, "exit 23", nil)
	code, ended := proc.ExitCode(err)
	switch {
	case code == 23:
		return expected, expected, nil
	case err == nil:
		return breach("workspace ssh --command", expected, "exit code 0")
	case ended:
		return breach("workspace ssh --command", expected, fmt.Sprintf("exit code %d: %v", code, err))
	}
	return expected, err.Error(), err
}

func (c *contract) outputs(ctx context.Context) (expected, seen string, err error) {
	out, errs := rand.Text(), rand.Text()
	expected = fmt.Sprintf("%q on standard output and nothing else there; %q on standard error", out, errs)
	res, err := c.CLI.SSH(ctx, contractID, fmt.Sprintf("echo %s; echo %s >&2", out, errs), nil)
	if err != nil {
		return expected, err.Error(), err
	}
	seen = fmt.Sprintf("%s on standard output, %s on standard error", shown(res.Stdout), shown(res.Stderr))
	if string(res.Stdout) != out+"\n" || !strings.Contains(string(res.Stderr), errs) {
		return breach("workspace ssh --command", expected, seen)
	}
	return expected, seen, nil
}

func (c *contract) stdio(ctx context.Context) (expected, seen string, err error) {
	const verb = "workspace ssh --stdio"
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random)
	expected = "an SSH banner first, and through `cat` 1048576 bytes with the SHA-256 " + digest(random)
	s, err := c.CLI.Dial(ctx, contractID, c.user)
	if err != nil {
		return expected, err.Error(), err
	}
	defer s.Close()
	res, err := s.Run(ctx, "cat", strings.NewReader(string(random)))
	if err != nil {
		return expected, err.Error(), err
	}
	seen = fmt.Sprintf("an SSH banner first, and %d bytes with the SHA-256 %s", len(res.Stdout), digest(res.Stdout))
	if string(res.Stdout) != string(random) {
		return breach(verb, expected, seen)
	}
	// Later commands over the same session, and both outputs, must be whole too.
	var failed *RunError
	res, err = s.Run(ctx, "echo out; echo err >&2; exit 23", nil)
	if !errors.As(err, &failed) && err != nil {
		return expected, err.Error(), err
	}
	if res.ExitCode != 23 || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
		return breach(verb, `exit code 23, "out" and "err" apart`,
			fmt.Sprintf("exit code %d, %s on standard output, %s on standard error", res.ExitCode, shown(res.Stdout), shown(res.Stderr)))
	}
	return expected, seen, s.Close()
}

func (c *contract) stop(ctx context.Context) (expected, seen string, err error) {
	if err := c.CLI.Stop(ctx, contractID); err != nil {
		return outcome("exit code 0 of `workspace stop`", err)
	}
	return c.state(ctx, "workspace stop", Stopped)
}

// look asks MicroSandbox for the workspace's machine. That it has none is a breach by the verb.
func (c *contract) look(ctx context.Context, verb, expected, name string) (m Machine, seen string, err error) {
	if c.Machine == nil {
		return m, "", errors.New("nobody can be asked for the machine: ContractOptions.Machine is not set")
	}
	m, err = c.Machine(ctx, name)
	if errors.Is(err, ErrNoMachine) {
		_, seen, err = breach(verb, expected, fmt.Sprintf("MicroSandbox has no machine %q", name))
		return m, seen, err
	}
	if err != nil {
		return m, err.Error(), err
	}
	return m, fmt.Sprintf("MicroSandbox says that the machine %q is %s", name, m.State), nil
}

func (c *contract) machineRuns(ctx context.Context) (expected, seen string, err error) {
	const verb = "workspace up"
	expected = "a machine whose name follows from the uid, and which runs"
	name, err := c.CLI.Sandbox(ctx, Workspace{ID: contractID, UID: c.uid})
	if err != nil {
		return expected, err.Error(), err
	}
	m, seen, err := c.look(ctx, verb, expected, name)
	if err != nil {
		return expected, seen, err
	}
	if m.State != MachineRunning {
		return breach(verb, expected, seen)
	}
	c.machine, c.createdAt = name, m.CreatedAt
	return expected, seen, nil
}

func (c *contract) machineStopped(ctx context.Context) (expected, seen string, err error) {
	const verb = "workspace stop"
	expected = fmt.Sprintf("the machine %q, stopped", c.machine)
	m, seen, err := c.look(ctx, verb, expected, c.machine)
	if err == nil && m.State != MachineStopped {
		return breach(verb, expected, seen)
	}
	return expected, seen, err
}

func (c *contract) machineGone(ctx context.Context) (expected, seen string, err error) {
	expected = fmt.Sprintf("no machine %q", c.machine)
	m, err := c.Machine(ctx, c.machine)
	switch {
	case errors.Is(err, ErrNoMachine):
		return expected, "MicroSandbox has none", nil
	case err != nil:
		return expected, err.Error(), err
	}
	return breach("workspace delete", expected, fmt.Sprintf("MicroSandbox still has it, and says that it is %s", m.State))
}

// locked tries to run a command in the workspace from another home. Only what the command prints
// shows that it ran: how the CLI refuses it is its own matter.
func (c *contract) locked(ctx context.Context) (expected, seen string, err error) {
	token := rand.Text()
	expected = fmt.Sprintf("that no command runs, which would print %q", token)
	res, err := c.other.SSH(ctx, contractID, "echo "+token, nil)
	if strings.Contains(string(res.Stdout), token) {
		return breach("workspace ssh --command", expected, fmt.Sprintf("%s on standard output", shown(res.Stdout)))
	}
	if _, ended := proc.ExitCode(err); err != nil && !ended {
		return expected, err.Error(), err
	}
	return expected, "nothing of it on standard output", nil
}

// entered runs a command in the workspace.
func (c *contract) entered(ctx context.Context) (expected, seen string, err error) {
	token := rand.Text()
	expected = fmt.Sprintf("exit code 0 and %q on standard output", token)
	res, err := c.CLI.SSH(ctx, contractID, "echo "+token, nil)
	if err != nil {
		return expected, err.Error(), err
	}
	seen = fmt.Sprintf("exit code 0 and %s on standard output", shown(res.Stdout))
	if string(res.Stdout) != token+"\n" {
		return breach("workspace ssh --command", expected, seen)
	}
	return expected, seen, nil
}

func (c *contract) start(ctx context.Context) (expected, seen string, err error) {
	expected = fmt.Sprintf("the outcome \"success\", the state Running, the uid %q, and the machine's creation time of before the stop", c.uid)
	if _, err := c.CLI.Up(ctx, c.upOptions(contractID, filepath.Join(c.Work, contractID))); err != nil {
		return expected, err.Error(), err
	}
	if _, seen, err := c.state(ctx, "workspace up", Running); err != nil {
		return expected, seen, err
	}
	w, err := c.CLI.Find(ctx, contractID)
	if err != nil {
		return expected, err.Error(), err
	}
	if w.UID != c.uid {
		return breach("workspace up", expected, fmt.Sprintf("the uid %q", w.UID))
	}
	return c.sameMachine(ctx, expected)
}

// sameMachine checks that the workspace's machine is the one that was stopped, and not one that was
// made anew in its place.
func (c *contract) sameMachine(ctx context.Context, expected string) (string, string, error) {
	m, seen, err := c.look(ctx, "workspace up", expected, c.machine)
	if err != nil {
		return expected, seen, err
	}
	seen += fmt.Sprintf(", created at %s, and before the stop at %s", m.CreatedAt.Format(time.RFC3339Nano), c.createdAt.Format(time.RFC3339Nano))
	switch {
	case m.State != MachineRunning:
		return breach("workspace up", expected, seen)
	case m.CreatedAt.IsZero() || c.createdAt.IsZero():
		return expected, seen, errors.New("MicroSandbox gives no creation time: " + seen)
	case !m.CreatedAt.Equal(c.createdAt):
		return breach("workspace up", expected, seen+": the machine was made anew, and what was on its disk is gone")
	}
	return expected, seen, nil
}

func (c *contract) delete(ctx context.Context) (expected, seen string, err error) {
	// The workspace is there, unless this is the check's second time.
	if _, err := c.CLI.delete(ctx, contractID, true); err != nil {
		return outcome("exit code 0 of `workspace delete`", err)
	}
	return c.absent(ctx, "workspace delete", c.CLI, contractID)
}

func (c *contract) deleteAgain(ctx context.Context) (expected, seen string, err error) {
	return outcome("exit code 0", c.CLI.Delete(ctx, contractID, true))
}

func (c *contract) providerDelete(ctx context.Context) (expected, seen string, err error) {
	if err := c.CLI.providerDeleteExisting(ctx, contractProvider); err != nil {
		return outcome("exit code 0", err)
	}
	return outcome("exit code 0, twice", c.CLI.ProviderDelete(ctx, contractProvider))
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
