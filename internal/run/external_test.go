package run

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/report"
)

const script = "#!/bin/sh\nexit 0\n"

func sumOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// manifestOf is a provider.yaml with a runtime.
func manifestOf(url, sum string) string {
	return fmt.Sprintf(`name: mine
version: v1.2.3
extra: {kept: as it is}
options: {MICROSANDBOX_BLOCK_EGRESS: {default: "false"}}
agent:
  local: true
  driver: external
  external: {binary: RUNTIME, args: [serve]}
  binaries:
    RUNTIME: [{os: linux, arch: amd64, path: %q, checksum: %q, name: runtime}]
`, url, sum)
}

// site serves a runtime, and manifests of it.
func site(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	serve := func(path, content string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, content) })
	}
	serve("/runtime", script)
	serve("/text", "not a program")
	serve("/provider.yaml", manifestOf(s.URL+"/runtime", sumOf(script)))
	return s
}

func TestTheReferenceProviderIsPinnedByItsOwnHash(t *testing.T) {
	runtime := filepath.Join(t.TempDir(), "parity-runtime")
	if err := os.WriteFile(runtime, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	e, head, err := findExternal(t.Context(), ToolOptions{Folder: t.TempDir()}, runtime, adapter.Contract(), "")
	if err != nil || e.Runtime != runtime || head.Kind != "reference" || head.SHA256 != sumOf(script) {
		t.Fatalf("%+v, %v", e, err)
	}
	text, err := os.ReadFile(e.Manifest)
	if err != nil || !strings.Contains(string(text), sumOf(script)) || !strings.Contains(string(text), "exec:\n  command: ") {
		t.Errorf("expected a manifest with the runtime's hash, and with exec.command, which CLIs ask for in every one, got %q, %v", text, err)
	}
	if _, _, err := findExternal(t.Context(), ToolOptions{Folder: t.TempDir()}, runtime+"-none", adapter.Contract(), ""); !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "scripts/build") {
		t.Errorf("without parity-runtime: %v", err)
	}
}

func TestAGivenProviderIsTakenAsItsManifestPinsIt(t *testing.T) {
	s := site(t)
	folder := t.TempDir()
	file := filepath.Join(folder, "provider.yaml")
	if err := os.WriteFile(file, []byte(manifestOf(s.URL+"/runtime", sumOf(script))), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{file, folder, s.URL + "/provider.yaml"} {
		e, head, err := findExternal(t.Context(), ToolOptions{ExternalSource: source, Egress: true, Folder: t.TempDir()}, "", adapter.Contract(), "")
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		content, err := os.ReadFile(e.Runtime)
		if err != nil || string(content) != script || head.Kind != "manifest" || head.Name != "mine" || head.SHA256 != sumOf(script) {
			t.Errorf("%s: %+v, %q, %v", source, e, content, err)
		}
		if text, err := os.ReadFile(e.Manifest); err != nil || !strings.Contains(string(text), "extra: {kept: as it is}") {
			t.Errorf("%s: the manifest is %q, %v", source, text, err)
		}
	}
}

// The head says which provider it was, and no secret of a URL's.
func TestAProviderIsNamedWithItsVersionAndURLs(t *testing.T) {
	s := site(t)
	at := strings.Replace(s.URL, "http://", "http://somebody:hidden@", 1)
	file := filepath.Join(t.TempDir(), "provider.yaml")
	if err := os.WriteFile(file, []byte(manifestOf(at+"/runtime?token=hidden", sumOf(script))), 0o644); err != nil {
		t.Fatal(err)
	}
	_, head, err := findExternal(t.Context(), ToolOptions{ExternalSource: file, Folder: t.TempDir()}, "", adapter.Contract(), "")
	redacted := strings.Replace(s.URL, "http://", "http://xxxxx@", 1)
	if want := (report.External{Kind: "manifest", Name: "mine", Version: "v1.2.3", RuntimeURL: redacted + "/runtime?xxxxx", SHA256: sumOf(script)}); err != nil || head != want {
		t.Errorf("expected %+v, got %+v, %v", want, head, err)
	}
	_, head, err = findExternal(t.Context(), ToolOptions{ExternalSource: at + "/provider.yaml?token=hidden", Folder: t.TempDir()}, "", adapter.Contract(), "")
	if err != nil || head.URL != redacted+"/provider.yaml?xxxxx" {
		t.Errorf("got %+v, %v", head, err)
	}
	for _, source := range []string{at + "/none?token=hidden", at + "/text?token=hidden"} {
		if _, _, err := findExternal(t.Context(), ToolOptions{ExternalSource: source, Folder: t.TempDir()}, "", adapter.Contract(), ""); err == nil ||
			strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "somebody") {
			t.Errorf("expected an error without what is secret, got %v", err)
		}
	}
}

