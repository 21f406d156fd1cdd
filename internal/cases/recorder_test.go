package cases_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

var plan = catalogue.Case{
	Scenario: "s", Provider: "p", Name: "c", Weight: 1,
	Checks: []catalogue.Check{
		{Name: "a", Sentence: "A holds."},
		{Phase: "created", Name: "b", Sentence: "B holds."},
		{Phase: "created", Name: "c", Sentence: "C holds.", Alone: true},
		{Name: "d", Sentence: "D holds."},
	},
}

func good() cases.Finding { return cases.Passed("seen") }
func bad() cases.Finding  { return cases.Broken("", "seen", "next") }

// verdicts are the case's checks and verdicts as one text.
func verdicts(c report.Case) string {
	var list []string
	for _, k := range c.Checks {
		list = append(list, k.FullName()+": "+string(k.Verdict))
	}
	return strings.Join(list, ", ")
}

// record records a case and holds it against the catalogue, as a run does.
func record(t *testing.T, ctx context.Context, body func(*cases.Recorder)) report.Case {
	t.Helper()
	r := cases.NewRecorder(ctx, plan, "run", func(report.Event) {})
	body(r)
	c := r.Finish()
	rep := report.Report{Head: report.Head{RunID: "run"}, Selected: []string{plan.ID()}, Cases: []report.Case{c}}
	if problems := catalogue.Verify([]catalogue.Case{plan}, rep); len(problems) > 0 {
		t.Errorf("the catalogue finds %q", problems)
	}
	return c
}

func TestRecorderRecordsThePlan(t *testing.T) {
	c := record(t, t.Context(), func(r *cases.Recorder) {
		r.Check("", "a", good)
		r.Check("created", "b", good)
		r.Check("created", "c", good)
		r.Check("", "d", good)
	})
	if c.Verdict != report.Pass || verdicts(c) != "a: pass, created b: pass, created c: pass, d: pass" {
		t.Errorf("%s: %s", c.Verdict, verdicts(c))
	}
}

func TestChecksAfterABrokenOneAreNotMade(t *testing.T) {
	c := record(t, t.Context(), func(r *cases.Recorder) {
		r.Check("", "a", good)
		if r.Check("created", "b", bad) {
			t.Error("the case goes on after a broken check")
		}
		r.Check("created", "c", func() cases.Finding { t.Error("the check was made"); return good() })
	})
	if c.Verdict != report.Fail || verdicts(c) != "a: pass, created b: fail, created c: not reached, d: not reached" {
		t.Errorf("%s: %s", c.Verdict, verdicts(c))
	}
	if b := c.Checks[1]; b.Expected != "B holds." || b.Seen != "seen" || b.Next != "next" {
		t.Errorf("%+v", b)
	}
}

// Leaving checks out, or making others than planned, never passes.
func TestDepartingFromThePlanIsNoPass(t *testing.T) {
	for name, body := range map[string]func(*cases.Recorder){
		"nothing at all": func(*cases.Recorder) {},
		"the last one left out": func(r *cases.Recorder) {
			r.Check("", "a", good)
			r.Check("created", "b", good)
			r.Check("created", "c", good)
		},
		"one left out":    func(r *cases.Recorder) { r.Check("", "a", good); r.Check("created", "c", good); r.Check("", "d", good) },
		"another phase":   func(r *cases.Recorder) { r.Check("created", "a", good) },
		"one made twice":  func(r *cases.Recorder) { r.Check("", "a", good); r.Check("", "a", good) },
		"one not planned": func(r *cases.Recorder) { r.Check("", "x", good) },
	} {
		if c := record(t, t.Context(), body); c.Verdict != report.Inconclusive {
			t.Errorf("%s: %s: %s", name, c.Verdict, verdicts(c))
		}
	}
}

func TestOverrideRecordsEvidenceAfterABrokenCheck(t *testing.T) {
	c := record(t, t.Context(), func(r *cases.Recorder) {
		r.Check("", "a", func() cases.Finding { return cases.Unclear("", "seen", "next") })
		r.Override("created", "c", bad())
	})
	if c.Verdict != report.Fail || verdicts(c) != "a: inconclusive, created b: not reached, created c: fail, d: not reached" {
		t.Errorf("%s: %s", c.Verdict, verdicts(c))
	}
	for _, check := range c.Checks {
		if check.Broke() && check.Expected == "" {
			t.Errorf("%s broke, and nothing says what was expected", check.FullName())
		}
	}
}

// What fails once the case's time is over is not the subject's doing.
func TestTimeThatIsOverMakesAFailureInconclusive(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := record(t, ctx, func(r *cases.Recorder) {
		r.Check("", "a", func() cases.Finding { cancel(); return good() })
		r.Check("created", "b", func() cases.Finding { t.Error("the check was made"); return bad() })
	})
	if verdicts(c) != "a: pass, created b: inconclusive, created c: not reached, d: not reached" {
		t.Error(verdicts(c))
	}
	ctx, cancel = context.WithCancel(t.Context())
	c = record(t, ctx, func(r *cases.Recorder) { r.Check("", "a", func() cases.Finding { cancel(); return bad() }) })
	if c.Checks[0].Verdict != report.Inconclusive || c.Checks[0].Seen != "the run was interrupted" {
		t.Errorf("%+v", c.Checks[0])
	}
}

