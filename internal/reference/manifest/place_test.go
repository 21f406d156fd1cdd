package manifest_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"dagger/parity/internal/reference/manifest"
)

const other = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"

// The manifest of the reference provider, as internal/run writes it.
const reference = `name: parity-reference
version: v1.0.0
description: MicroSandbox machines by parity-runtime, the reference external runtime
options:
  MICROSANDBOX_MEMORY: {description: "memory of a machine in MiB"}
  MICROSANDBOX_CPUS: {description: "processors of a machine"}
  MICROSANDBOX_BLOCK_EGRESS: {description: "whether a machine can open no connection to the outside"}
agent:
  local: true
  driver: external
  external:
    binary: DEVSY_RUNTIME_DRIVER
    args: [serve]
    imageBackend: docker
  binaries:
    DEVSY_RUNTIME_DRIVER:
      - {os: linux, arch: amd64, path: "http://127.0.0.1/parity-runtime", checksum: "` + good + `", name: parity-runtime}
`

func place(t *testing.T, source string, p manifest.Placement) string {
	t.Helper()
	placed, err := manifest.Place([]byte(source), p)
	if err != nil {
		t.Fatal(err)
	}
	return string(placed)
}

var (
	local  = manifest.Placement{Local: true, RuntimeURL: "http://127.0.0.1:1234/runtime"}
	remote = manifest.Placement{Exec: "ssh -p 22 host \"${COMMAND}\"\n# 'two' lines", AgentPath: "/opt/x", AgentURL: "http://10.0.0.1:80/",
		RuntimeURL: "https://[::1]:443/r", SHA256: strings.Repeat("1234567890", 6) + "1234"}
)

// The whole text, so that nothing else is another one.
func TestPlaceChangesNothingElse(t *testing.T) {
	want := strings.Replace(reference, "http://127.0.0.1/parity-runtime", local.RuntimeURL, 1)
	if got := place(t, reference, local); got != want {
		t.Errorf("expected\n%s\ngot\n%s", want, got)
	}
	want = strings.NewReplacer("local: true", "local: false", "http://127.0.0.1/parity-runtime", remote.RuntimeURL, good, remote.SHA256).Replace(reference)
	want += `  downloadURL: "http://10.0.0.1:80/"
  path: "/opt/x"
exec:
  command: "ssh -p 22 host \"${COMMAND}\"\n# 'two' lines"
`
	placed := place(t, reference, remote)
	if placed != want {
		t.Errorf("expected\n%s\ngot\n%s", want, placed)
	}
	// And back: what says where a remote one gets its agent is gone; its path, and exec, which CLIs
	// ask for in every manifest, are left.
	exec := want[strings.Index(want, "exec:\n"):]
	back := place(t, placed, local)
	if !strings.HasSuffix(back, exec) {
		t.Errorf("expected the exec of the manifest at the end of\n%s", back)
	}
	back = strings.Replace(strings.TrimSuffix(back, exec), "  path: \"/opt/x\"\n", "", 1)
	if want := strings.NewReplacer("http://127.0.0.1/parity-runtime", local.RuntimeURL, good, remote.SHA256).Replace(reference); back != want {
		t.Errorf("expected\n%s\ngot\n%s", want, back)
	}
}

const commented = `# The head.
name: x # a name
unknown: # of this
  # a key of somebody else's
  - {a: 1, b: ~, c: 2026-01-02}
  - |
    two
    lines
agent:
  # where it runs
  local: false # not here
  downloadURL: http://example.test/ # gone when it is local
  path: /opt/agent
  zebra: "left"
  driver: external
  external: {binary: B, args: ["1", 2]}
  binaries:
    A: [{os: linux, arch: amd64, path: "http://a.test/a", checksum: CHECKSUM}]
    B:
      - os: linux
        arch: arm64
        path: http://a.test/arm
        checksum: CHECKSUM # of the other
      # this one
      - os: linux
        arch: amd64
        path: http://a.test/b # the place
        checksum: CHECKSUM # the sum
        extra: yes
exec:
  command: old # the way
  other: kept
# The foot.
`

