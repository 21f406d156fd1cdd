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
)

const script = "#!/bin/sh\nexit 0\n"

func sumOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// manifestOf is a provider.yaml with a runtime.
func manifestOf(url, sum string) string {
	return fmt.Sprintf(`name: mine
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
	e, head, err := findExternal(t.Context(), "", runtime, t.TempDir())
	if err != nil || e.Runtime != runtime || head.Kind != "reference" || head.SHA256 != sumOf(script) {
		t.Fatalf("%+v, %v", e, err)
	}
	text, err := os.ReadFile(e.Manifest)
	if err != nil || !strings.Contains(string(text), sumOf(script)) {
		t.Errorf("the manifest is %q, %v", text, err)
	}
	if _, _, err := findExternal(t.Context(), "", runtime+"-none", t.TempDir()); !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "scripts/build") {
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
		e, head, err := findExternal(t.Context(), source, "", t.TempDir())
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
			_, _, err := findExternal(t.Context(), file, "", t.TempDir())
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
		if _, _, err := findExternal(t.Context(), source, "", t.TempDir()); !errors.Is(err, ErrOption) {
			t.Errorf("%s: %v", source, err)
		}
	}
}
