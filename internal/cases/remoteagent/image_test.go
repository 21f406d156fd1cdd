package remoteagent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/report"
)

// The programs that read an image's config from its registry, which the reference ones do not where
// MicroSandbox has the image.
const (
	readsCLI     = "dagger/parity/internal/cases/remoteagent/testdata/readscli"
	readsRuntime = "dagger/parity/internal/cases/remoteagent/testdata/readsruntime"
)

// readers gives a folder with Parity's programs, a CLI that reads images' configs, readscli, and an
// external runtime that does so too, in place of the reference one.
func readers(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for name, from := range map[string]string{
		"parity": "parity", "parity-agent": "parity-agent", "parity-probe": "parity-probe", "readscli": "readscli", "parity-runtime": "readsruntime",
	} {
		content, err := os.ReadFile(filepath.Join(labtest.Programs(), from))
		if err := errors.Join(err, os.WriteFile(filepath.Join(bin, name), content, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// A CLI that reads the config of a workspace's image from the registry that the image's reference
// names can do so on this side, and the external runtime where the machine is made.
func TestASubjectThatReadsTheImagesConfigFromItsRegistryPasses(t *testing.T) {
	bin := readers(t)
	for _, args := range [][]string{{"egress", "--only", "egress/*/public"}, {Scenario}} {
		t.Run(args[0], func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "report")
			c := exec.Command(filepath.Join(bin, "parity"), append(args, "--standin", "--subject", filepath.Join(bin, "readscli"), "--report", out)...)
			if said, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			if r, err := report.Read(out); err != nil || r.Verdict != report.Pass {
				t.Errorf("expected a pass, got %+v, %v", r, err)
			}
		})
	}
}
