package reference_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"dagger/parity/internal/proc"
	"dagger/parity/internal/subject"
)

// artifacts serves files over HTTP and counts the requests of each.
type artifacts struct {
	*httptest.Server
	files    sync.Map // by path, []byte
	requests atomic.Int32
}

func serve(t *testing.T) *artifacts {
	t.Helper()
	a := &artifacts{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.requests.Add(1)
		text, ok := a.files.Load(r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(text.([]byte))
	}))
	t.Cleanup(a.Close)
	return a
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// manifestOf is the manifest of a runtime at a URL.
func manifestOf(url, checksum string) string {
	return fmt.Sprintf(`
name: from-manifest
unknown: {kept: true}
options:
  MICROSANDBOX_MEMORY: {default: 256}
  MICROSANDBOX_CPUS: {description: no default}
  MICROSANDBOX_BLOCK_EGRESS: {default: false}
agent:
  local: true
  driver: external
  external: {binary: DEVSY_RUNTIME_DRIVER, args: [serve], imageBackend: docker}
  binaries:
    DEVSY_RUNTIME_DRIVER:
      - {os: linux, arch: amd64, path: %q, checksum: %s, name: runtime}
`, url, checksum)
}

// externalBench is a CLI, a served parity-runtime, and the manifest that names it.
type externalBench struct {
	*bench
	*artifacts
	manifest string
	binary   []byte
}

func newExternalBench(t *testing.T) *externalBench {
	t.Helper()
	binary, err := os.ReadFile(runtime)
	if err != nil {
		t.Fatal(err)
	}
	e := &externalBench{bench: newBench(t), artifacts: serve(t), binary: binary}
	e.files.Store("/runtime", binary)
	e.manifest = filepath.Join(t.TempDir(), "provider.yaml")
	e.write(manifestOf(e.URL+"/runtime", sum(binary)))
	return e
}

func (e *externalBench) write(manifest string) {
	e.Helper()
	e.must(os.WriteFile(e.manifest, []byte(manifest), 0o644))
}

// installed is the path of the runtime in the workspace's folder.
func (e *externalBench) installed() string {
	matches, _ := filepath.Glob(filepath.Join(e.Home.Dir, "*", "contexts", "default", "workspaces", "w", "agent", "binaries", "devsy_runtime_driver", "runtime"))
	if len(matches) != 1 {
		e.Fatalf("the runtime is installed at %q", matches)
	}
	return matches[0]
}

// noRuntime checks that no process of a runtime is left.
func (e *externalBench) noRuntime() {
	e.Helper()
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if target, _ := os.Readlink(link); strings.HasPrefix(target, e.Home.Dir) {
			e.Errorf("a runtime runs on: %s -> %s", link, target)
		}
	}
}

// The contract does not know which provider it is.
func TestContractOfAnExternalProvider(t *testing.T) {
	e := newExternalBench(t)
	e.keepsContract(filepath.Dir(e.manifest), e.home(), e.msb)
	e.noRuntime()
}

