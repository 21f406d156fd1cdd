package customdriver_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/customdriver"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/standin"
)

// id is that of a workspace as DevPod gives it.
const id = "default-work-1a2b3"

// world is a stand-in for msb, a registry, and a CLI's environment.
type world struct {
	*testing.T
	msb *msb.Client
	env map[string]string
	ref string // of an image that only the registry has
}

func newWorld(t *testing.T) world {
	t.Helper()
	program := filepath.Join(t.TempDir(), standin.Program)
	if err := os.Symlink(parity(), program); err != nil {
		t.Fatal(err)
	}
	r, err := registry.Start(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	w := world{T: t, msb: msbtest.NewClient(t, program), ref: r.Host() + "/parity/driver:1"}
	// The options as the CLIs give them: one without a value is empty.
	w.env = map[string]string{
		"MSB_HOME": w.msb.Home, "PARITY_MSB": program, "HOME": t.TempDir(), "PATH": "/usr/bin:/bin", "DOCKER_HOST": "",
		"DEVCONTAINER_ID": id, "WORKSPACE_ID": "work", "WORKSPACE_UID": id, "PROVIDER_ID": "microsandbox",
		"MICROSANDBOX_MEMORY": "1024", "MICROSANDBOX_CPUS": "1", "MICROSANDBOX_MAX_CPUS": "", "MICROSANDBOX_MAX_MEMORY": "",
		"MICROSANDBOX_STORAGE": "", "MICROSANDBOX_BLOCK_EGRESS": "false", "INACTIVITY_TIMEOUT": "",
	}
	w.push("one")
	return w
}

func parity() string { return filepath.Join(labtest.Programs(), "parity") }

// push pushes another image under the reference.
func (w world) push(nonce string) {
	w.Helper()
	img, err := images.Build(images.Spec{Nonce: nonce, User: "dev"})
	w.must(err)
	to, err := name.ParseReference(w.ref)
	w.must(err)
	w.must(remote.Write(to, img))
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// call runs a command of the driver as a CLI does, with more variables.
func (w world) call(verb string, more map[string]string, stdin []byte) (stdout, stderr string, code int) {
	w.Helper()
	c := exec.CommandContext(w.Context(), parity(), "driver", verb)
	env := maps.Clone(w.env)
	maps.Copy(env, more)
	for key, value := range env {
		c.Env = append(c.Env, key+"="+value)
	}
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if stdin != nil {
		c.Stdin = bytes.NewReader(stdin)
	}
	err := c.Run()
	if c.ProcessState == nil {
		w.Fatal(err)
	}
	return out.String(), said.String(), c.ProcessState.ExitCode()
}

// does runs a command that is to succeed.
func (w world) does(verb string, more map[string]string) string {
	w.Helper()
	out, said, code := w.call(verb, more, nil)
	if code != 0 {
		w.Fatalf("%s exits with %d: %s%s", verb, code, out, said)
	}
	return out
}

// fails runs a command that is to fail with the words.
func (w world) fails(verb string, more map[string]string, words ...string) {
	w.Helper()
	out, said, code := w.call(verb, more, nil)
	if code != 3 && code != 2 {
		w.Errorf("%s exits with %d: %s%s", verb, code, out, said)
	}
	for _, word := range words {
		if !strings.Contains(said, word) {
			w.Errorf("%s: no %q in %q", verb, word, said)
		}
	}
}

// run runs the machine as DevPod asks for it, with changes to what it asks for.
func (w world) run(change func(map[string]any)) map[string]string {
	w.Helper()
	o := map[string]any{
		"uid": id, "image": w.ref, "user": "dev", "entrypoint": "/bin/sh",
		"cmd":            []string{"-c", "echo Container started as $(id -un) with $1 and $WORD\nexec sleep 100000", "-", "own command"},
		"env":            map[string]string{"DEVPOD": "true", "WORD": "a b=c"},
		"labels":         []string{`devcontainer.metadata=[{"id":"a=b","remoteUser":"dev"}]`, "devpod.user=dev"},
		"workspaceMount": map[string]string{"type": "bind", "source": "/of/the/host", "target": "/workspaces/work"},
		"mounts":         []map[string]string{{"type": "volume", "source": "cache", "target": "/var/cache/it"}},
		"capAdd":         []string{"SYS_PTRACE"},
	}
	if change != nil {
		change(o)
	}
	text, err := json.Marshal(o)
	w.must(err)
	return map[string]string{"DEVCONTAINER_RUN_OPTIONS": string(text)}
}

// found gives what find prints of the machine.
func (w world) found(status string) customdriver.Details {
	w.Helper()
	var d customdriver.Details
	out := w.does("find", nil)
	w.must(json.Unmarshal([]byte(out), &d))
	if d.State.Status != status {
		w.Errorf("the status is %q, want %s", d.State.Status, status)
	}
	for what, text := range map[string]string{"Created": d.Created, "StartedAt": d.State.StartedAt} {
		if _, err := time.Parse(time.RFC3339Nano, text); err != nil {
			w.Errorf("%s: %v", what, err)
		}
	}
	return d
}

func (w world) missing() {
	w.Helper()
	if out := w.does("find", nil); out != "" {
		w.Errorf("of a machine that there is not find prints %q", out)
	}
}

func (w world) inGuest(user, command string) string {
	w.Helper()
	return w.does("exec", map[string]string{"DEVCONTAINER_USER": user, "DEVCONTAINER_COMMAND": command})
}

// waitLog waits until the machine's own command has said the words.
func (w world) waitLog(words string) {
	w.Helper()
	var said string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if said = w.does("logs", nil); strings.Contains(said, words) {
			return
		}
	}
	w.Fatalf("the machine's own command has said %q, not %q", said, words)
}

const started = "Container started as dev with own command and a b=c\n"

// The commands, in the order and with the environment in which DevPod and Devsy give them.
func TestLife(t *testing.T) {
	w := newWorld(t)
	w.missing()
	w.does("stop", nil)
	w.does("delete", nil)
	w.fails("start", nil, id, "bring the workspace up first")
	w.fails("exec", map[string]string{"DEVCONTAINER_COMMAND": "true"}, id, "bring the workspace up first")

	_, said, code := w.call("run", w.run(nil), nil)
	if code != 0 || !strings.Contains(said, "capAdd SYS_PTRACE: not passed on") {
		t.Fatalf("run exits with %d: %s", code, said)
	}
	first := w.found("running")
	if first.ID != msbdriver.Name(id) || first.Config.User != "dev" || first.Config.Labels["devpod.user"] != "dev" ||
		first.Config.Labels["devcontainer.metadata"] != `[{"id":"a=b","remoteUser":"dev"}]` {
		t.Errorf("find gives %+v", first)
	}
	w.waitLog(started)

	// A command has its user, its streams and its exit code.
	sent := []byte("line\n\x00\xff\n")
	out, said, code := w.call("exec", map[string]string{"DEVCONTAINER_USER": "root", "DEVCONTAINER_COMMAND": "cat; id -un >&2; exit 23"}, sent)
	if out != string(sent) || said != "root\n" || code != 23 {
		t.Errorf("exec gives %q, %q and %d", out, said, code)
	}
	if got := w.inGuest("dev", "id -un; echo $WORD; cat /etc/parity-nonce"); got != "dev\na b=c\none" {
		t.Errorf("a command of dev's gives %q", got)
	}
	// A volume is a folder of the machine's. What is to be bound is left to the CLI, which copies
	// into a folder that is missing or empty.
	if got := w.inGuest("root", "ls -d /var/cache/it; ls /workspaces/work 2>/dev/null || echo none"); got != "/var/cache/it\nnone\n" {
		t.Errorf("the mounts are %q", got)
	}
	w.inGuest("root", "echo kept >/var/cache/it/file")

	w.does("stop", nil)
	w.does("stop", nil)
	w.found("exited")
	w.fails("exec", map[string]string{"DEVCONTAINER_COMMAND": "true"}, id, "is not running; start it first")
	w.fails("logs", nil, "is not running; start it first")
	w.found("exited") // no command has booted it
	w.does("start", nil)
	again := w.found("running")
	if again.Created != first.Created || again.State.StartedAt == first.State.StartedAt {
		t.Errorf("after a restart find gives %+v, and before it %+v", again, first)
	}
	w.waitLog(started)
	const running = `count() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -c '^10000[0]$'; }
		until [ "$(count)" -gt 0 ]; do sleep 0.1; done; count`
	if got := w.inGuest("root", "cat /var/cache/it/file; "+running); got != "kept\n1\n" {
		t.Errorf("after a restart, the volume's file and how often the machine's own command runs are %q", got)
	}
	w.does("start", nil)
	if got := w.found("running"); got.State.StartedAt != again.State.StartedAt {
		t.Errorf("the start of a running machine gives %+v", got)
	}

	// An image that is not there leaves the machine, with its labels. One that has moved takes its
	// place.
	w.fails("run", w.run(func(o map[string]any) {
		o["image"] = strings.Replace(w.ref, ":1", ":none", 1)
		o["labels"] = []string{"a=b"}
	}), "has no image")
	if got := w.found("running"); got.Created != first.Created || got.Config.Labels["devpod.user"] != "dev" {
		t.Errorf("after a run that failed find gives %+v", got)
	}
	w.push("two")
	w.does("stop", nil)
	w.does("run", w.run(func(o map[string]any) { o["labels"] = []string{"devpod.user=root"} }))
	second := w.found("running")
	if second.Created == first.Created || len(second.Config.Labels) != 1 || second.Config.Labels["devpod.user"] != "root" {
		t.Errorf("after a recreation find gives %+v", second)
	}
	if got := w.inGuest("root", "ls /var/cache/it; cat /etc/parity-nonce"); got != "two" {
		t.Errorf("after a recreation, the volume and the nonce are %q", got)
	}

	w.does("delete", nil)
	w.missing()
	left, err := filepath.Glob(filepath.Join(w.msb.Home, "parity-driver", "*"))
	if list, listErr := w.msb.List(t.Context()); err != nil || listErr != nil || len(left) > 0 || len(list) > 0 {
		t.Errorf("left are %q and %+v; %v, %v", left, list, err, listErr)
	}
}

// Egress is denied however yes is spelled, or nothing is made.
func TestBlockEgress(t *testing.T) {
	w := newWorld(t)
	for spelled, denied := range map[string]bool{"true": true, "1": true, "TRUE": true, "false": false, "": false} {
		w.env["MICROSANDBOX_BLOCK_EGRESS"] = spelled
		w.does("run", w.run(nil))
		box, err := w.msb.Inspect(t.Context(), msbdriver.Name(id))
		w.must(err)
		if policy := box.ActiveConfig.Network.Policy; (policy != nil && policy.DefaultEgress == "deny") != denied {
			t.Errorf("BLOCK_EGRESS %q gives the policy %+v", spelled, policy)
		}
	}
	w.does("delete", nil)
	for _, spelled := range []string{"yes", "on", "tru e"} {
		w.env["MICROSANDBOX_BLOCK_EGRESS"] = spelled
		w.fails("run", w.run(nil), "MICROSANDBOX_BLOCK_EGRESS", spelled)
		w.missing() // which the wrong option does not keep from being told
	}
}

// A machine that cannot be made ready does not stay.
func TestRunThatFails(t *testing.T) {
	w := newWorld(t)
	w.fails("run", w.run(func(o map[string]any) { o["user"] = "nobody-has-this-name" }), "nobody-has-this-name")
	w.missing()
	if left, err := filepath.Glob(filepath.Join(w.msb.Home, "parity-driver", "*")); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
	set := func(key string, value any) func(map[string]any) { return func(o map[string]any) { o[key] = value } }
	for want, change := range map[string]func(map[string]any){
		"image: expected a reference":    set("image", ""),
		`labels: expected KEY=VALUE`:     set("labels", []string{"word"}),
		`seen "tmpfs"`:                   set("mounts", []map[string]string{{"type": "tmpfs", "target": "/x"}}),
		"expected an absolute target":    set("mounts", []map[string]string{{"type": "volume", "source": "v", "target": "x"}}),
		"userns: ":                       set("userns", "keep-id"),
		"uidMap: ":                       set("uidMap", []string{"0:1:2"}),
		"platform linux/s390x: machines": set("platform", "linux/s390x"),
		"capAdd":                         set("capAdd", "SYS_PTRACE"), // a text where a list is due
	} {
		w.fails("run", w.run(change), want)
	}
	w.fails("run", map[string]string{"DEVCONTAINER_RUN_OPTIONS": "null"}, "canReprovision")
	w.fails("run", nil, "DEVCONTAINER_RUN_OPTIONS: expected what to run")
	w.fails("run", map[string]string{"DEVCONTAINER_RUN_OPTIONS": "{"}, `seen "{"`)
	w.fails("find", map[string]string{"DEVCONTAINER_ID": ""}, "DEVCONTAINER_ID is not set")
	w.fails("exec", nil, "DEVCONTAINER_COMMAND is not set")
	w.fails("find", map[string]string{"PARITY_MSB": "", "PATH": "/nowhere"}, "install msb")
	w.fails("find", map[string]string{"MSB_HOME": "relative"}, "MSB_HOME: expected an absolute path")
	w.missing()
}

// Without MSB_HOME it is the default of msb's own.
func TestDefaultHome(t *testing.T) {
	w := newWorld(t)
	w.env["MSB_HOME"] = ""
	w.missing()
	if _, err := os.Stat(filepath.Join(w.env["HOME"], ".microsandbox", "standin")); err != nil {
		t.Error(err)
	}
}

func TestOptionsOfTheProviderAreTheDriversOwn(t *testing.T) {
	m := manifest(t, customdriver.Provider{Program: parity()})
	var environ []string
	for key, o := range m.Options {
		if !slices.Contains(msbdriver.OptionNames(), key) {
			t.Errorf("the driver does not know %s", key)
		}
		environ = append(environ, key+"="+o.Default)
	}
	if o, err := msbdriver.ParseEnvironment(environ); err != nil || o.BlockEgress || o.MemoryMiB != 2048 {
		t.Errorf("the defaults give %+v, %v", o, err)
	}
}
