package manifest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"dagger/parity/internal/reference/manifest"
)

const good = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// with is a manifest with this entry, or this text in place of what is written otherwise.
func with(checksum string, replacements ...string) string {
	return strings.NewReplacer(replacements...).Replace(fmt.Sprintf(`
name: sandbox
version: v1.2.3
description: a key that nobody knows
options:
  MICROSANDBOX_MEMORY: {default: 2048, description: MiB}
  MICROSANDBOX_BLOCK_EGRESS: {default: "false"}
  MICROSANDBOX_STORAGE: {description: no default}
agent:
  local: false
  path: /opt/agent
  downloadURL: https://example.test/dl/
  driver: external
  external: {binary: DEVSY_RUNTIME_DRIVER, args: [serve, -v, 1], imageBackend: docker}
  binaries:
    DEVSY_RUNTIME_DRIVER:
      - {os: linux, arch: arm64, path: "https://example.test/arm/runtime", checksum: %[1]s}
      - os: linux
        arch: amd64
        path: http://example.test/x/runtime?v=1
        checksum: %[2]s
        name: runtime
    OTHER:
      - {os: linux, arch: amd64, path: not a url}
exec: {command: "${COMMAND}"}
`, good, checksum))
}

func TestParse(t *testing.T) {
	source := with(good)
	m, err := manifest.Parse([]byte(source))
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Source) != source {
		t.Error("what is not known was lost")
	}
	if got := fmt.Sprintf("%s %s %v %v %s %v", m.Name, m.Version, m.Options, m.Agent.Local, m.Agent.Driver, m.Agent.External); got !=
		"sandbox v1.2.3 map[MICROSANDBOX_BLOCK_EGRESS:false MICROSANDBOX_MEMORY:2048 MICROSANDBOX_STORAGE:] false external {DEVSY_RUNTIME_DRIVER [serve -v 1] docker}" {
		t.Errorf("got %s", got)
	}
	if m.Exec != "${COMMAND}" || m.Agent.Path != "/opt/agent" || m.Agent.URL != "https://example.test/dl/" {
		t.Errorf("got %q, %q, %q", m.Exec, m.Agent.Path, m.Agent.URL)
	}
	if m, err := manifest.Parse([]byte(with(good, "path: /opt/agent", "x: y", "downloadURL", "z"))); err != nil || m.Agent.Path != "/tmp/devsy" || m.Agent.URL != "" {
		t.Errorf("got %+v, %v", m.Agent, err)
	}
	key, b, err := m.Runtime("linux", "amd64")
	if want := (manifest.Binary{OS: "linux", Arch: "amd64", URL: "http://example.test/x/runtime?v=1", SHA256: good, Name: "runtime"}); key !=
		"DEVSY_RUNTIME_DRIVER" || err != nil || b != want {
		t.Errorf("got %s, %+v, %v", key, b, err)
	}
	if _, b, err = m.Runtime("linux", "arm64"); err != nil || b.Name != "runtime" { // the URL's last part
		t.Errorf("got %+v, %v", b, err)
	}
	if _, _, err = m.Runtime("plan9", "amd64"); err == nil ||
		!strings.Contains(err.Error(), "expected a binary for this platform, plan9/amd64; seen linux/arm64, linux/amd64") {
		t.Errorf("another platform: %v", err)
	}
}