func TestPlaceKeepsCommentsOrderAndUnknownKeys(t *testing.T) {
	for name, checksum := range map[string]string{
		"quoted": `"` + good + `"`, "quoted once": `'` + good + `'`, "plain": good, "plain digits": strings.Repeat("1234567890", 6) + "1234",
		"a float": strings.Repeat("1", 31) + "e" + strings.Repeat("2", 32), "upper case": strings.ToUpper(good),
	} {
		for ends, source := range map[string]string{
			"LF": strings.ReplaceAll(commented, "CHECKSUM", checksum), "CRLF": strings.ReplaceAll(strings.ReplaceAll(commented, "CHECKSUM", checksum), "\n", "\r\n"),
		} {
			t.Run(name+" "+ends, func(t *testing.T) {
				p := manifest.Placement{Exec: "new", AgentURL: "http://c.test/", RuntimeURL: "http://c.test/r"}
				want := strings.NewReplacer("\r", "", "http://example.test/", `"http://c.test/"`, "command: old", `command: "new"`,
					"http://a.test/b", `"http://c.test/r"`).Replace(source)
				if got := place(t, source, p); got != want {
					t.Errorf("expected\n%s\ngot\n%s", want, got)
				}
				p.SHA256 = other
				want = strings.Replace(want, checksum+" # the sum", `"`+other+`" # the sum`, 1)
				if got := place(t, source, p); got != want {
					t.Errorf("expected\n%s\ngot\n%s", want, got)
				}
				got := place(t, source, local)
				for _, lost := range []string{"downloadURL", "\r"} {
					if strings.Contains(got, lost) {
						t.Errorf("expected no %q in\n%s", lost, got)
					}
				}
				for _, kept := range []string{"# The head.\n", "# a name\n", "# where it runs\n  local: true # not here\n", "# the place\n", "zebra: \"left\"\n", "extra: yes\n",
					"exec:\n  command: old # the way\n  other: kept\n"} {
					if !strings.Contains(got, kept) {
						t.Errorf("expected %q in\n%s", kept, got)
					}
				}
			})
		}
	}
}

// What a change is made in may stand elsewhere too, where it must not be seen.
func TestPlaceChangesNothingBehindAnAlias(t *testing.T) {
	const source = `name: x
shared: &shared {local: false, driver: external, downloadURL: "http://s.test/", path: /opt/shared}
way: &way {command: old}
one: &one {os: linux, arch: amd64, path: &url "http://s.test/r", checksum: %[1]s}
url: *url
agent:
  <<: [*shared, {driver: none, more: *url}]
  path: /opt/own
  external: &external {binary: B}
  binaries: {A: &list [*one], B: *list}
again: *external
exec: *way
`
	text := fmt.Sprintf(source, good)
	var want, got map[string]any
	if err := yaml.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	p := remote
	p.AgentPath = ""
	if err := yaml.Unmarshal([]byte(place(t, text, p)), &got); err != nil {
		t.Fatal(err)
	}
	agent := want["agent"].(map[string]any)
	agent["downloadURL"] = p.AgentURL
	want["exec"] = map[string]any{"command": p.Exec}
	agent["binaries"].(map[string]any)["B"] = []any{map[string]any{"os": "linux", "arch": "amd64", "path": p.RuntimeURL, "checksum": p.SHA256}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("expected\n%v\ngot\n%v", want, got)
	}
	got = nil
	if err := yaml.Unmarshal([]byte(place(t, text, local)), &got); err != nil {
		t.Fatal(err)
	}
	if _, there := got["agent"].(map[string]any)["downloadURL"]; there || !reflect.DeepEqual(got["exec"], map[string]any{"command": "old"}) {
		t.Errorf("expected that what was merged is removed too, and exec is left, got %v", got)
	}
	if url := got["shared"].(map[string]any)["downloadURL"]; url != "http://s.test/" {
		t.Errorf("expected the shared mapping as it was, got %v", url)
	}
}

const custom = `name: mine
agent:
  local: true
  driver: custom
  custom: {runDevContainer: "${RUNTIME} run", kept: as it is}
  binaries:
    RUNTIME: [{os: linux, arch: amd64, path: "http://a.test/r", checksum: "` + good + `"}]
exec: {command: "${COMMAND}"}
`

