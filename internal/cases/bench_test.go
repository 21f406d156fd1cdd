package cases

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/msb"
)

// What a subject leaves is removed and named.
func TestSandboxesThatTheSubjectLeftAreNamed(t *testing.T) {
	for listed, want := range map[string]string{
		`[{"name":"devsy-a"}]`:                    "left 1 sandbox: devsy-a; now removed",
		`[{"name":"devsy-a"},{"name":"devsy-b"}]`: "left 2 sandboxes: devsy-a, devsy-b; now removed",
		`[]`: "",
	} {
		dir := t.TempDir()
		fake := "#!/bin/sh\ncase $1 in list) echo '" + listed + "';; *) echo \"$@\" >>" + dir + "/done;; esac\n"
		if err := os.WriteFile(filepath.Join(dir, "msb"), []byte(fake), 0o755); err != nil {
			t.Fatal(err)
		}
		b := &Bench{MSB: &msb.Client{Path: filepath.Join(dir, "msb"), Home: dir}}
		err := b.removeAll(t.Context())
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", listed, err)
			}
			continue
		}
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", listed, err, want)
		}
		if done, err := os.ReadFile(filepath.Join(dir, "done")); err != nil || strings.Count(string(done), "remove --force devsy-") != strings.Count(listed, "name") {
			t.Errorf("%s: msb was told %q, %v", listed, done, err)
		}
	}
}