func TestExternalLifecycle(t *testing.T) {
	e := newExternalBench(t)
	e.must(e.ProviderAdd(bounded(t), e.manifest, "p", map[string]string{"MICROSANDBOX_CPUS": "2"}))
	if e.requests.Load() != 0 {
		t.Error("`provider add` downloaded the runtime")
	}
	up, err := e.up(subject.UpOptions{ProviderOptions: map[string]string{"MICROSANDBOX_BLOCK_EGRESS": "1"}})
	e.must(err)
	w, err := e.Find(bounded(t), "w")
	e.must(err)
	if up.ContainerID != subject.VMName(w.UID) {
		t.Errorf("up: got %+v", up)
	}
	create := e.asked("create")
	for _, want := range []string{"--memory 256M", "--cpus 2", "--net-default-egress deny", "--env A=b c"} {
		if len(create) != 1 || !strings.Contains(create[0], want) {
			t.Errorf("no %q in what msb was asked for: %q", want, create)
		}
	}
	path := e.installed()
	info, err := os.Lstat(path)
	e.must(err)
	text, _ := os.ReadFile(path)
	if !info.Mode().IsRegular() || info.Mode().Perm() != 0o755 || sum(text) != sum(e.binary) || e.requests.Load() != 1 {
		t.Errorf("installed %s with the mode %s after %d requests", path, info.Mode(), e.requests.Load())
	}
	if list, _ := e.run("provider", "list"); !strings.Contains(string(list.Stdout), e.manifest) {
		t.Errorf("provider list: %s", list.Stdout)
	}

	// The provider and what it was made from may go: the workspace has what it needs, and asks for nothing.
	e.must(e.Stop(bounded(t), "w"))
	if s, err := e.Status(bounded(t), "w"); err != nil || s.State != subject.Stopped {
		t.Errorf("status: %+v, %v", s, err)
	}
	if res, code := e.run("workspace", "ssh", "w", "--command", "true"); code != 1 || !strings.Contains(string(res.Stderr), "its state is Stopped") {
		t.Errorf("ssh into a stopped workspace: %d, %s", code, res.Stderr)
	}
	e.files.Clear()
	_, err = e.up(subject.UpOptions{})
	e.must(err)
	e.must(os.Remove(e.manifest))
	e.must(e.ProviderDelete(bounded(t), "p"))
	res, err := e.SSH(bounded(t), "w", "pwd; cat; exit 23", strings.NewReader("in"))
	if code, _ := proc.ExitCode(err); code != 23 || string(res.Stdout) != "/workspaces/app\nin" {
		t.Errorf("ssh: %q, %v", res.Stdout, err)
	}
	if after, err := os.Lstat(path); err != nil || !os.SameFile(info, after) || e.requests.Load() != 1 {
		t.Errorf("the runtime was brought again: %d requests, %v", e.requests.Load(), err)
	}
	e.must(e.Delete(bounded(t), "w", true))
	if left, _ := os.ReadDir(filepath.Join(e.bench.msb, "m")); len(left) > 0 {
		t.Errorf("machines were left: %v", left)
	}
	e.noRuntime()
}

func TestProviderAddFromAURL(t *testing.T) {
	e := newExternalBench(t)
	e.files.Store("/provider.yaml", []byte(manifestOf(e.URL+"/runtime", `"`+strings.ToUpper(sum(e.binary))+`"`)))
	if res, code := e.run("provider", "add", e.URL+"/provider.yaml"); code != 0 {
		t.Fatalf("%d, %s", code, res.Stderr)
	}
	// What the caller's environment has of the provider's options is not the workspace's.
	e.Home.Extra = append(e.Home.Extra, "MICROSANDBOX_CPUS=7", "MICROSANDBOX_MEMORY=777")
	_, err := e.up(subject.UpOptions{Provider: "from-manifest"}) // its name is the manifest's
	e.must(err)
	if create := e.asked("create"); len(create) != 1 || !strings.Contains(create[0], "--cpus 1 --memory 256M") {
		t.Errorf("msb was asked for %q", create)
	}
	e.must(e.Delete(bounded(t), "w", true))
}

func TestWrongProviders(t *testing.T) {
	e := newExternalBench(t)
	good := manifestOf(e.URL+"/runtime", sum(e.binary))
	for name, c := range map[string]struct{ manifest, want string }{
		"not YAML":         {"{", "provider.yaml: not a provider.yaml: yaml: "},
		"no checksum":      {manifestOf(e.URL, "~"), "checksum: the driver \"external\" needs the SHA-256 of the file"},
		"a short checksum": {manifestOf(e.URL, "abc"), "expected a SHA-256 of 64 hex digits"},
		"a custom driver":  {strings.Replace(good, "driver: external", "driver: custom", 1), `agent.driver "custom": the reference CLI runs "external" alone`},
		"a remote":         {strings.Replace(good, "local: true", "local: false", 1), "exec.command: agent.local is not true, so expected"},
	} {
		e.write(c.manifest)
		res, code := e.run("provider", "add", e.manifest, "--name", "p")
		if code != 1 || !strings.Contains(string(res.Stderr), c.want) {
			t.Errorf("%s: %d, %s, want %q", name, code, res.Stderr, c.want)
		}
	}
	e.write(good)
	for args, want := range map[string]string{
		"provider add " + e.URL + "/missing":                    "GET " + e.URL + "/missing: expected the answer 200, seen 404",
		"provider add /no/such/folder":                          "expected \"microsandbox\", the built-in provider, or a file",
		"provider add " + t.TempDir():                           "provider.yaml: no such file",
		"provider add " + e.manifest + " --name q -o X=1":       "unknown option X: expected one that the provider has: MICROSANDBOX_BLOCK_EGRESS, MICROSANDBOX_CPUS, MICROSANDBOX_MEMORY",
		"provider add " + e.manifest + " --name q/ -o MEMORY=1": "unknown option MEMORY",
	} {
		if res, code := e.run(strings.Fields(args)...); code != 1 || !strings.Contains(string(res.Stderr), want) {
			t.Errorf("%s: %d, %s, want %q", args, code, res.Stderr, want)
		}
	}
	if res, _ := e.run("provider", "list", "--result-format", "json"); strings.TrimSpace(string(res.Stdout)) != "[]" {
		t.Errorf("a provider was added: %s", res.Stdout)
	}
}

