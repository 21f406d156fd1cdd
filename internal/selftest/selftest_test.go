package selftest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
)

func TestMain(m *testing.M) {
	lab.Reexec()
	os.Exit(m.Run())
}

func TestThePlanHasNoGap(t *testing.T) {
	if open := gaps(Plan()); len(open) > 0 {
		t.Error(strings.Join(open, "\n"))
	}
}

// A gap is found: without its row a fault is caught by nothing, and a check that only it trips is tripped by none.
func TestAGapIsFound(t *testing.T) {
	var plan []Row
	for _, row := range Plan() {
		if row.Fault != fault.EndpointDeadAtEnd {
			plan = append(plan, row)
		}
	}
	open := strings.Join(gaps(plan), "\n")
	if !strings.Contains(open, "the fault endpoint-dead-at-end") || !strings.Contains(open, "the check endpoint-after of egress/builtin/deny") {
		t.Errorf("gaps: %q", open)
	}
}

func TestEachRowHasANameOfItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Whole(1).Cases() {
		if seen[c.Name] {
			t.Errorf("two rows are named %s", c.Name)
		}
		seen[c.Name] = true
	}
}

func TestTheListOfFaultsIsUpToDate(t *testing.T) {
	var want bytes.Buffer
	if err := Markdown(&want, Plan()); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want.Bytes()) {
		t.Error("docs/faults.md is stale: make it with `go run ./cmd/parity selftest --markdown >docs/faults.md`")
	}
}

// options are those of a self-test on freshly built programs.
func options(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	if err := labtest.Build(dir, "dagger/parity/cmd/..."); err != nil {
		t.Fatal(err)
	}
	tools, err := run.FindTools(t.Context(), run.ToolOptions{Cache: t.TempDir(), StandIn: true, Programs: dir, External: true, Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		RunID: "selftest", Tools: tools, KVM: lab.Decision{KVM: lab.Native}, Cache: t.TempDir(), Folder: t.TempDir(), Emit: func(report.Event) {},
	}
}

// broken lists the checks of a case that did not pass, by their names.
func broken(c report.Case) string {
	var list []string
	for _, check := range c.Checks {
		if check.Broke() {
			list = append(list, check.Name+": "+string(check.Verdict))
		}
	}
	return strings.Join(list, ", ")
}

// A row fails when its fault breaks other checks than it says, more of them, or none; and so does a row without a fault when a case
// does not pass.
func TestAWrongRowFails(t *testing.T) {
	o := options(t)
	proxy := fails(deny, created, "deny")
	for _, test := range []struct {
		name string
		row  Row
		want string
	}{
		{"right", breaks(fault.DenyProxy403, proxy), ""},
		{"another check", breaks(fault.DenyProxy403, fails(deny, created, "policy")), "egress/builtin/deny: created policy: fail: fail"},
		{"another verdict", breaks(fault.DenyProxy403, unclear(deny, created, "deny")), "egress/builtin/deny: created deny: inconclusive: fail"},
		{"another phase", breaks(fault.DenyProxy403, fails(deny, restarted, "deny")), "egress/builtin/deny: restarted deny: fail: fail"},
		{"more than it says", Row{Fault: fault.DenyProxy403, Cases: []string{deny}, Patience: 1}, nothingElse + ": fail"},
		{"nothing", breaks(fault.DenyIgnoredAfterRecreation, problem(public)), "egress/builtin/public: the case itself: inconclusive: fail"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := o
			o.Folder = t.TempDir()
			got, kernel := Selection{Rows: []Row{test.row}}.Run(t.Context(), o)
			if len(got) != 1 || broken(got[0]) != test.want || got[0].Verdict == report.Pass != (test.want == "") {
				t.Errorf("%d cases; broken: %q, want %q", len(got), broken(got[0]), test.want)
			}
			if _, err := report.Read(filepath.Join(o.Folder, folder(test.row.Name()))); err != nil {
				t.Errorf("the report of the run: %v", err)
			}
			if kernel == "" {
				t.Error("no kernel is named")
			}
		})
	}
}

func TestARunThatCannotStartIsNoCaughtFault(t *testing.T) {
	o := options(t)
	o.Cache = "/dev/null/cache"
	results, _ := Selection{Rows: []Row{breaks(fault.CreateFails, problem(public))}, Repeat: 1}.Run(context.Background(), o)
	for _, c := range results {
		if c.Verdict == report.Pass {
			t.Errorf("%s passed", c.ID)
		}
	}
}
