package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/reference/binaries"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/report"
)

// referenceURL is where the manifest of the reference provider has its runtime, until a case serves it.
const referenceURL = "http://127.0.0.1/parity-runtime"

// referenceManifest is the manifest of the reference provider: parity-runtime, by its SHA-256.
func referenceManifest(sum string) []byte {
	return fmt.Appendf(nil, `name: parity-reference
version: v1
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
      - {os: linux, arch: amd64, path: %q, checksum: %q, name: parity-runtime}
`, referenceURL, sum)
}

// blockEgress is the option with which the cases deny egress.
const blockEgress = "MICROSANDBOX_BLOCK_EGRESS"

// findExternal finds the external provider: the one that the source leads to (a file, a folder or a URL of a provider.yaml), else the
// reference one. It gives the provider and what the report says of it. What it makes is in folder. A runtime is taken only with the SHA-256 that the manifest has.
func findExternal(ctx context.Context, source, runtimePath, folder string) (cases.External, report.External, error) {
	e := cases.External{Manifest: filepath.Join(folder, "provider.yaml"), Runtime: runtimePath}
	if source == "" {
		sum, err := checkProgram(runtimePath)
		if err != nil {
			return e, report.External{}, fmt.Errorf("%w: %w: build it with scripts/build", ErrTool, err)
		}
		head := report.External{Kind: "reference", Name: "parity-runtime", SHA256: sum}
		return e, head, os.WriteFile(e.Manifest, referenceManifest(sum), 0o644)
	}
	fail := func(err error) (cases.External, report.External, error) {
		return e, report.External{}, fmt.Errorf("%w --external-provider %q: %w", ErrOption, source, err)
	}
	m, _, err := manifest.Load(ctx, source, binaries.Download{}.Get)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("expected a file, a folder or a URL of a %s: %w", manifest.FileName, err)
	}
	if err != nil {
		return fail(err)
	}
	if _, known := m.Options[blockEgress]; !known {
		return fail(fmt.Errorf("options: expected %s, with which the cases deny egress; add it to the manifest", blockEgress))
	}
	key, b, err := m.Runtime(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return fail(err)
	}
	store := binaries.Store{Dir: filepath.Join(folder, "external"), Cache: filepath.Join(folder, "downloads")}
	if e.Runtime, err = store.Install(ctx, binaries.Binary{Key: key, Name: b.Name, URL: b.URL, SHA256: b.SHA256}); err != nil {
		return fail(err)
	}
	if _, err := checkProgram(e.Runtime); err != nil {
		return fail(err)
	}
	head := report.External{Kind: "manifest", Name: m.Name, SHA256: b.SHA256}
	return e, head, os.WriteFile(e.Manifest, m.Source, 0o644)
}