func TestEveryCleanUpRunsLastFirstWhateverHappened(t *testing.T) {
	scratch := t.TempDir()
	env := cases.Env{RunID: "run", Scratch: scratch, Emit: func(report.Event) {}}
	ctx, cancel := context.WithCancel(t.Context())
	var order []string
	step := func(name string, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			if ctx.Err() != nil {
				t.Errorf("%s has the context of the case, which is over", name)
			}
			order = append(order, name)
			return err
		}
	}
	c := env.Case(ctx, plan, func(_ context.Context, _ *cases.Recorder, dir string, c *cases.Cleanup) {
		if err := os.WriteFile(filepath.Join(dir, "left"), nil, 0o600); err != nil {
			t.Error(err)
		}
		c.Add("first", step("first", nil))
		c.Add("second", step("second", errors.New("stuck")))
		c.Add("third", func(context.Context) error { order = append(order, "third"); panic("in a clean-up") })
		cancel()
		panic("in the case")
	})
	if got := strings.Join(order, " "); got != "third second first" {
		t.Errorf("the clean-ups ran as %q", got)
	}
	all := strings.Join(c.Problems, "\n")
	for _, want := range []string{"in the case", "second: stuck", "third", "in a clean-up"} {
		if !strings.Contains(all, want) {
			t.Errorf("the problems lack %q: %q", want, c.Problems)
		}
	}
	if c.Verdict != report.Inconclusive {
		t.Errorf("the verdict is %s", c.Verdict)
	}
	if left, _ := os.ReadDir(scratch); len(left) != 0 {
		t.Errorf("left in the scratch folder: %v", left)
	}
}

// graph is a plan in which c stands on a, d on b and c, e on none, and f on all.
var graph = catalogue.Case{
	Scenario: "s", Provider: "p", Name: "g", Weight: 1,
	Checks: []catalogue.Check{
		{Name: "a", Sentence: "A holds.", Stands: catalogue.On()},
		{Name: "b", Sentence: "B holds.", Stands: catalogue.On()},
		{Name: "c", Sentence: "C holds.", Stands: catalogue.On("a")},
		{Name: "d", Sentence: "D holds.", Stands: catalogue.On("b", "c")},
		{Name: "e", Sentence: "E holds.", Stands: catalogue.On()},
		{Name: "f", Sentence: "F holds."},
	},
}

// A check that broke takes with it what stands on it, directly or through others, and nothing else.
func TestOnlyWhatStandsOnABrokenCheckIsNotReached(t *testing.T) {
	for broken, want := range map[string]string{
		"":   "a: pass, b: pass, c: pass, d: pass, e: pass, f: pass",
		"a":  "a: fail, b: pass, c: not reached, d: not reached, e: pass, f: not reached",
		"b":  "a: pass, b: fail, c: pass, d: not reached, e: pass, f: not reached",
		"c":  "a: pass, b: pass, c: fail, d: not reached, e: pass, f: not reached",
		"e":  "a: pass, b: pass, c: pass, d: pass, e: fail, f: not reached",
		"be": "a: pass, b: fail, c: pass, d: not reached, e: fail, f: not reached",
	} {
		r := cases.NewRecorder(t.Context(), graph, "run", func(report.Event) {})
		for _, check := range graph.Checks {
			passed := r.Check("", check.Name, func() cases.Finding {
				if strings.Contains(broken, check.Name) {
					return bad()
				}
				return good()
			})
			if passed != strings.Contains(want, check.Name+": pass") {
				t.Errorf("broken %q: the check %s says %t", broken, check.Name, passed)
			}
		}
		c := r.Finish()
		if verdicts(c) != want || len(c.Problems) > 0 || (c.Verdict == report.Pass) != (broken == "") {
			t.Errorf("broken %q: %s: %s, %q; want %s", broken, c.Verdict, verdicts(c), c.Problems, want)
		}
		rep := report.Report{Head: report.Head{RunID: "run"}, Selected: []string{graph.ID()}, Cases: []report.Case{c}}
		if problems := catalogue.Verify([]catalogue.Case{graph}, rep); len(problems) > 0 {
			t.Errorf("broken %q: the catalogue finds %q", broken, problems)
		}
	}
}

// After a break too, the checks that can be made must be: leaving one out is no pass, and no silent
// "not reached".
func TestLeavingOutACheckThatCanBeMadeIsAProblem(t *testing.T) {
	for name, made := range map[string]string{"in the middle": "abe", "at the end": "abc", "another order": "abec"} {
		r := cases.NewRecorder(t.Context(), graph, "run", func(report.Event) {})
		for _, check := range strings.Split(made, "") {
			r.Check("", check, func() cases.Finding {
				if check == "b" {
					return bad()
				}
				return good()
			})
		}
		if c := r.Finish(); len(c.Problems) != 1 {
			t.Errorf("%s: %s, %q", name, verdicts(c), c.Problems)
		}
	}
}
