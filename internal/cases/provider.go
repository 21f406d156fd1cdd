package cases

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/reference/manifest"
)

// External is an external provider as the cases of a lab add it: its runtime is served to the subject from the lab itself.
type External struct {
	Manifest string // a file, the provider.yaml
	Runtime  string // a file, the runtime
	Key      string // that of the manifest's agent.binaries that is the runtime; empty: the manifest says so
}

// BuiltinSource is the SOURCE by which `provider add` adds the subject's own driver.
const BuiltinSource = "microsandbox"

// source gives the SOURCE by which the subject adds the provider of a case. For an external one that is a provider.yaml, whose runtime
// is served until the case ends.
//
// served tells how often the runtime was asked for; it is nil for the built-in provider.
func (e Env) source(provider, dir string, c *Cleanup) (source string, served func() int, err error) {
	if provider != catalogue.External {
		return BuiltinSource, nil, nil
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
