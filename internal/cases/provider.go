package cases

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/internal/adapter"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/customdriver"
	"dagger/parity/internal/reference/manifest"
)

// External is an external provider as the cases of a lab add it: its runtime is served to the subject from the lab itself.
type External struct {
	Manifest string // a file, the provider.yaml
	Runtime  string // a file, the runtime
	Key      string // that of the manifest's agent.binaries that is the runtime; empty: the manifest says so
}

// source gives the SOURCE by which the subject adds the provider of a case. For an external one that is a provider.yaml, whose runtime
// is served until the case ends.
//
// served tells how often the runtime was asked for; it is nil for the built-in provider.
func (e Env) source(provider, dir string, c *Cleanup) (source string, served func() int, err error) {
	if provider != catalogue.External {
		source, err := e.builtin(dir)
		return source, nil, err
	}
	content, err := os.ReadFile(e.External.Runtime)
	if err != nil {
		return "", nil, fmt.Errorf("the external provider's runtime: %w", err)
	}
	text, err := os.ReadFile(e.External.Manifest)
	if err != nil {
		return "", nil, fmt.Errorf("the external provider's manifest: %w", err)
	}
	server, err := artifacts.Start(netip.MustParseAddrPort("127.0.0.1:0"), "runtime", content)
	if err != nil {
		return "", nil, err
	}
	c.Add("the artifact server", func(context.Context) error { return server.Close() })
	if text, err = manifest.Place(text, manifest.Placement{Local: true, RuntimeURL: server.URL(), Runtime: e.External.Key}); err != nil {
		return "", nil, fmt.Errorf("the external provider's manifest: %w", err)
	}
	file := filepath.Join(dir, "provider.yaml")
	return file, server.Requests, os.WriteFile(file, text, 0o644)
}

// speak returns how the subject is spoken to.
func (e Env) speak() (*adapter.Adapter, error) {
	if e.Adapter == "" {
		return adapter.Contract(), nil
	}
	return adapter.Parse([]byte(e.Adapter))
}

// MachineMemory is the memory in MiB of a workspace's machine, where the test writes the provider:
// what a lab has room for.
const MachineMemory = 512

// builtin returns the SOURCE by which the subject adds the provider with its own driver.
func (e Env) builtin(dir string) (string, error) {
	if e.Builtin != "" {
		return e.Builtin, nil
	}
	speak, err := e.speak()
	if err != nil {
		return "", err
	}
	if speak.Builtin.Driver != "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		text, err := customdriver.Provider{Program: self, MemoryMiB: MachineMemory}.YAML()
		if err != nil {
			return "", fmt.Errorf("the adapter %s, builtin: %w", speak.Name, err)
		}
		file := filepath.Join(dir, "builtin.yaml")
		return file, os.WriteFile(file, text, 0o644)
	}
	if speak.Builtin.Name == "" {
		return "", fmt.Errorf("the adapter %s names no provider for the built-in driver: add builtin to it, or name a SOURCE with --builtin-source", speak.Name)
	}
	return speak.Builtin.Name, nil
}
