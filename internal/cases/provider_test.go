package cases

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/catalogue"
)

// A custom driver's program is served like any runtime, also one of several.
func TestTheChosenProgramOfACustomDriverIsServed(t *testing.T) {
	dir := t.TempDir()
	e := Env{Tools: Tools{External: External{Manifest: filepath.Join(dir, "m.yaml"), Runtime: filepath.Join(dir, "r"), Key: "HELPER"}}}
	sum := strings.Repeat("0123456789abcdef", 4)
	text := `name: mine
agent:
  local: true
  driver: custom
  binaries:
    HELPER: [{os: linux, arch: amd64, path: "http://a.test/h", checksum: "` + sum + `"}]
    OTHER: [{os: linux, arch: amd64, path: "http://a.test/o", checksum: "` + sum + `"}]
exec: {command: "${COMMAND}"}
`
	for name, content := range map[string]string{e.External.Manifest: text, e.External.Runtime: "runtime"} {
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var c Cleanup
	source, served, err := e.source(catalogue.External, dir, &c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.steps[0].do(context.Background()) })
	placed, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(placed); served() != 0 || strings.Contains(got, "a.test/h") || !strings.Contains(got, "http://127.0.0.1:") || !strings.Contains(got, "a.test/o") ||
		!strings.Contains(got, `exec: {command: "${COMMAND}"}`) {
		t.Errorf("expected the helper alone to be placed, and exec to stay, got\n%s", got)
	}
}