// The runtime came here before the workspace's folder was looked at: without a workspace, it goes again.
func TestAnUpThatComesToNothingLeavesNoRuntime(t *testing.T) {
	e := newExternalBench(t)
	e.must(e.ProviderAdd(bounded(t), e.manifest, "p", nil))
	e.devcontainer(`{}`)
	if _, err := e.up(subject.UpOptions{}); err == nil || !strings.Contains(err.Error(), `"image" is missing`) || e.requests.Load() != 1 {
		t.Errorf("got %v after %d requests", err, e.requests.Load())
	}
	if left, _ := filepath.Glob(filepath.Join(e.Home.Dir, "*", "contexts", "default", "workspaces", "*")); len(left) > 0 {
		t.Errorf("%q were left", left)
	}
	e.noRuntime()
}

// What cannot be trusted or does not run makes no machine, leaves no workspace, and says what is wrong.
func TestUpWithARuntimeThatCannotBeUsed(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	script := []byte("#!/bin/sh\ntouch " + mark + "\n")
	for name, c := range map[string]struct {
		content  []byte
		checksum string // empty: the right one
		change   func(e *externalBench, manifest string) string
		want     string
		ran      bool
	}{
		"one byte changed":     {content: script, checksum: sum([]byte("x")), want: "checksum of "},
		"it is not there":      {want: "expected the answer 200, seen 404 Not Found"},
		"another architecture": {content: []byte("\x7fELF\x02\x01\x01\x00 for another machine"), want: "exec format error"},
		"it dies":              {content: script, want: "expected a handshake on standard output, seen none", ran: true},
		"garbage":              {content: []byte("#!/bin/sh\ntouch " + mark + "; echo hello; echo oops >&2\n"), want: `seen "hello"; its last words:`, ran: true},
		"no binary for this platform": {content: script, want: "expected a binary for this platform, linux/amd64; seen plan9/amd64",
			change: func(_ *externalBench, m string) string { return strings.Replace(m, "os: linux", "os: plan9", 1) }},
		"a wrong number": {content: nil, want: "MICROSANDBOX_MEMORY: expected a whole number",
			change: func(e *externalBench, m string) string {
				e.files.Store("/x", e.binary)
				return strings.Replace(strings.Replace(m, "default: 256", "default: lots", 1), sum(nil), sum(e.binary), 1)
			}},
		"a wrong boolean": {content: nil, want: "MICROSANDBOX_BLOCK_EGRESS: expected true or false",
			change: func(e *externalBench, m string) string {
				e.files.Store("/x", e.binary)
				return strings.Replace(strings.Replace(m, "default: false", "default: yes", 1), sum(nil), sum(e.binary), 1)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(mark)
			e := newExternalBench(t)
			if c.content != nil {
				e.files.Store("/x", c.content)
			}
			if c.checksum == "" {
				c.checksum = sum(c.content)
			}
			m := manifestOf(e.URL+"/x", c.checksum)
			if c.change != nil {
				m = c.change(e, m)
			}
			e.write(m)
			e.must(e.ProviderAdd(bounded(t), e.manifest, "p", nil))
			res, code := e.run("workspace", "up", "--id", "w", "--provider", "p", e.dir)
			if code != 1 || !strings.Contains(string(res.Stderr), c.want) || !bytes.Contains(res.Stdout, []byte(`"outcome":"error"`)) {
				t.Errorf("up: %d, %s, %s; want %q", code, res.Stdout, res.Stderr, c.want)
			}
			if made := e.asked("create"); len(made) > 0 {
				t.Errorf("msb was asked for %q", made)
			}
			if _, err := os.Stat(mark); (err == nil) != c.ran {
				t.Errorf("the program was run: %v", err == nil)
			}
			e.must(e.Delete(bounded(t), "w", true))
			if list, err := e.List(bounded(t)); err != nil || len(list) > 0 {
				t.Errorf("it left a workspace: %v, %v", list, err)
			}
			e.noRuntime()
		})
	}
}
