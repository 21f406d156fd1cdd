package customdriver

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"go.yaml.in/yaml/v3"

	"dagger/parity/internal/msbdriver"
)

// CLIs are the workspace CLIs that a manifest can be made for.
var CLIs = []string{"devpod", "devsy"}

// Version is that of the manifests.
const Version = "v1.0.0"

// BinaryKey is the key of agent.binaries, and the variable, that has the driver's program where the CLI
// downloads it.
const BinaryKey = "PARITY_DRIVER"

// Manifest says which provider a manifest is for. Either Program is set, or URL and SHA256.
type Manifest struct {
	CLI     string // one of CLIs
	Program string // the path of parity on this machine
	URL     string // from where the CLI downloads parity
	SHA256  string // of what it downloads, in hex
}

// YAML returns the provider.yaml. An error says which field is wrong.
func (m Manifest) YAML() ([]byte, error) {
	switch {
	case !slices.Contains(CLIs, m.CLI):
		return nil, fmt.Errorf("unknown CLI %q; known are %s", m.CLI, strings.Join(CLIs, ", "))
	case (m.Program == "") == (m.URL == "") || (m.URL == "") != (m.SHA256 == ""):
		return nil, errors.New("expected the program's path, or a URL with a SHA-256")
	case m.Program != "" && !filepath.IsAbs(m.Program):
		return nil, fmt.Errorf("the program %q: expected an absolute path", m.Program)
	}
	program := shellescape.Quote(m.Program)
	if m.URL != "" {
		program = `"${` + BinaryKey + `}"`
	}
	command := func(verb string) []string { return []string{"sh", "-c", "exec " + program + " driver " + verb} }
	options := map[string]any{}
	for _, name := range msbdriver.OptionNames() {
		options[name] = map[string]any{"description": "an option of a MicroSandbox machine", "default": ""}
	}
	agent := map[string]any{
		"local": "true", "driver": "custom",
		"custom": map[string]any{
			"targetArchitecture": command("arch"), "findDevContainer": command("find"), "runDevContainer": command("run"),
			"startDevContainer": command("start"), "stopDevContainer": command("stop"), "deleteDevContainer": command("delete"),
			"commandDevContainer": command("exec"),
		},
	}
	if m.URL != "" {
		agent["binaries"] = map[string]any{BinaryKey: []any{map[string]any{
			"os": "linux", "arch": "amd64", "path": m.URL, "checksum": m.SHA256, "name": "parity-driver",
		}}}
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(map[string]any{
		"name": "parity-" + m.CLI, "version": Version, "description": "MicroSandbox machines by `parity driver`",
		"options": options, "agent": agent,
		// The CLI requires it of each provider, and runs it where the provider is: here.
		"exec": map[string]any{"command": `sh -c "${COMMAND}"`},
	})
	return b.Bytes(), errors.Join(err, enc.Close())
}
