package customdriver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"dagger/parity/internal/customdriver"
)

// read is what a CLI reads of a provider.yaml.
type read struct {
	Name, Version string
	Options       map[string]struct{ Description, Default string }
	Agent         struct {
		Local    bool
		Driver   string
		Binaries map[string][]map[string]string
		Custom   map[string]yaml.Node
	}
	Exec struct{ Command string }
}

func manifest(t *testing.T, p customdriver.Provider) (m read) {
	t.Helper()
	text, err := p.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// architecture runs the command of a provider.yaml that prints the architecture, as a CLI does: a
// list as it is, a text in a shell.
func architecture(t *testing.T, m read, env ...string) string {
	t.Helper()
	for _, key := range []string{"findDevContainer", "commandDevContainer", "targetArchitecture", "runDevContainer", "startDevContainer", "stopDevContainer",
		"deleteDevContainer", "getDevContainerLogs"} {
		if m.Agent.Custom[key].Kind == 0 {
			t.Errorf("agent.custom.%s is missing", key)
		}
	}
	node := m.Agent.Custom["targetArchitecture"]
	var argv []string
	if node.Kind == yaml.ScalarNode {
		argv = []string{"sh", "-c", node.Value}
	} else if err := node.Decode(&argv); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), env...)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestProvider(t *testing.T) {
	// The path of the program reaches no shell.
	program := filepath.Join(t.TempDir(), "a $HOME 'program'")
	if err := os.Symlink(parity(), program); err != nil {
		t.Fatal(err)
	}
	m := manifest(t, customdriver.Provider{Program: program})
	if m.Name == "" || m.Version == "" || !m.Agent.Local || m.Agent.Driver != "custom" || len(m.Agent.Binaries) > 0 || !strings.Contains(m.Exec.Command, "${COMMAND}") {
		t.Errorf("the provider is %+v", m)
	}
	if got := architecture(t, m); got != runtime.GOARCH {
		t.Errorf("the architecture is %q", got)
	}

	// A checksum of digits alone is a text; a CLI would read a number otherwise.
	sum := strings.Repeat("0123456789", 6) + "0123"
	m = manifest(t, customdriver.Provider{URL: "https://files.example/parity", SHA256: sum, Exec: `ssh build "${COMMAND}"`})
	entry := m.Agent.Binaries[customdriver.Binary]
	if m.Agent.Local || m.Exec.Command != `ssh build "${COMMAND}"` || len(entry) != 1 || entry[0]["checksum"] != sum || entry[0]["os"] != "linux" ||
		entry[0]["arch"] != runtime.GOARCH || entry[0]["path"] != "https://files.example/parity" {
		t.Errorf("the provider whose program is downloaded is %+v", m)
	}
	text, err := customdriver.Provider{URL: "https://files.example/parity", SHA256: sum}.YAML()
	if err != nil || !strings.Contains(string(text), `checksum: "`+sum+`"`) {
		t.Errorf("no quotes around the checksum: %v, %s", err, text)
	}
	if got := architecture(t, m, customdriver.Binary+"="+program); got != runtime.GOARCH {
		t.Errorf("the architecture is %q", got)
	}
}