// Parity places a driver that the reference CLI does not run, too.
func TestACustomDriversRuntimeIsItsOnlyProgramOrTheNamedOne(t *testing.T) {
	s := site(t)
	one := strings.Replace(manifestOf(s.URL+"/runtime", sumOf(script)), "driver: external", "driver: custom", 1)
	two := one + fmt.Sprintf("    HELPER: [{os: linux, arch: amd64, path: %q, checksum: %q}]\n", s.URL+"/runtime", sumOf(script))
	for name, test := range map[string]struct{ manifest, key, want string }{
		"one":          {one, "", ""},
		"two":          {two, "", "agent.binaries has the keys HELPER, RUNTIME: it is not known which of agent.binaries is the runtime: say so with --external-binary KEY"},
		"two, named":   {two, "HELPER", ""},
		"another name": {two, "OTHER", `--external-binary "OTHER": the runtime's key: expected a key of agent.binaries, which are HELPER, RUNTIME`},
		"external":     {manifestOf(s.URL+"/runtime", sumOf(script)), "RUNTIME", ""},
		"not external's": {strings.Replace(two, "driver: custom", "driver: external", 1), "HELPER",
			`agent.external.binary says that the runtime is "RUNTIME": expected that one, seen "HELPER"`},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "provider.yaml")
			if err := os.WriteFile(file, []byte(test.manifest), 0o644); err != nil {
				t.Fatal(err)
			}
			e, head, err := findExternal(t.Context(), ToolOptions{ExternalSource: file, ExternalBinary: test.key, Folder: t.TempDir()}, "", adapter.Contract(), "")
			if test.want != "" {
				if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("expected a bad option with %q, got %v", test.want, err)
				}
				return
			}
			content, readErr := os.ReadFile(e.Runtime)
			if err != nil || readErr != nil || string(content) != script || head.SHA256 != sumOf(script) || e.Key != test.key {
				t.Errorf("%+v, %+v, %v, %v", e, head, err, readErr)
			}
		})
	}
}

// Only the cases of egress deny it.
func TestTheOptionThatDeniesIsAskedForWhereItIsUsed(t *testing.T) {
	s := site(t)
	file := filepath.Join(t.TempDir(), "provider.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(manifestOf(s.URL+"/runtime", sumOf(script)), "BLOCK_EGRESS", "OTHER", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := findExternal(t.Context(), ToolOptions{ExternalSource: file, Folder: t.TempDir()}, "", adapter.Contract(), ""); err != nil {
		t.Error(err)
	}
}

