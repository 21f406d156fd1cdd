package subject_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/subject"
)

// agent is a real parity-agent.
var agent string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "parity-subject-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		agent = filepath.Join(dir, "parity-agent")
		if err := labtest.Build(dir, "dagger/parity/cmd/parity-agent"); err != nil {
			panic(fmt.Sprintf("build the agent: %v", err))
		}
		return m.Run()
	}())
}

// bounded is a context for what must end, however slow the machine.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func home(t *testing.T) subject.Home {
	t.Helper()
	h, err := subject.NewHome(subject.Home{Dir: t.TempDir(), MSBHome: "/msb", Path: os.Getenv("PATH")})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// cli gives the shell script as a CLI that breaks one rule.
func cli(t *testing.T, fault string) subject.CLI {
	t.Helper()
	script, err := os.ReadFile("testdata/cli.sh")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cli.sh")
	head := fmt.Sprintf("FAULT='%s' AGENT='%s' LEAK='%s'\n", fault, agent, t.TempDir())
	if err := os.WriteFile(path, append([]byte(head), script...), 0o644); err != nil {
		t.Fatal(err)
	}
	return subject.CLI{Argv: []string{"/bin/sh", path}, Home: home(t)}
}

// up gives a CLI with a running workspace "w".
func up(t *testing.T, fault string) subject.CLI {
	t.Helper()
	c := cli(t, fault)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".devcontainer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".devcontainer/devcontainer.json"), []byte(`{"image":"x"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Up(bounded(t), subject.UpOptions{ID: "w", Provider: "p", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	return c
}