// What YAML takes for a number stays the digits that are written.
func TestChecksumsAreWhatIsWritten(t *testing.T) {
	for name, written := range map[string]string{
		"digits":             strings.Repeat("1234567890", 6) + "1234",
		"digits from 0":      "0" + strings.Repeat("1234567", 9),
		"octal of old":       "0o" + strings.Repeat("1", 62), // no hex digits: refused
		"a float":            strings.Repeat("1", 31) + "e" + strings.Repeat("2", 32),
		"a float of nothing": strings.Repeat("0", 62) + "e1",
		"zeros":              strings.Repeat("0", 64),
		"upper case":         strings.ToUpper(good),
		"hex of YAML":        "0x" + strings.Repeat("a", 62), // likewise
		"underscores":        "1_" + strings.Repeat("2", 62), // likewise
	} {
		for _, quote := range []string{"", `"`, "'"} {
			m, err := manifest.Parse([]byte(with(quote + written + quote)))
			if strings.ContainsAny(written, "ox_") {
				if err == nil || !strings.Contains(err.Error(), "agent.binaries.DEVSY_RUNTIME_DRIVER[1]: checksum: expected a SHA-256 of 64 hex digits") ||
					!strings.Contains(err.Error(), written) {
					t.Errorf("%s, quoted by %q: %v", name, quote, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s, quoted by %q: %v", name, quote, err)
			} else if _, b, _ := m.Runtime("linux", "amd64"); b.SHA256 != strings.ToLower(written) {
				t.Errorf("%s, quoted by %q: got %s, want %s", name, quote, b.SHA256, written)
			}
		}
	}
}

func TestACustomDriversRuntimeIsItsOnlyProgramOrTheChosenOne(t *testing.T) {
	one := with(good, "driver: external", "driver: custom", "external: {binary: DEVSY_RUNTIME_DRIVER, ", "custom: {",
		"    OTHER:\n      - {os: linux, arch: amd64, path: not a url}\n", "")
	m, err := manifest.Parse([]byte(one))
	if err != nil {
		t.Fatal(err)
	}
	if key, b, err := m.Runtime("linux", "amd64"); key != "DEVSY_RUNTIME_DRIVER" || err != nil || b.SHA256 != good {
		t.Errorf("got %s, %+v, %v", key, b, err)
	}
	if m, err = manifest.Parse([]byte(with(good, "driver: external", "driver: custom"))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Runtime("linux", "amd64"); !errors.Is(err, manifest.ErrNoChoice) || !strings.Contains(err.Error(), "DEVSY_RUNTIME_DRIVER, OTHER") {
		t.Errorf("expected an error that lists the keys, got %v", err)
	}
	if err := m.Choose("NONE"); err == nil || !strings.Contains(err.Error(), `which are DEVSY_RUNTIME_DRIVER, OTHER; seen "NONE"`) {
		t.Errorf("expected an error that lists the keys, got %v", err)
	}
	if err := m.Choose("OTHER"); err == nil || !strings.Contains(err.Error(), "agent.binaries.OTHER[0]: path") {
		t.Errorf("expected the chosen program to be checked, got %v", err)
	}
	if err := m.Choose("DEVSY_RUNTIME_DRIVER"); err != nil {
		t.Fatal(err)
	}
	if key, _, err := m.Runtime("linux", "amd64"); key != "DEVSY_RUNTIME_DRIVER" || err != nil {
		t.Errorf("got %s, %v", key, err)
	}
	_, err = manifest.Parse([]byte(strings.Replace(one, "checksum: "+good, "x: y", 1)))
	if err == nil || !strings.Contains(err.Error(), `the driver "custom" needs the SHA-256`) {
		t.Errorf("expected that a checksum is asked for, got %v", err)
	}
}

func TestWrongManifests(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"not YAML":          {"name: [", "not a provider.yaml: yaml: "},
		"a list":            {"- x", "not a provider.yaml: "},
		"HTML":              {"<html><body>404</body></html>", "not a provider.yaml: "},
		"empty":             {"", "name: expected"},
		"a key twice":       {"name: a\nname: b", "already defined"},
		"no driver":         {with(good, "driver: external", "x: y"), `agent.driver: expected "external" or "custom", seen ""`},
		"another driver":    {with(good, "driver: external", "driver: docker"), `seen "docker"`},
		"local is yes":      {with(good, "local: false", "local: yes"), `agent.local: expected true or false, seen "yes"`},
		"no exec.command":   {with(good, "exec: {", "x: {"), "exec.command: agent.local is not true, so expected the shell command that reaches"},
		"a relative path":   {with(good, "/opt/agent", "opt/agent"), `agent.path: expected the absolute path of a file, with no dot and no further slash, seen "opt/agent"`},
		"a path of dots":    {with(good, "/opt/agent", "/opt/../agent"), "agent.path: expected the absolute path"},
		"a folder's path":   {with(good, "/opt/agent", "/opt/"), "agent.path: expected the absolute path"},
		"agent's URL":       {with(good, "https://example.test/dl/", "ftp://u:secret@x"), `agent.downloadURL: expected a URL of http or https without a query, seen "ftp://u:xxxxx@x"`},
		"no binary":         {with(good, "binary: DEVSY_RUNTIME_DRIVER", "x: y"), "agent.external.binary: expected the key"},
		"unknown binary":    {with(good, "binary: DEVSY_RUNTIME_DRIVER", "binary: X"), `which are DEVSY_RUNTIME_DRIVER, OTHER; seen "X"`},
		"a path for a key":  {with(good, "DEVSY_RUNTIME_DRIVER", "../up"), `expected letters, digits and underscores, seen "../up"`},
		"a text for a list": {with(good, "args: [serve, -v, 1]", "args: {a: b}"), "not a provider.yaml: "},
		"no os":             {with(good, "os: linux\n", "x: y\n"), "expected os and arch"},
		"a file's path":     {with(good, "http://example.test/x/runtime?v=1", "/usr/bin/runtime"), `path: expected a URL of http or https, seen "/usr/bin/runtime"`},
		"a name with /":     {with(good, "name: runtime", "name: ../../x"), "name: expected the name of a file"},
		"name ..":           {with(good, "name: runtime", "name: .."), "name: expected the name of a file"},
		"no checksum":       {with("~"), "checksum: the driver \"external\" needs the SHA-256 of the file, seen none"},
		"a short checksum":  {with(good[1:]), "seen 63 characters"},
		"a long checksum":   {with(good + "0"), "seen 65 characters"},
		"not hex":           {with("g" + good[1:]), "expected a SHA-256 of 64 hex digits"},
		"a list of one":     {with("[" + good + "]"), "expected a text"},
	} {
		_, err := manifest.Parse([]byte(c.source))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