// A runtime that is not published yet has a manifest made around it.
func TestARuntimeFileHasAManifestMadeAroundIt(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "my-runtime_v2")
	odd := filepath.Join(folder, "my runtime")
	text := filepath.Join(folder, "text")
	for _, name := range []string{file, odd, text} {
		content := map[bool]string{true: "no program", false: script}[name == text]
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e, head, err := findExternal(t.Context(), ToolOptions{ExternalRuntime: file, Egress: true, Folder: t.TempDir()}, "", adapter.Contract(), "")
	if want := (report.External{Kind: "file", Name: "my-runtime_v2", SHA256: sumOf(script)}); err != nil || head != want || e.Runtime != file {
		t.Fatalf("%+v, %+v, %v", e, head, err)
	}
	source, err := os.ReadFile(e.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	if _, b, err := m.Runtime("linux", "amd64"); err != nil || b.Name != "my-runtime_v2" || b.SHA256 != sumOf(script) {
		t.Errorf("%+v, %v", b, err)
	}
	for name, want := range map[string]string{odd: "expected the name of a file", text: "neither a program nor a script", folder + "/none": "no such file"} {
		if _, _, err := findExternal(t.Context(), ToolOptions{ExternalRuntime: name, Folder: t.TempDir()}, "", adapter.Contract(), ""); !errors.Is(err, ErrOption) ||
			!strings.Contains(err.Error(), "--external-runtime") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: expected a bad option with %q, got %v", name, want, err)
		}
	}
}

// A server that is down says nothing of the provider, and is no bad usage.
func TestANetworkFailureIsNoBadOption(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("name: "))
	}))
	t.Cleanup(broken.Close)
	file := filepath.Join(t.TempDir(), "provider.yaml")
	if err := os.WriteFile(file, []byte(manifestOf(gone.URL+"/runtime", sumOf(script))), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"no manifest": gone.URL + "/provider.yaml", "half a manifest": broken.URL + "/provider.yaml", "no runtime": file} {
		_, _, err := findExternal(t.Context(), ToolOptions{ExternalSource: source, Folder: t.TempDir()}, "", adapter.Contract(), "")
		if errors.Is(err, ErrOption) || !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "--external-provider") {
			t.Errorf("%s: expected an error of the environment's, got %v", name, err)
		}
	}
}

func TestABadProviderIsABadOption(t *testing.T) {
	s := site(t)
	right := sumOf(script)
	wrong := "0" + right[1:]
	if wrong == right {
		wrong = "1" + right[1:]
	}
	for name, test := range map[string]struct {
		manifest string
		want     []string
	}{
		"another checksum":      {manifestOf(s.URL+"/runtime", wrong), []string{wrong, right}},
		"a short checksum":      {manifestOf(s.URL+"/runtime", right[:63]), []string{right[:63]}},
		"no checksum":           {manifestOf(s.URL+"/runtime", ""), []string{"checksum"}},
		"a missing runtime":     {manifestOf(s.URL+"/none", right), []string{"404", "/none"}},
		"no program":            {manifestOf(s.URL+"/text", sumOf("not a program")), []string{"runtime"}},
		"no runtime for us":     {strings.Replace(manifestOf(s.URL+"/runtime", right), "amd64", "arm64", 1), []string{"amd64"}},
		"no way to the remote":  {strings.Replace(manifestOf(s.URL+"/runtime", right), "local: true", "local: false", 1), []string{"exec.command"}},
		"no way to deny egress": {strings.Replace(manifestOf(s.URL+"/runtime", right), "BLOCK_EGRESS", "OTHER", 1), []string{"MICROSANDBOX_BLOCK_EGRESS"}},
		"not a manifest":        {"- a\n- b\n", []string{"provider.yaml"}},
		"not YAML":              {"a: [", []string{"provider.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "p.yaml")
			if err := os.WriteFile(file, []byte(test.manifest), 0o644); err != nil {
				t.Fatal(err)
			}
			_, _, err := findExternal(t.Context(), ToolOptions{ExternalSource: file, Egress: true, Folder: t.TempDir()}, "", adapter.Contract(), "")
			if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), "--external-provider") {
				t.Fatalf("%v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
		})
	}
	for _, source := range []string{"/no/such/file", t.TempDir(), s.URL + "/none"} {
		if _, _, err := findExternal(t.Context(), ToolOptions{ExternalSource: source, Egress: true, Folder: t.TempDir()}, "", adapter.Contract(), ""); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", source, err)
		}
	}
}