func session(t *testing.T, fault string) *subject.Session {
	t.Helper()
	s, err := up(t, fault).Dial(bounded(t), "w", "root")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// contractOptions are those of the contract for a CLI that tells in files what MicroSandbox would
// say of its machines.
func contractOptions(t *testing.T, c subject.CLI) subject.ContractOptions {
	t.Helper()
	return subject.ContractOptions{
		CLI: c, Other: home(t), Source: "x", Image: "x", Work: t.TempDir(),
		Machine: func(context.Context, string) (m subject.Machine, err error) {
			read := func(name string) string {
				text, readErr := os.ReadFile(filepath.Join(c.Home.Dir, "cli", name+"-parity-contract"))
				err = errors.Join(err, readErr)
				return strings.TrimSpace(string(text))
			}
			m.State = read("machine")
			if errors.Is(err, os.ErrNotExist) {
				return m, subject.ErrNoMachine
			}
			var parsed error
			m.CreatedAt, parsed = time.Parse(time.RFC3339Nano, read("created"))
			return m, errors.Join(err, parsed)
		},
	}
}

func TestContractHolds(t *testing.T) {
	checks, cleanup := subject.Contract(contractOptions(t, cli(t, "")))
	for _, check := range checks {
		if expected, seen, err := check.Run(bounded(t)); err != nil || expected == "" || seen == "" {
			t.Errorf("%s:\nexpected %s\nseen     %s\nerror    %v", check.Name, expected, seen, err)
		}
	}
	if err := cleanup(bounded(t)); err != nil {
		t.Error(err)
	}
}

// The names of checks of the contract, as tests use them.
const (
	statusRunning = "workspace status: Running after up"
	listShows     = "workspace list: shows the workspace"
	sshExitCode   = "workspace ssh: exit code 23 passes through --command"
	sshOutputs    = "workspace ssh: stdout and stderr apart"
	sshStdio      = "workspace ssh: --stdio is clean (an SSH banner is the first byte, 1 MiB binary round trip)"
	upStarts      = "workspace up: starts a stopped workspace"
	upRuns        = "workspace up: MicroSandbox runs its machine"
)

// Each fault must be caught by the checks that are about it, and by no other that can be made then:
// one that does not stand on a broken check says of its own what it would say without. The error
// must name the verb.
func TestContractCatches(t *testing.T) {
	for fault, want := range map[string][]string{
		"provider-add":    {"provider add: adds a provider"},
		"list-null":       {"workspace list: JSON array"},
		"not-75":          {"workspace status: a missing workspace exits 75"},
		"up-lies":         {"workspace up: error JSON and exit 1 for an image that cannot be found"},
		"up-text":         {"workspace up: error JSON and exit 1 for an image that cannot be found"},
		"up-log":          {"workspace up: JSON on success"},
		"up-nothing":      {statusRunning, listShows, sshExitCode, sshOutputs, sshStdio},
		"no-uid":          {listShows},
		"shared":          {"homes are apart: another home does not list it", "homes are apart: another home does not enter it"},
		"entered":         {"homes are apart: another home does not enter it"},
		"no-machine":      {upRuns},
		"stop-said":       {"workspace stop: MicroSandbox has stopped its machine"},
		"dead-after-stop": {"workspace ssh: enters a workspace that was stopped and started"},
		"leaves-machine":  {"workspace delete: MicroSandbox has no machine of it"},
		"exit-1":          {sshExitCode},
		"merged":          {sshOutputs},
		"banner":          {sshStdio},
		"dies":            {sshStdio},
		"lingers":         {sshStdio},
		"never-stopped":   {"workspace stop: the state is Stopped"},
		"new-uid":         {upStarts},
		"anew":            {upStarts},
		"keeps":           {"workspace delete: removes it"},
		"delete-twice":    {"workspace delete: again with --ignore-not-found succeeds"},
		"provider-delete": {"provider delete: succeeds, and again with --ignore-not-found"},
	} {
		t.Run(fault, func(t *testing.T) {
			checks, _ := subject.Contract(contractOptions(t, cli(t, fault)))
			held := map[string]bool{}
			var broken []string
			for _, check := range checks {
				if slices.ContainsFunc(check.On, func(name string) bool { return !held[name] }) {
					continue
				}
				expected, seen, err := check.Run(bounded(t))
				if held[check.Name] = err == nil; held[check.Name] {
					continue
				}
				broken = append(broken, check.Name)
				verb := strings.Join(strings.Fields(strings.ReplaceAll(check.Name, ":", ""))[:2], " ")
				if verb == "homes are" {
					verb = "workspace"
				}
				if !strings.Contains(err.Error(), verb) {
					t.Errorf("the error does not name the verb %q: %v", verb, err)
				}
				if expected == "" || seen == "" {
					t.Errorf("expected %q, seen %q", expected, seen)
				}
			}
			if !slices.Equal(broken, want) {
				t.Errorf("caught by %q, want %q", broken, want)
			}
		})
	}
}

// Who cannot be told of a machine says nothing of a subject: neither that it keeps the contract, nor
// that it broke it.
func TestWithoutMicroSandboxsWordTheContractIsNeitherKeptNorBroken(t *testing.T) {
	running := subject.Machine{State: subject.MachineRunning}
	for name, test := range map[string]struct {
		machine func(context.Context, string) (subject.Machine, error)
		unclear string
	}{
		"nobody to ask": {nil, upRuns},
		"no answer":     {func(context.Context, string) (subject.Machine, error) { return running, errors.New("no answer") }, upRuns},
		"no time":       {func(context.Context, string) (subject.Machine, error) { return running, nil }, upStarts},
	} {
		o := contractOptions(t, cli(t, ""))
		o.Machine = test.machine
		checks, _ := subject.Contract(o)
		for _, check := range checks {
			_, _, err := check.Run(bounded(t))
			var breach *subject.ContractError
			if check.Name == test.unclear {
				if err == nil || errors.As(err, &breach) {
					t.Errorf("%s: %s: %v", name, check.Name, err)
				}
				break
			}
			if err != nil && check.Name != "workspace stop: MicroSandbox has stopped its machine" {
				t.Errorf("%s: %s: %v", name, check.Name, err)
			}
		}
	}
}

func TestUpErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".devcontainer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".devcontainer/devcontainer.json"), []byte(`{"image":"no-such-image"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	o := subject.UpOptions{ID: "w", Provider: "p", Dir: dir}
	_, err := cli(t, "").Up(bounded(t), o)
	var failed *subject.UpError
	if !errors.As(err, &failed) || failed.Message != "image not found" {
		t.Errorf("got %v, want an UpError with the CLI's message", err)
	}
	_, err = cli(t, "up-text").Up(bounded(t), o)
	var breach *subject.ContractError
	if !errors.As(err, &breach) || !strings.Contains(err.Error(), "image not found") {
		t.Errorf("got %v, want a ContractError with the CLI's last words", err)
	}
}

