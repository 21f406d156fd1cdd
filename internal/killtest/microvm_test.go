//go:build microvm

package killtest

import (
	"path/filepath"
	"testing"

	"dagger/parity/internal/lab"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/step"
)

// TestMicroVMRunKilledLeavesNothing kills three runs with real microVMs: before one boots, while one runs, and while one that was stopped
// boots again. It is built with the tag microvm and runs in a lab, with PARITY_BIN set; scripts/test does so.
func TestMicroVMRunKilledLeavesNothing(t *testing.T) {
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	// The folders that all programs share show what others do on the machine, also in an emulated one: they are not watched.
	w := newFolders(t, nil)
	home := filepath.Dir(filepath.Dir(msb.PinnedRelease().Path(cache)))
	args := []string{"contract", "--verbose", "--kvm", "native", "--microsandbox", home, "--report", w.report}
	before := w.look(t)
	contract, ok := step.Catalogue().ByID("contract/builtin/cli")
	if !ok {
		t.Fatal("the catalogue has no contract")
	}
	killed := 0
	for i, k := range contract.Checks {
		switch k.Name {
		case "workspace up: JSON on success", "workspace ssh: exit code 23 passes through --command", "workspace up: starts a stopped workspace":
		default:
			continue
		}
		r := start(t, w.command(args...))
		r.awaitSaid(t, contract.ID()+"  "+contract.Checks[i-1].Name+"  pass") // the check begins now
		r.kill()
		if !r.killed() {
			t.Fatalf("%s: it was not killed: %s\n%s", k.Name, r.cmd.ProcessState, r.said())
		}
		killed++
		w.passes(t, "clean")
		w.unchanged(t, before)
		t.Logf("killed at %q", k.Name)
	}
	if killed != 3 {
		t.Errorf("%d runs were killed, and 3 were to be", killed)
	}
	w.passes(t, args...)
	if got, err := report.Read(w.report); err != nil || got.Verdict != report.Pass || got.Head.MicroSandbox.StandIn {
		t.Errorf("%v, %s, %+v", err, got.Verdict, got.Head)
	}
	w.removeReport(t)
	w.unchanged(t, before)
}
