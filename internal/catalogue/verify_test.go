package catalogue

import (
	"reflect"
	"slices"
	"testing"

	"dagger/parity/internal/report"
)

// sound is a report in which each selected case passed.
func sound(selected []Case) report.Report {
	r := report.Report{Head: report.Head{RunID: "r1"}, Selected: ids(selected)}
	for _, plan := range selected {
		c := report.Case{ID: plan.ID(), RunID: "r1", Verdict: report.Pass}
		for _, check := range plan.Checks {
			c.Checks = append(c.Checks, report.Check{Phase: check.Phase, Name: check.Name, Verdict: report.Pass})
		}
		r.Cases = append(r.Cases, c)
	}
	return r
}

func TestVerify(t *testing.T) {
	// Case 1 is egress/builtin/public; its check 4 is created workspace/up.
	for what, test := range map[string]struct {
		damage func(*report.Report)
		want   []string
	}{
		"a sound report": {func(*report.Report) {}, nil},
		"a sound report of a failed case": {func(r *report.Report) {
			r.Cases[1].Checks[4].Verdict, r.Cases[1].Verdict = report.Fail, report.Fail
		}, nil},
		"no run ID": {func(r *report.Report) {
			r.Head.RunID = ""
			for i := range r.Cases {
				r.Cases[i].RunID = ""
			}
		}, []string{"the report's head has no run ID: its cases cannot be told from an older run's"}},
		"another selection": {func(r *report.Report) { r.Selected = r.Selected[:2] }, []string{
			`the report was asked for the cases ["contract/builtin/cli" "egress/builtin/public"], and the run for ` +
				`["contract/builtin/cli" "egress/builtin/public" "egress/builtin/deny"]`,
		}},
		"a case is missing": {func(r *report.Report) { r.Cases = r.Cases[:2] }, []string{
			"case egress/builtin/deny was selected once and is in the report 0 times",
		}},
		"a case is there twice": {func(r *report.Report) { r.Cases = append(r.Cases, r.Cases[1]) }, []string{
			"case egress/builtin/public was selected once and is in the report 2 times",
		}},
		"a case was not selected": {func(r *report.Report) {
			r.Cases = append(r.Cases, report.Case{ID: "egress/external/deny", RunID: "r1", Verdict: report.Pass})
		}, []string{"case egress/external/deny is in the report and was not selected"}},
		"an older run's case": {func(r *report.Report) { r.Cases[1].RunID = "r0" }, []string{
			`case egress/builtin/public has the run ID "r0", and this run has "r1": it is another run's result`,
		}},
		"a check is missing": {func(r *report.Report) { r.Cases[1].Checks = slices.Delete(r.Cases[1].Checks, 4, 5) }, []string{
			"case egress/builtin/public: check created workspace/up was planned once and is in the report 0 times",
		}},
		"a check is there twice": {func(r *report.Report) {
			r.Cases[1].Checks = slices.Insert(r.Cases[1].Checks, 4, r.Cases[1].Checks[4])
		}, []string{"case egress/builtin/public: check created workspace/up was planned once and is in the report 2 times"}},
		"a check was not planned": {func(r *report.Report) {
			r.Cases[1].Checks = append(r.Cases[1].Checks, report.Check{Name: "extra", Verdict: report.Pass})
		}, []string{"case egress/builtin/public: check extra was not planned"}},
		"checks out of order": {func(r *report.Report) {
			c := r.Cases[1].Checks
			c[4], c[5] = c[5], c[4]
		}, []string{"case egress/builtin/public: check created identity/state came where created workspace/up was planned"}},
		"an unknown verdict": {func(r *report.Report) {
			r.Cases[1].Checks[4].Verdict, r.Cases[1].Verdict = "skipped", report.Inconclusive
		}, []string{`case egress/builtin/public: check created workspace/up has the unknown verdict "skipped"`}},
		"a verdict that does not follow": {func(r *report.Report) { r.Cases[1].Checks[4].Verdict = report.Fail }, []string{
			`case egress/builtin/public: its verdict is "pass", and "fail" follows from its 37 checks and 0 problems`,
		}},
		"a pass with a problem": {func(r *report.Report) { r.Cases[1].Problems = []string{"clean-up failed"} }, []string{
			`case egress/builtin/public: its verdict is "pass", and "inconclusive" follows from its 37 checks and 1 problem`,
		}},
		"a pass with zero checks": {func(r *report.Report) { r.Cases[0].Checks = nil }, []string{
			"case contract/builtin/cli: check ssh/exit-code was planned once and is in the report 0 times",
			"case contract/builtin/cli: check status/missing was planned once and is in the report 0 times",
			`case contract/builtin/cli: its verdict is "pass", and "inconclusive" follows from its 0 checks and 0 problems`,
		}},
	} {
		selected, err := catalogue().Select("egress", []string{Builtin})
		if err != nil {
			t.Fatal(err)
		}
		r := sound(selected)
		test.damage(&r)
		if got := Verify(selected, r); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: Verify gives\n  %q\nwant\n  %q", what, got, test.want)
		}
	}
}

func TestVerifyRefusesAnEmptyPlan(t *testing.T) {
	if got := Verify(nil, sound(nil)); len(got) != 1 {
		t.Errorf("a run of no case gives %q, want one problem", got)
	}
	empty := New(nil)[:1]
	want := []string{
		"case contract/builtin/cli: the catalogue plans no check for it",
		`case contract/builtin/cli: its verdict is "pass", and "inconclusive" follows from its 0 checks and 0 problems`,
	}
	if got := Verify(empty, sound(empty)); !reflect.DeepEqual(got, want) {
		t.Errorf("a case without planned checks gives\n  %q\nwant\n  %q", got, want)
	}
}
