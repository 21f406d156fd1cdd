package reference_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference"
	"dagger/parity/internal/subject"
)

// agent is a real parity-agent, and runtime a real parity-runtime.
var agent, runtime string

// TestMain is the CLI itself, or dial, when its first argument says so.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "dial" {
		os.Exit(dial(os.Args[2]))
	}
	if len(os.Args) > 1 && os.Args[1] == "devsy" {
		c := reference.Command("devsy")
		c.SetArgs(os.Args[2:])
		err := c.Execute()
		var exit *reference.Exit
		if errors.As(err, &exit) {
			os.Exit(exit.Code)
		}
		if err != nil {
			panic("an error that is not an Exit: " + err.Error())
		}
		os.Exit(0)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "parity-reference-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		agent, runtime = filepath.Join(dir, "parity-agent"), filepath.Join(dir, "parity-runtime")
		if err := labtest.Build(dir, "dagger/parity/cmd/parity-agent", "dagger/parity/cmd/parity-runtime"); err != nil {
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

// bench is the CLI with a home and a stand-in for msb.
type bench struct {
	*testing.T
	subject.CLI
	msb, dir string // MSB_HOME; a workspace's folder
	program  string // the stand-in for msb
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, msb: t.TempDir(), dir: filepath.Join(t.TempDir(), "app")}
	script, err := filepath.Abs("../msbdriver/testdata/msb.sh")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "msb"), text, 0o755); err != nil {
		t.Fatal(err)
	}
	b.program = filepath.Join(bin, "msb")
	b.Argv = []string{os.Args[0], "devsy"}
	b.Home = b.home()
	b.Home.Path = bin + ":" + os.Getenv("PATH")
	b.devcontainer(`{
		// comments and trailing commas are fine
		"name": "x", "image": "image:1", "containerEnv": {"A": "b c"},
	}`)
	return b
}

func (b *bench) home() subject.Home {
	b.Helper()
	h, err := subject.NewHome(subject.Home{Dir: b.TempDir(), MSBHome: b.msb, Path: b.Home.Path, Extra: []string{
		"DEVSY_AGENT=" + agent,
		"GORACE=atexit_sleep_ms=0", // or each command of a race build takes a second to exit
	}})
	if err != nil {
		b.Fatal(err)
	}
	return h
}

