package catalogue

import (
	"reflect"
	"slices"
	"strings"
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

// breaks makes a check of a case not pass, and those after it not reached, as they stand on it.
func breaks(c *report.Case, i int, v report.Verdict) {
	c.Checks[i].Verdict = v
	for j := i + 1; j < len(c.Checks); j++ {
		c.Checks[j].Verdict = report.NotReached
	}
}

func TestVerify(t *testing.T) {
	// Case 1 is egress/builtin/public; its check 5 is created workspace/up.
	for what, test := range map[string]struct {
		damage func(*report.Report)
		want   []string
	}{
		"a sound report": {func(*report.Report) {}, nil},
		"a sound report of a failed case": {func(r *report.Report) {
			breaks(&r.Cases[1], 5, report.Fail)
			r.Cases[1].Verdict = report.Fail
		}, nil},
		"a check after one that broke": {func(r *report.Report) {
			breaks(&r.Cases[1], 5, report.Fail)
			r.Cases[1].Checks[7].Verdict, r.Cases[1].Verdict = report.Pass, report.Fail
		}, []string{"case egress/builtin/public: check created policy was made, and it stands on created workspace/up, which did not pass"}},
		"a check that was left out": {func(r *report.Report) {
			last := len(r.Cases[1].Checks) - 1
			r.Cases[1].Checks[last].Verdict, r.Cases[1].Verdict = report.NotReached, report.Inconclusive
		}, []string{"case egress/builtin/public: check receipts was not reached, and all that it stands on passed"}},
		"evidence that stands alone": {func(r *report.Report) {
			c := &r.Cases[2]
			breaks(c, 6, report.Inconclusive)
			c.Checks[len(c.Checks)-1].Verdict, c.Verdict = report.Fail, report.Fail
		}, nil},
		"a pass that stands alone": {func(r *report.Report) {
			c := &r.Cases[2]
			breaks(c, 6, report.Inconclusive)
			c.Checks[len(c.Checks)-1].Verdict, c.Verdict = report.Pass, report.Inconclusive
		}, []string{"case egress/builtin/deny: check receipts was made, and it stands on created workspace/up, which did not pass"}},
		"a case that never came to its checks": {func(r *report.Report) {
			breaks(&r.Cases[1], 0, report.NotReached)
			r.Cases[1].Problems, r.Cases[1].Verdict = []string{"it never started"}, report.Inconclusive
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
		"a check is missing": {func(r *report.Report) { r.Cases[1].Checks = slices.Delete(r.Cases[1].Checks, 5, 6) }, []string{
			"case egress/builtin/public: check created workspace/up was planned once and is in the report 0 times",
		}},
		"a check is there twice": {func(r *report.Report) {
			r.Cases[1].Checks = slices.Insert(r.Cases[1].Checks, 5, r.Cases[1].Checks[5])
		}, []string{"case egress/builtin/public: check created workspace/up was planned once and is in the report 2 times"}},
		"a check was not planned": {func(r *report.Report) {
			r.Cases[1].Checks = append(r.Cases[1].Checks, report.Check{Name: "extra", Verdict: report.Pass})
		}, []string{"case egress/builtin/public: check extra was not planned"}},
		"checks out of order": {func(r *report.Report) {
			c := r.Cases[1].Checks
			c[5], c[6] = c[6], c[5]
		}, []string{"case egress/builtin/public: check created identity/state came where created workspace/up was planned"}},
		"an unknown verdict": {func(r *report.Report) {
			breaks(&r.Cases[1], 5, "skipped")
			r.Cases[1].Verdict = report.Inconclusive
		}, []string{`case egress/builtin/public: check created workspace/up has the unknown verdict "skipped"`}},
		"a verdict that does not follow": {func(r *report.Report) { breaks(&r.Cases[1], 5, report.Fail) }, []string{
			`case egress/builtin/public: its verdict is "pass", and "fail" follows from its 41 checks and 0 problems`,
		}},
		"a pass with a problem": {func(r *report.Report) { r.Cases[1].Problems = []string{"clean-up failed"} }, []string{
			`case egress/builtin/public: its verdict is "pass", and "inconclusive" follows from its 41 checks and 1 problem`,
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

// A plan with a graph of its own: c stands on a, d on b and c, e on none.
func TestVerifyHoldsAReportAgainstTheGraph(t *testing.T) {
	plan := Case{Scenario: "s", Provider: "p", Name: "c", Checks: []Check{
		{Name: "a", Stands: On()}, {Name: "b", Stands: On()}, {Name: "c", Stands: On("a")}, {Name: "d", Stands: On("b", "c")}, {Name: "e", Stands: On()},
	}}
	letters := map[rune]report.Verdict{'p': report.Pass, 'f': report.Fail, 'i': report.Inconclusive, '-': report.NotReached}
	for verdicts, want := range map[string][]string{
		"ppppp": nil,
		"fp--p": nil,
		"pfp-p": nil,
		"ff--f": nil,
		"ppi-p": nil,
		"fpp-p": {"check c was made, and it stands on a, which did not pass", "check d was not reached, and all that it stands on passed"},
		"fp-pp": {"check d was made, and it stands on c, which did not pass"},
		"fp-fp": {"check d was made, and it stands on c, which did not pass"},
		"fp---": {"check e was not reached, and all that it stands on passed"},
		"pf--p": {"check c was not reached, and all that it stands on passed"},
		"-p--p": {"check a was not reached, and all that it stands on passed"},
	} {
		c := report.Case{ID: plan.ID(), RunID: "r1"}
		for i, letter := range []rune(verdicts) {
			c.Checks = append(c.Checks, report.Check{Name: plan.Checks[i].Name, Verdict: letters[letter]})
		}
		c.Verdict = c.Judge()
		for i := range want {
			want[i] = "case s/p/c: " + want[i]
		}
		r := report.Report{Head: report.Head{RunID: "r1"}, Selected: []string{plan.ID()}, Cases: []report.Case{c}}
		if got := Verify([]Case{plan}, r); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", verdicts, got, want)
		}
	}
	plan.Checks[2].Stands = On("z")
	if got := Verify([]Case{plan}, sound([]Case{plan})); len(got) != 1 || !strings.Contains(got[0], "stand on one that is none before it") {
		t.Errorf("a name that is none: %q", got)
	}
}

// A comparison is left out only where one of the cases that it compares did not pass; the others
// are made.
func TestVerifyHoldsAComparisonAgainstItsCases(t *testing.T) {
	selected, err := catalogue().Select("egress", []string{Both})
	if err != nil {
		t.Fatal(err)
	}
	last := len(selected) - 1
	for _, broke := range []bool{true, false} {
		r := sound(selected)
		r.Cases[last].Checks[0].Verdict, r.Cases[last].Verdict = report.NotReached, report.Inconclusive
		want := []string{"case parity/egress: check public was not reached, and both cases that it compares passed"}
		if broke {
			breaks(&r.Cases[1], 5, report.Fail)
			r.Cases[1].Verdict, want = report.Fail, nil
		}
		if got := Verify(selected, r); !slices.Equal(got, want) {
			t.Errorf("one of the cases broke: %t: %q", broke, got)
		}
	}
}

// Which checks of the contract end a case, and of which contract.
func TestMissing(t *testing.T) {
	builtin := Case{Scenario: "contract", Provider: Builtin, Name: "cli"}
	external := Case{Scenario: "contract", Provider: External, Name: "cli"}
	result := report.Case{Checks: []report.Check{{Name: "leaf", Verdict: report.Fail}, {Name: "root", Verdict: report.Pass}}}
	broken := report.Case{Checks: []report.Check{{Name: "leaf", Verdict: report.Pass}, {Name: "root", Verdict: report.NotReached}}}
	on := func(provider string, s Standing) Case {
		return Case{Scenario: "egress", Provider: provider, Name: "deny", Contract: s}
	}
	both := []Case{builtin, external}
	for name, test := range map[string]struct {
		c        Case
		selected []Case
		result   report.Case
		want     string
	}{
		"a leaf broke":                      {on(Builtin, On("root")), both, result, ""},
		"what it stands on broke":           {on(Builtin, On("root")), both, broken, "root"},
		"it stands on all":                  {on(Builtin, nil), both, result, "leaf"},
		"it stands on the other contract":   {on(External, On("root")), both, broken, ""},
		"there is no contract of its own":   {on(External, On("root")), both[:1], broken, "root"},
		"a contract stands on no other one": {external, both, broken, ""},
	} {
		if got := test.c.Missing(test.selected, builtin, test.result); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