// The CLI sees the home's environment and none of this process's own.
func TestEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
	c := up(t, "")
	res, err := c.SSH(bounded(t), "w", "env", nil)
	if err != nil {
		t.Fatal(err)
	}
	env := string(res.Stdout)
	for _, want := range []string{"HOME=" + c.Home.Dir + "/home\n", "DEVSY_HOME=" + c.Home.Dir + "/cli\n", "XDG_CONFIG_HOME=" + c.Home.Dir + "/config\n",
		"DEVSY_CONFIG=\n", "DEVSY_DISABLE_TELEMETRY=true\n", "MSB_HOME=/msb\n"} {
		if !strings.Contains(env, want) {
			t.Errorf("no %q in the environment:\n%s", want, env)
		}
	}
	if strings.Contains(env, "PROXY") {
		t.Errorf("a proxy variable came through:\n%s", env)
	}
}

func TestSSH(t *testing.T) {
	c := up(t, "")
	res, err := c.SSH(bounded(t), "w", "cat; echo err >&2; exit 5", strings.NewReader("in"))
	if code, _ := proc.ExitCode(err); code != 5 || string(res.Stdout) != "in" || string(res.Stderr) != "err\n" {
		t.Errorf("got %q, %q, %v", res.Stdout, res.Stderr, err)
	}
}

func TestSessionRun(t *testing.T) {
	s := session(t, "")
	if s.HostKey == nil || s.HostKey.Type() != "ssh-ed25519" {
		t.Errorf("the host key was not recorded: %v", s.HostKey)
	}
	res, err := s.Run(bounded(t), "cat; echo err >&2", strings.NewReader("in"))
	if err != nil || string(res.Stdout) != "in" || string(res.Stderr) != "err\n" || res.ExitCode != 0 {
		t.Errorf("got %+v, %v", res, err)
	}
	for command, want := range map[string]subject.RunError{
		"exit 7":        {ExitCode: 7},
		"kill -KILL $$": {ExitCode: 137, ExitSignal: "KILL"},
	} {
		res, err := s.Run(bounded(t), command, nil)
		var ended *subject.RunError
		if !errors.As(err, &ended) || ended.ExitCode != want.ExitCode || ended.ExitSignal != want.ExitSignal ||
			res.ExitCode != want.ExitCode || res.ExitSignal != want.ExitSignal {
			t.Errorf("%s: got %+v, %v", command, res, err)
		}
	}
	if res, err := s.Run(bounded(t), "head -c 1", strings.NewReader(strings.Repeat("x", 8<<20))); err != nil || string(res.Stdout) != "x" {
		t.Errorf("a command that leaves input unread: %+v, %v", res, err)
	}
	if err := s.Alive(bounded(t)); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.Done():
	default:
		t.Error("the command still runs after Close")
	}
	if err := s.Alive(bounded(t)); err == nil {
		t.Error("a closed session says that it is healthy")
	}
}

func TestRunIsBounded(t *testing.T) {
	s := session(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Run(ctx, "exec sleep 1000", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
	if err := s.Alive(bounded(t)); err != nil {
		t.Errorf("the session should have survived: %v", err)
	}
}

// The workspace does not answer at all: the CLI and the agent are there, but stopped.
func TestHungConnection(t *testing.T) {
	s := session(t, "")
	res, err := s.Run(bounded(t), "echo $PPID", nil) // the agent, which exec put in the CLI's place
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(res.Stdout), &pid)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, stdin := range []string{"", strings.Repeat("x", 8<<20)} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := s.Run(ctx, "cat", strings.NewReader(stdin)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		cancel()
	}
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "was ended") {
			t.Errorf("Close gave %v, want that the command had to be ended", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Close hangs")
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the agent is still there after Close")
	}
}

func TestSessionNoticesADeadCommand(t *testing.T) {
	s := session(t, "")
	// The agent dies, and this shell with it: nobody else would end it.
	_, err := s.Run(bounded(t), "kill -KILL $PPID; kill -KILL $$", nil)
	if err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want that the command was killed", err)
	}
	select {
	case <-s.Done():
	case <-time.After(time.Minute):
		t.Error("the session did not notice")
	}
	if err := s.Alive(bounded(t)); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want that the command was killed", err)
	}
}

