package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/customdriver"
	"dagger/parity/internal/reference/binaries"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/report"
)

// placeholderURL is where a manifest that Parity made has its runtime, until a case serves it.
const placeholderURL = "http://127.0.0.1/"

// Of the manifests that Parity makes. A CLI may ask for a version of three numbers.
const (
	referenceName    = "parity-reference"
	referenceVersion = "v1.0.0"
	runtimeName      = "parity-runtime"
)

// madeManifest is the manifest of a provider whose runtime is a file with a name and a SHA-256: the
// reference provider's, and the one around a runtime that was given.
func madeManifest(provider, file, sum string) []byte {
	return fmt.Appendf(nil, `name: %s
version: %s
description: MicroSandbox machines by %s, an external runtime
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
      - {os: linux, arch: amd64, path: %q, checksum: %q, name: %q}
exec:
  command: sh -c "${COMMAND}"
`, provider, referenceVersion, file, placeholderURL+file, sum, file)
}

// findExternal finds the external provider: the one that its source leads to (a file, a folder or a
// URL of a provider.yaml), one around a runtime that was given, else the reference one, whose
// runtime is at a path. It gives the provider and what the report says of it. What it makes is in
// the options' folder. A runtime is taken only with the SHA-256 that the manifest has.
//
// speak says how the subject is spoken to: which options deny, and whether `parity driver`, of the
// program at self, takes the place of the reference runtime.
func findExternal(ctx context.Context, o ToolOptions, reference string, speak *adapter.Adapter, self string) (cases.External, report.External, error) {
	e := cases.External{Manifest: filepath.Join(o.Folder, "provider.yaml")}
	switch {
	case o.ExternalSource != "":
		e.Key = o.ExternalBinary
		head, err := o.fetchExternal(ctx, &e, slices.Sorted(maps.Keys(speak.Deny)))
		if errors.Is(err, binaries.ErrNetwork) {
			err = fmt.Errorf("%w: --external-provider %q: %w: see whether this machine reaches it, and run it again", ErrTool, shown(o.ExternalSource), err)
		} else if err != nil {
			err = fmt.Errorf("%w --external-provider %q: %w", ErrOption, shown(o.ExternalSource), err)
		}
		return e, head, err
	case o.ExternalRuntime != "":
		head, err := o.wrapRuntime(&e)
		if err != nil {
			err = fmt.Errorf("%w --external-runtime %q: %w", ErrOption, o.ExternalRuntime, err)
		}
		return e, head, err
	}
	if speak.External.Driver == customdriver.Custom {
		head, err := customExternal(&e, o.Folder, self)
		return e, head, err
	}
	e.Runtime = reference
	sum, err := checkProgram(reference)
	if err != nil {
		return e, report.External{}, fmt.Errorf("%w: %w: build it with scripts/build", ErrTool, err)
	}
	head := report.External{Kind: "reference", Name: runtimeName, Version: referenceVersion, SHA256: sum}
	return e, head, os.WriteFile(e.Manifest, madeManifest(referenceName, runtimeName, sum), 0o644)
}

// customExternal makes `parity driver` an external provider, in a folder: its runtime and its
// manifest. The runtime is a copy of this program with a line at its end: the processes that run it
// must differ from Parity's own, as a process is told by the content of its file.
func customExternal(e *cases.External, folder, self string) (report.External, error) {
	program, err := os.ReadFile(self)
	if err != nil {
		return report.External{}, err
	}
	e.Runtime = filepath.Join(folder, "parity-driver")
	if err := os.WriteFile(e.Runtime, append(program, "\nthe runtime of parity driver\n"...), 0o755); err != nil {
		return report.External{}, err
	}
	sum, err := HashFile(e.Runtime)
	if err != nil {
		return report.External{}, err
	}
	text, err := customdriver.Provider{URL: placeholderURL + "parity", SHA256: sum, MemoryMiB: cases.MachineMemory}.YAML()
	if err != nil {
		return report.External{}, fmt.Errorf("%w --adapter: external: %w", ErrOption, err)
	}
	head := report.External{Kind: "reference", Name: "parity driver", Version: customdriver.Version, SHA256: sum}
	return head, os.WriteFile(e.Manifest, text, 0o644)
}

// shown is a source of a manifest as it may be shown.
func shown(source string) string {
	if manifest.IsURL(source) {
		return binaries.Redacted(source)
	}
	return source
}

// fetchExternal gets the manifest that was named, and its runtime. deny are the options that deny
// egress.
func (o ToolOptions) fetchExternal(ctx context.Context, e *cases.External, deny []string) (head report.External, err error) {
	m, _, err := manifest.Load(ctx, o.ExternalSource, binaries.Download{}.Get)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("expected a file, a folder or a URL of a %s: %w", manifest.FileName, err)
	}
	if err == nil && o.ExternalBinary != "" {
		if err = m.Choose(o.ExternalBinary); err != nil {
			err = fmt.Errorf("--external-binary %q: %w", o.ExternalBinary, err)
		}
	}
	if err != nil {
		return head, err
	}
	for _, option := range deny {
		if _, known := m.Options[option]; !known && o.Egress {
			return head, fmt.Errorf("options: expected %s, with which the cases of egress deny; add it to the manifest, or run other scenarios", option)
		}
	}
	key, b, err := m.Runtime(runtime.GOOS, runtime.GOARCH)
	if errors.Is(err, manifest.ErrNoChoice) {
		err = fmt.Errorf("%w: say so with --external-binary KEY", err)
	}
	if err != nil {
		return head, err
	}
	store := binaries.Store{Dir: filepath.Join(o.Folder, "external"), Cache: filepath.Join(o.Folder, "downloads")}
	if e.Runtime, err = store.Install(ctx, binaries.Binary{Key: key, Name: b.Name, URL: b.URL, SHA256: b.SHA256}); err != nil {
		return head, err
	}
	if _, err := checkProgram(e.Runtime); err != nil {
		return head, err
	}
	head = report.External{Kind: "manifest", Name: m.Name, Version: m.Version, RuntimeURL: binaries.Redacted(b.URL), SHA256: b.SHA256}
	if manifest.IsURL(o.ExternalSource) {
		head.URL = binaries.Redacted(o.ExternalSource)
	}
	return head, os.WriteFile(e.Manifest, m.Source, 0o644)
}

// wrapRuntime makes a manifest around the runtime that was given.
func (o ToolOptions) wrapRuntime(e *cases.External) (head report.External, err error) {
	if e.Runtime, err = filepath.Abs(o.ExternalRuntime); err != nil {
		return head, err
	}
	sum, err := checkProgram(e.Runtime)
	if err != nil {
		return head, err
	}
	name := filepath.Base(e.Runtime)
	text := madeManifest("parity-external-runtime", name, sum)
	if _, err := manifest.Parse(text); err != nil {
		return head, fmt.Errorf("its file's name must do in a manifest: %w", err)
	}
	return report.External{Kind: "file", Name: name, SHA256: sum}, os.WriteFile(e.Manifest, text, 0o644)
}
