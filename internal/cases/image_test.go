package cases_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/reference/registry"
	"dagger/parity/internal/report"
)

// served gives a Bench with a fake for msb, which writes down what it is told, once the plain image
// is served.
func served(t *testing.T) (b *cases.Bench, c *cases.Cleanup, told func() string) {
	t.Helper()
	dir := t.TempDir()
	log, program := filepath.Join(dir, "told"), filepath.Join(dir, "msb")
	script := "#!/bin/sh\necho \"$@\" >>" + log + "\ncase $1 in list) echo '[]';; esac\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	env := cases.Env{RunID: "run", Tools: cases.Tools{MSB: program, Subject: []string{"/bin/true"}}}
	c = &cases.Cleanup{}
	r := cases.NewRecorder(t.Context(), catalogue.Case{}, "run", func(report.Event) {})
	b, err := cases.NewBench(env, catalogue.Builtin, r, dir, cases.Surroundings{}, c)
	if err = errors.Join(err, b.ServeImage(t.Context())); err != nil {
		t.Fatal(err)
	}
	return b, c, func() string {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// The image can be had from the registry that its reference names until the case ends, by a
// registry's client and by MicroSandbox, and is in MicroSandbox's store too.
func TestThePlainImageIsInTheRegistryThatItsReferenceNames(t *testing.T) {
	b, c, told := served(t)
	if _, err := registry.Find(t.Context(), b.Image); err != nil {
		t.Errorf("a client of the registry: %v", err)
	}
	if err := b.ImageServed(t.Context()); err != nil {
		t.Error(err)
	}
	host, _, _ := strings.Cut(b.Image, "/")
	var config struct {
		Registries struct {
			Hosts map[string]struct{ Insecure bool }
		}
	}
	text, err := os.ReadFile(filepath.Join(b.MSB.Home, "config.json"))
	if err = errors.Join(err, json.Unmarshal(text, &config)); err != nil || !config.Registries.Hosts[host].Insecure {
		t.Errorf("MicroSandbox is not told to take %s without TLS: %s, %v", host, text, err)
	}
	if !strings.Contains(told(), "load --input ") {
		t.Errorf("msb was told %q", told())
	}
	for _, err := range c.Run() {
		t.Error(err)
	}
	if err := b.ImageServed(t.Context()); err == nil || !strings.Contains(err.Error(), "the registry of the image "+b.Image+" is broken") {
		t.Errorf("once the case has ended, the registry is not told to be gone: %v", err)
	}
}

// MicroSandbox's health does not hang on a registry.
func TestABareSandboxNeedsNoRegistry(t *testing.T) {
	b, _, told := served(t)
	if err := b.Healthy(t.Context()); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(told()) {
		if strings.HasPrefix(line, "create ") && (strings.Contains(line, b.Image) || !strings.Contains(line, "--pull never")) {
			t.Errorf("the bare sandbox may be pulled: %q", line)
		}
	}
	if !strings.Contains(told(), "create ") {
		t.Errorf("no sandbox was made: %q", told())
	}
}