func (b *bench) devcontainer(text string) {
	b.Helper()
	file := filepath.Join(b.dir, ".devcontainer", "devcontainer.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// must fails the test on an error.
func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) up(o subject.UpOptions) (subject.UpResult, error) {
	b.Helper()
	o.ID, o.Dir = "w", b.dir
	if o.Provider == "" {
		o.Provider = "p"
	}
	return b.Up(bounded(b.T), o)
}

func (b *bench) addProvider(options map[string]string) {
	b.Helper()
	b.must(b.ProviderAdd(bounded(b.T), "microsandbox", "p", options))
}

// asked gives the commands of a kind that msb was given.
func (b *bench) asked(verb string) (lines []string) {
	log, _ := os.ReadFile(filepath.Join(b.msb, "log"))
	return regexp.MustCompile(`(?m)^`+verb+` .*$`).FindAllString(string(log), -1)
}

// run runs the CLI as it stands.
func (b *bench) run(args ...string) (proc.Result, int) {
	b.Helper()
	res, err := proc.Run(bounded(b.T), proc.Cmd{Argv: append(b.Argv[:2:2], args...), Env: b.Environ(), Dir: b.Home.Dir})
	code, exited := proc.ExitCode(err)
	if err != nil && !exited {
		b.Fatal(err)
	}
	return res, code
}

// keepsContract makes every check of the contract, with a provider's source, another home, and the
// store of the workspaces' machines.
func (b *bench) keepsContract(source string, other subject.Home, store string) {
	b.Helper()
	client := msb.Client{Path: b.program, Home: store}
	machine := func(ctx context.Context, name string) (subject.Machine, error) {
		box, err := client.Inspect(ctx, name)
		if errors.Is(err, msb.ErrNotFound) {
			err = subject.ErrNoMachine
		}
		return subject.Machine{State: string(box.Status), CreatedAt: box.CreatedAt}, err
	}
	checks, cleanup := subject.Contract(subject.ContractOptions{CLI: b.CLI, Other: other, Source: source,
		ProviderOptions: map[string]string{"MICROSANDBOX_CPUS": "2"}, Image: "image:1", Work: b.TempDir(), Machine: machine})
	for _, check := range checks {
		if expected, seen, err := check.Run(bounded(b.T)); err != nil {
			b.Errorf("%s:\nexpected %s\nseen     %s\nerror    %v", check.Name, expected, seen, err)
		}
	}
	b.must(cleanup(bounded(b.T)))
}

func TestContract(t *testing.T) {
	b := newBench(t)
	b.keepsContract("microsandbox", b.home(), b.msb)
}

func TestLifecycle(t *testing.T) {
	b := newBench(t)
	b.addProvider(map[string]string{"MICROSANDBOX_MEMORY": "256"})
	first, err := b.up(subject.UpOptions{})
	b.must(err)
	w, err := b.Find(bounded(t), "w")
	b.must(err)
	want := subject.UpResult{Outcome: "success", ContainerID: subject.VMName(w.UID), RemoteUser: "root", RemoteWorkspaceFolder: "/workspaces/app"}
	if first != want {
		t.Errorf("up: got %+v, want %+v", first, want)
	}
	create := b.asked("create")
	if len(create) != 1 || !strings.Contains(create[0], "--memory 256M") || !strings.Contains(create[0], "--env A=b c") ||
		strings.Contains(create[0], "egress") {
		t.Errorf("msb was asked for %q", create)
	}

	// Commands run in the workspace's folder, and stdin reaches them.
	res, err := b.SSH(bounded(t), "w", "pwd; cat", strings.NewReader("in"))
	if err != nil || string(res.Stdout) != "/workspaces/app\nin" {
		t.Errorf("ssh --command: %q, %v", res.Stdout, err)
	}

	// Up of a running one changes nothing; options wait for a recreation.
	deny := map[string]string{"MICROSANDBOX_BLOCK_EGRESS": "true"}
	_, err = b.up(subject.UpOptions{ProviderOptions: deny})
	b.must(err)
	if n := len(b.asked("create")) + len(b.asked("remove")); n != 1 {
		t.Errorf("up of a running workspace made or removed a machine")
	}

	b.must(b.Stop(bounded(t), "w"))
	b.must(b.Stop(bounded(t), "w"))
	for _, args := range [][]string{{"--command", "true"}, {"--stdio"}} {
		res, code := b.run(append([]string{"workspace", "ssh", "w"}, args...)...)
		if code != 1 || len(res.Stdout) > 0 || !strings.Contains(string(res.Stderr), "its state is Stopped") {
			t.Errorf("ssh %v into a stopped workspace: code %d, %q, %q", args, code, res.Stdout, res.Stderr)
		}
	}
	if n := len(b.asked("exec")); n != 1 {
		t.Errorf("msb exec ran %d times: a stopped machine would have been booted", n)
	}
	_, err = b.up(subject.UpOptions{})
	b.must(err)

	// A recreation reads devcontainer.json and the options again, and keeps the uid.
	b.devcontainer(`{"image": "image:2", "remoteUser": "dev", "workspaceFolder": "/srv/x"}`)
	again, err := b.up(subject.UpOptions{Recreate: true, ProviderOptions: deny})
	b.must(err)
	want.RemoteUser, want.RemoteWorkspaceFolder = "dev", "/srv/x"
	if again != want {
		t.Errorf("up --recreate: got %+v, want %+v", again, want)
	}
	create = b.asked("create")
	if len(create) != 2 || !strings.HasSuffix(create[1], " image:2") || !strings.Contains(create[1], "--user dev") ||
		!strings.Contains(create[1], "--net-default-egress deny") || !strings.Contains(create[1], "--memory 256M") {
		t.Errorf("msb was asked for %q", create)
	}
	// What was given for the workspace stays with it.
	_, err = b.up(subject.UpOptions{Recreate: true})
	b.must(err)
	if create = b.asked("create"); len(create) != 3 || !strings.Contains(create[2], "--net-default-egress deny") {
		t.Errorf("msb was asked for %q", create)
	}

	b.must(b.Delete(bounded(t), "w", true))
	if left, _ := os.ReadDir(filepath.Join(b.msb, "m")); len(left) > 0 {
		t.Errorf("machines were left: %v", left)
	}
}

// The machine's making is cut off by SIGKILL: the workspace is shown, and both up and delete go on from there.
func TestKilledUp(t *testing.T) {
	for _, next := range []string{"up", "delete"} {
		t.Run(next, func(t *testing.T) {
			b := newBench(t)
			b.addProvider(nil)
			hang := filepath.Join(b.msb, "hang")
			b.must(os.WriteFile(hang, nil, 0o644))
			p, err := proc.Start(bounded(t), proc.Cmd{Env: b.Environ(),
				Argv: append(b.Argv[:2:2], "workspace", "up", "--ide", "none", "--id", "w", "--provider", "p", b.dir)})
			b.must(err)
			var msb int
			for msb == 0 {
				text, _ := os.ReadFile(filepath.Join(b.msb, "hanging"))
				fmt.Sscan(string(text), &msb)
				select {
				case <-p.Done():
					_, err := p.Wait()
					t.Fatalf("up ended: %v", err)
				case <-time.After(5 * time.Millisecond):
				}
			}
			defer func() { _ = syscall.Kill(-msb, syscall.SIGKILL) }()
			b.must(p.Signal(syscall.SIGKILL))
			_, _ = p.Wait()
			b.must(syscall.Kill(-msb, syscall.SIGKILL))
			b.must(os.Remove(hang))

			w, err := b.Find(bounded(t), "w")
			b.must(err)
			if s, err := b.Status(bounded(t), "w"); err != nil || s.State == subject.Running {
				t.Errorf("status of a half-made workspace: %+v, %v", s, err)
			}
			if next == "up" {
				_, err := b.up(subject.UpOptions{})
				b.must(err)
				if again, _ := b.Find(bounded(t), "w"); again.UID != w.UID {
					t.Errorf("the uid changed from %q to %q", w.UID, again.UID)
				}
				if n := len(b.asked("create")); n != 2 {
					t.Errorf("the half-made machine was not made anew: %d creates", n)
				}
			}
			b.must(b.Delete(bounded(t), "w", true))
			if left, _ := os.ReadDir(filepath.Join(b.msb, "m")); len(left) > 0 {
				t.Errorf("machines were left: %v", left)
			}
			if _, err := b.Status(bounded(t), "w"); !errors.Is(err, subject.ErrNotFound) {
				t.Errorf("status after delete: %v", err)
			}
		})
	}
}

func TestTwoUpsAtOnce(t *testing.T) {
	b := newBench(t)
	b.addProvider(nil)
	var both sync.WaitGroup
	var results [2]subject.UpResult
	var errs [2]error
	for i := range 2 {
		both.Go(func() { results[i], errs[i] = b.up(subject.UpOptions{}) })
	}
	both.Wait()
	b.must(errors.Join(errs[:]...))
	if results[0] != results[1] || len(b.asked("create")) != 1 {
		t.Errorf("got %+v and %+v after %q", results[0], results[1], b.asked("create"))
	}
}

func TestFailedUpIsShownAndDeleted(t *testing.T) {
	b := newBench(t)
	b.addProvider(nil)
	// Nothing listens there.
	b.devcontainer(`{"image": "127.0.0.1:1/no/such:image"}`)
	_, err := b.up(subject.UpOptions{})
	var failed *subject.UpError
	if !errors.As(err, &failed) || !strings.Contains(failed.Message, "the registry cannot be reached: 127.0.0.1:1: ") {
		t.Fatalf("got %v", err)
	}
	if s, err := b.Status(bounded(t), "w"); err != nil || s.State != "NotFound" {
		t.Errorf("got %+v, %v", s, err)
	}
	b.must(b.Delete(bounded(t), "w", true))
}

func TestBadInput(t *testing.T) {
	b := newBench(t)
	b.addProvider(nil)
	good := `{"image": "image:1"}`
	for name, c := range map[string]struct {
		devcontainer string
		options      subject.UpOptions
		want         string
	}{
		"not JSON":         {devcontainer: `{"image": `, want: "devcontainer.json: not JSON with comments"},
		"not an object":    {devcontainer: `[]`, want: "expected a JSON object"},
		"no image":         {devcontainer: `{}`, want: `"image" is missing`},
		"wrong type":       {devcontainer: `{"image": 5}`, want: `the key "image"`},
		"build options":    {devcontainer: `{"build": {"dockerfile": "x", "options": []}}`, want: `the key "build.options" is not supported`},
		"no dockerfile":    {devcontainer: `{"build": {"context": "."}}`, want: `the key "build": "dockerfile" is missing`},
		"image and build":  {devcontainer: `{"image": "x", "dockerFile": "x"}`, want: `expected one of the keys "image" and "build", seen both`},
		"a remote Feature": {devcontainer: `{"image": "x", "features": {"ghcr.io/x/y:1": {}}}`, want: `the Feature "ghcr.io/x/y:1": expected a folder`},
		"compose":          {devcontainer: `{"dockerComposeFile": "x"}`, want: `the key "dockerComposeFile" is not supported`},
		"variable":         {devcontainer: `{"image": "x", "containerEnv": {"A": "${localEnv:HOME}"}}`, want: `"containerEnv" has a variable`},
		"folder":           {devcontainer: `{"image": "x", "workspaceFolder": "x"}`, want: `"workspaceFolder": expected an absolute path`},
		"missing file":     {devcontainer: good, options: subject.UpOptions{DevcontainerPath: "other.json"}, want: "expected other.json"},
		"unknown provider": {devcontainer: good, options: subject.UpOptions{Provider: "q"}, want: `provider "q" not found`},
		"unknown option":   {devcontainer: good, options: subject.UpOptions{ProviderOptions: map[string]string{"X": "1"}}, want: "unknown option X"},
		"bad number": {devcontainer: good, options: subject.UpOptions{ProviderOptions: map[string]string{"MICROSANDBOX_CPUS": "many"}},
			want: `MICROSANDBOX_CPUS: expected a whole number from 1 to 255, seen "many"`},
	} {
		b.devcontainer(c.devcontainer)
		_, err := b.up(c.options)
		var failed *subject.UpError
		if !errors.As(err, &failed) || !strings.Contains(failed.Message, c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if list, err := b.List(bounded(t)); err != nil || len(list) > 0 {
		t.Errorf("bad input left a workspace: %v, %v", list, err)
	}
}

func TestUsage(t *testing.T) {
	b := newBench(t)
	b.addProvider(nil)
	_, err := b.up(subject.UpOptions{})
	b.must(err)
	for args, want := range map[string]string{
		"work":                                            `unknown command "work"`,
		"workspace fly w":                                 `unknown command "fly"`,
		"workspace status":                                "accepts 1 arg",
		"workspace status w --result-format xml":          "expected plain or json",
		"workspace stop w --fast":                         "unknown flag: --fast",
		"workspace stop UPPER":                            "workspace id: expected at most 48 lower case letters",
		"workspace stop absent":                           `workspace "absent" not found`,
		"workspace delete absent":                         `workspace "absent" not found`,
		"workspace ssh absent --stdio":                    `workspace "absent" not found`,
		"workspace ssh w":                                 "give one of --command and --stdio",
		"workspace ssh w --command x --stdio":             "give one of --command and --stdio",
		"workspace ssh w --command x --user nobody":       `run as "root"`,
		"provider add microsandbox --name p":              `provider "p" is there already`,
		"provider add microsandbox --name q -o X":         "expected KEY=VALUE",
		"provider add microsandbox --name q -o X=1":       "unknown option X",
		"provider add ./provider.yaml --name q":           `expected "microsandbox", the built-in provider, or a file, a folder or a URL of a provider.yaml`,
		"provider delete absent":                          `provider "absent" not found`,
		"workspace up /no/such/folder --id w":             "no such file or directory",
		"workspace up / --id w --provider p":              "delete it first",
		"workspace up / --id w --provider p --ide vscode": "--ide: expected none",
	} {
		res, code := b.run(strings.Fields(args)...)
		if code != 1 || !strings.Contains(string(res.Stderr), want) {
			t.Errorf("%s: code %d, %q; want 1 and %q", args, code, res.Stderr, want)
		}
	}
	if res, code := b.run("workspace", "status", "absent", "--result-format", "json"); code != 75 || len(res.Stdout) > 0 {
		t.Errorf("status of a missing workspace: code %d, %q", code, res.Stdout)
	}
	for args, want := range map[string]string{
		"workspace status w": "Running\n",
		"workspace list":     "ID ",
		"provider list":      "p     microsandbox",
	} {
		if res, code := b.run(strings.Fields(args)...); code != 0 || !strings.Contains(string(res.Stdout), want) {
			t.Errorf("%s: code %d, %q; want %q", args, code, res.Stdout, want)
		}
	}
	// The spelling of older builds.
	b.must(os.WriteFile(filepath.Join(b.dir, "other.json"), []byte(`{"image": "image:3"}`), 0o644))
	if res, code := b.run("workspace", "up", "--id", "w", "--provider", "p", "--recreate", "--devcontainer-path", "other.json", b.dir); code != 0 {
		t.Errorf("--devcontainer-path: code %d, %s", code, res.Stderr)
	}
	if create := b.asked("create"); !strings.HasSuffix(create[len(create)-1], " image:3") {
		t.Errorf("msb was asked for %q", create)
	}
}

func TestMissingPrerequisites(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*subject.Home)
		want   string
	}{
		"no msb":      {func(h *subject.Home) { h.Path = "/no/such/folder" }, "install msb, or give its path in PARITY_MSB"},
		"no MSB_HOME": {func(h *subject.Home) { h.MSBHome = "" }, "MSB_HOME: expected an absolute path"},
		"no agent":    {func(h *subject.Home) { h.Extra = nil }, "give the path of parity-agent in DEVSY_AGENT"},
	} {
		b := newBench(t)
		b.addProvider(nil)
		c.change(&b.Home)
		_, err := b.up(subject.UpOptions{})
		var failed *subject.UpError
		if !errors.As(err, &failed) || !strings.Contains(failed.Message, c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestListIsJSON(t *testing.T) {
	b := newBench(t)
	b.addProvider(map[string]string{"MICROSANDBOX_CPUS": "2"})
	_, err := b.up(subject.UpOptions{})
	b.must(err)
	res, _ := b.run("workspace", "list", "--result-format", "json")
	var list []struct {
		Provider struct{ Options map[string]string }
		Source   struct{ LocalFolder string }
	}
	b.must(json.Unmarshal(res.Stdout, &list))
	if len(list) != 1 || list[0].Provider.Options["MICROSANDBOX_CPUS"] != "2" || list[0].Source.LocalFolder != b.dir {
		t.Errorf("got %s", res.Stdout)
	}
}