// A custom driver has its only program placed, or that which is chosen of several.
func TestPlaceACustomDriver(t *testing.T) {
	want := strings.Replace(custom, "http://a.test/r", local.RuntimeURL, 1)
	if got := place(t, custom, local); got != want {
		t.Errorf("expected\n%s\ngot\n%s", want, got)
	}
	entry := "    HELPER: [{os: linux, arch: amd64, path: \"http://a.test/h\", checksum: \"" + other + "\"}]\n"
	p := local
	if placed, err := manifest.Place([]byte(strings.Replace(custom, "exec:", entry+"exec:", 1)), p); err == nil {
		t.Errorf("expected an error that nothing says which of two programs it is, got\n%s", placed)
	}
	p.Runtime = "RUNTIME"
	two, want := strings.Replace(custom, "exec:", entry+"exec:", 1), strings.Replace(want, "exec:", entry+"exec:", 1)
	if got := place(t, two, p); got != want {
		t.Errorf("expected\n%s\ngot\n%s", want, got)
	}
	p.Runtime, p.Local, p.Exec = "HELPER", false, "ssh host"
	m, err := manifest.Parse([]byte(place(t, two, p)))
	if err == nil {
		err = m.Choose("HELPER")
	}
	if err != nil {
		t.Fatal(err)
	}
	if key, b, err := m.Runtime("linux", "amd64"); err != nil || key != "HELPER" || b.URL != p.RuntimeURL || m.Exec != "ssh host" {
		t.Errorf("got %s, %+v, %v, %q", key, b, err, m.Exec)
	}
}

func TestPlaceRefuses(t *testing.T) {
	laughs := "name: x\na: &a [l, l, l, l, l, l, l, l, l, l]\n"
	for c := 'b'; c < 'j'; c++ {
		laughs += fmt.Sprintf("%[1]c: &%[1]c [%[2]s]\n", c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c, ", c-1), 10), ", "))
	}
	for name, c := range map[string]struct {
		source string
		p      manifest.Placement
		want   string
	}{
		"no YAML":            {"name: [", local, "not a provider.yaml: yaml: "},
		"a list":             {"- x", local, "not a provider.yaml: "},
		"nothing":            {"", local, "not a provider.yaml: expected a mapping"},
		"a key twice":        {"name: a\nname: b", local, "already defined"},
		"an endless alias":   {"name: x\na: &a [*a]", local, "contains itself"},
		"a huge alias":       {laughs, local, "excessive aliasing"},
		"no agent":           {"name: x", local, `expected an entry for linux/amd64 below ""`},
		"another platform":   {strings.Replace(reference, "amd64", "arm64", 1), local, `expected an entry for linux/amd64 below "DEVSY_RUNTIME_DRIVER"`},
		"no manifest":        {strings.Replace(reference, "driver: external", "driver: docker", 1), local, "the placed manifest: agent.driver"},
		"a driver's other":   {reference, manifest.Placement{Local: true, RuntimeURL: local.RuntimeURL, Runtime: "X"}, `below "X"`},
		"no URL":             {reference, manifest.Placement{Local: true}, "the placed manifest: agent.binaries.DEVSY_RUNTIME_DRIVER[0]: path"},
		"no checksum":        {reference, manifest.Placement{Local: true, RuntimeURL: local.RuntimeURL, SHA256: "abc"}, "checksum: expected a SHA-256"},
		"no command":         {reference, manifest.Placement{RuntimeURL: local.RuntimeURL}, "the placed manifest: exec.command"},
		"a folder":           {reference, manifest.Placement{RuntimeURL: local.RuntimeURL, Exec: "x", AgentPath: "/opt/"}, "agent.path: expected"},
		"an agent's path":    {reference, manifest.Placement{RuntimeURL: local.RuntimeURL, Exec: "x", AgentURL: "ftp://x"}, "agent.downloadURL: expected"},
		"a local command":    {reference, manifest.Placement{Local: true, RuntimeURL: local.RuntimeURL, Exec: "x"}, "a provider on this machine has no exec.command"},
		"a wrong type there": {strings.Replace(reference, "name: parity-runtime}", "name: [x]}", 1), local, "the placed manifest: not a provider.yaml"},
	} {
		if placed, err := manifest.Place([]byte(c.source), c.p); err == nil || !strings.Contains(err.Error(), c.want) || placed != nil {
			t.Errorf("%s: got %v and %q, want %q", name, err, placed, c.want)
		}
	}
}
