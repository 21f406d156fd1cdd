package cases

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/internal/catalogue"
)

// External is an external provider as the cases of a lab add it: its runtime is served to the subject from the lab itself.
type External struct {
	Manifest string // a file, the provider.yaml
	URL      string // where the manifest has the runtime
	Runtime  string // a file, the runtime
}

// BuiltinSource is the SOURCE by which `provider add` adds the subject's own driver.
const BuiltinSource = "microsandbox"

// source gives the SOURCE by which the subject adds the provider of a case. For an external one that is a provider.yaml, whose runtime
// is served until the case ends.
func (e Env) source(provider, dir string, c *Cleanup) (string, error) {
	if provider != catalogue.External {
		return BuiltinSource, nil
	}
	content, err := os.ReadFile(e.External.Runtime)
	if err != nil {
		return "", fmt.Errorf("the external provider's runtime: %w", err)
	}
	manifest, err := os.ReadFile(e.External.Manifest)
	if err != nil {
		return "", fmt.Errorf("the external provider's manifest: %w", err)
	}
	if !bytes.Contains(manifest, []byte(e.External.URL)) {
		return "", fmt.Errorf("the external provider's manifest %s does not have the URL %s as it stands", e.External.Manifest, e.External.URL)
	}
	server, err := artifacts.Start(netip.MustParseAddrPort("127.0.0.1:0"), "runtime", content)
	if err != nil {
		return "", err
	}
	c.Add("the artifact server", func(context.Context) error { return server.Close() })
	file := filepath.Join(dir, "provider.yaml")
	return file, os.WriteFile(file, bytes.ReplaceAll(manifest, []byte(e.External.URL), []byte(server.URL())), 0o644)
}