func TestDialErrors(t *testing.T) {
	_, err := up(t, "banner").Dial(bounded(t), "w", "root")
	var breach *subject.ContractError
	if !errors.As(err, &breach) || !strings.Contains(breach.Seen, "Welcome!") {
		t.Errorf("text before the banner: got %v", err)
	}
	_, err = up(t, "dies").Dial(bounded(t), "w", "root")
	if code, ok := proc.ExitCode(err); !ok || code != 1 || !strings.Contains(err.Error(), "the connection was refused") {
		t.Errorf("a command that fails: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err = up(t, "hang").Dial(ctx, "w", "root"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that never answers: got %v", err)
	}
}

func TestUpload(t *testing.T) {
	s := session(t, "")
	content := make([]byte, 3<<20)
	rand.New(rand.NewSource(1)).Read(content)
	local, remote := filepath.Join(t.TempDir(), "local"), filepath.Join(t.TempDir(), "it's remote")
	if err := os.WriteFile(local, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Upload(bounded(t), local, remote, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(remote)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if info, _ := os.Stat(remote); info.Mode() != 0o755 {
		t.Errorf("the mode is %v", info.Mode())
	}
	folder := filepath.Dir(remote)
	if err := s.Upload(bounded(t), local, filepath.Join(folder, "absent", "x"), 0o755); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("into a folder that does not exist: %v", err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 1 {
		t.Errorf("something was left beside the file: %v", left)
	}
}

func TestVMName(t *testing.T) {
	for uid, want := range map[string]string{
		"u-1":                    "devsy-u-1",
		strings.Repeat("a", 122): "devsy-" + strings.Repeat("a", 122),
		strings.Repeat("a", 123): "devsy-" + strings.Repeat("a", 109) + "-6675ba780648",
	} {
		if got := subject.VMName(uid); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Each check of the contract says by which results it is judged, so that no deviation of an adapter
// is hidden.
func TestEveryContractCheckSaysWhatItReads(t *testing.T) {
	a := adapter.Contract()
	for verb, c := range a.Commands {
		c.Run, c.Last = nil, true // no command, and one line of output: deviations of every verb
		a.Commands[verb] = c
	}
	all := subject.CLI{Adapter: a}
	checks, _ := subject.Contract(contractOptions(t, cli(t, "")))
	shown := map[string]bool{}
	for _, check := range checks {
		for _, d := range all.Deviations(check.Name) {
			shown[d] = true
		}
		if d := (subject.CLI{}).Deviations(check.Name); len(d) > 0 {
			t.Errorf("%s: the contract deviates from itself: %q", check.Name, d)
		}
	}
	for _, d := range a.Deviations() {
		if d.Field == "output" && !shown[d.Text] && (d.Verb == adapter.Up || d.Verb == adapter.Status || d.Verb == adapter.List) {
			t.Errorf("no check shows the deviation %q", d)
		}
	}
}

// If an adapter has words for states, a CLI's other words stand for nothing: not even Parity's own.
func TestAStateThatTheAdapterDoesNotKnowIsNone(t *testing.T) {
	c := up(t, "")
	c.Adapter = adapter.Contract()
	status := c.Adapter.Commands[adapter.Status]
	for word, want := range map[string]string{"Running": subject.Running, "up": `"Running", which the adapter does not know`} {
		status.States = map[string]string{word: subject.Running}
		c.Adapter.Commands[adapter.Status] = status
		if s, err := c.Status(bounded(t), "w"); err != nil || s.State != want {
			t.Errorf("%s: %q, %v; want %q", word, s.State, err, want)
		}
	}
}

// An adapter that reads no outcome has it from the exit code: its words for outcomes are not for that.
func TestAnOutcomeOfTheExitCodeNeedsNoWord(t *testing.T) {
	c := up(t, "")
	c.Adapter = adapter.Contract()
	command := c.Adapter.Commands[adapter.Up]
	delete(command.Result, adapter.Outcome)
	command.Outcomes = map[string]string{"ok": "success"}
	c.Adapter.Commands[adapter.Up] = command
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".devcontainer"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".devcontainer/devcontainer.json"), []byte(`{"image":"x"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if res, err := c.Up(bounded(t), subject.UpOptions{ID: "w", Provider: "p", Dir: dir}); err != nil || res.RemoteUser != "root" {
		t.Errorf("%+v, %v", res, err)
	}
}
