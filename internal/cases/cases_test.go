package cases_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/report"
)

// runCase runs a case in an empty scratch folder.
func runCase(t *testing.T, ctx context.Context, body func(context.Context, *cases.Recorder, string, *cases.Cleanup)) report.Case {
	t.Helper()
	env := cases.Env{RunID: "run", Scratch: t.TempDir(), Emit: func(report.Event) {}}
	c := env.Case(ctx, plan, body)
	if left, err := os.ReadDir(env.Scratch); err != nil || len(left) != 0 {
		t.Errorf("the case left %v, %v", left, err)
	}
	return c
}

func want(t *testing.T, c report.Case, verdict report.Verdict, checks string, problems ...string) {
	t.Helper()
	if c.Verdict != verdict || verdicts(c) != checks {
		t.Errorf("%s: %s; want %s: %s", c.Verdict, verdicts(c), verdict, checks)
	}
	all := strings.Join(c.Problems, "\n")
	for _, p := range problems {
		if !strings.Contains(all, p) {
			t.Errorf("the problems lack %q: %q", p, c.Problems)
		}
	}
	if len(problems) == 0 && all != "" {
		t.Errorf("the problems are %q", c.Problems)
	}
}

func all(r *cases.Recorder) {
	for _, k := range plan.Checks {
		r.Check(k.Phase, k.Name, good)
	}
}

const allPass = "a: pass, created b: pass, created c: pass, d: pass"

func TestAPanicInACheckIsThatChecksAndNotAPass(t *testing.T) {
	c := record(t, t.Context(), func(r *cases.Recorder) {
		r.Check("", "a", good)
		r.Check("created", "b", func() cases.Finding { panic("in a check") })
		r.Check("created", "c", good)
	})
	want(t, c, report.Inconclusive, "a: pass, created b: inconclusive, created c: not reached, d: not reached")
	if !strings.Contains(c.Checks[1].Seen, "in a check") {
		t.Errorf("seen is %q", c.Checks[1].Seen)
	}
}

func TestAPanicAfterTheLastCheckIsAProblem(t *testing.T) {
	c := runCase(t, t.Context(), func(_ context.Context, r *cases.Recorder, _ string, _ *cases.Cleanup) { all(r); panic("at the end") })
	want(t, c, report.Inconclusive, allPass, "at the end")
}

func TestACheckBeyondThePlanIsAProblem(t *testing.T) {
	c := record(t, t.Context(), func(r *cases.Recorder) { all(r); r.Check("", "e", good) })
	want(t, c, report.Inconclusive, allPass, "e")
}

func TestTheCasesOwnDeadlineIsNamed(t *testing.T) {
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	c := record(t, past, func(r *cases.Recorder) { r.Check("", "a", good) })
	want(t, c, report.Inconclusive, "a: inconclusive, created b: not reached, created c: not reached, d: not reached")
	if !strings.Contains(c.Checks[0].Seen, "deadline of 30m0s") {
		t.Errorf("seen is %q", c.Checks[0].Seen)
	}
}

func TestOverrideOfWhatIsNotAheadIsAProblem(t *testing.T) {
	c := record(t, t.Context(), func(r *cases.Recorder) {
		r.Check("", "a", good)
		r.Override("", "a", bad())
		r.Override("created", "e", bad())
	})
	want(t, c, report.Inconclusive, "a: pass, created b: not reached, created c: not reached, d: not reached", "check a", "check created e")
}

func TestACleanUpThatFailsSpoilsAPassAndLeavesAFailureOne(t *testing.T) {
	stuck := func(context.Context) error { return errors.New("stuck") }
	c := runCase(t, t.Context(), func(_ context.Context, r *cases.Recorder, _ string, c *cases.Cleanup) { c.Add("it", stuck); all(r) })
	want(t, c, report.Inconclusive, allPass, "clean-up: it: stuck")
	c = runCase(t, t.Context(), func(_ context.Context, r *cases.Recorder, _ string, c *cases.Cleanup) {
		c.Add("it", stuck)
		r.Check("", "a", bad)
	})
	want(t, c, report.Fail, "a: fail, created b: not reached, created c: not reached, d: not reached", "clean-up: it: stuck")
}

func TestEveryCleanUpHasADeadline(t *testing.T) {
	c := runCase(t, t.Context(), func(_ context.Context, r *cases.Recorder, _ string, c *cases.Cleanup) {
		c.Add("it", func(ctx context.Context) error {
			if _, bounded := ctx.Deadline(); !bounded {
				return errors.New("without a deadline")
			}
			return nil
		})
		all(r)
	})
	want(t, c, report.Pass, allPass)
}

func TestACaseWithoutAFolderSaysSo(t *testing.T) {
	env := cases.Env{RunID: "run", Scratch: filepath.Join(t.TempDir(), "missing"), Emit: func(report.Event) {}}
	c := env.Case(t.Context(), plan, func(context.Context, *cases.Recorder, string, *cases.Cleanup) { t.Error("the body ran") })
	want(t, c, report.Inconclusive, "a: not reached, created b: not reached, created c: not reached, d: not reached", "make the case's folder")
}

func TestEventsFollowACase(t *testing.T) {
	var kinds []string
	r := cases.NewRecorder(t.Context(), plan, "run", func(e report.Event) {
		if e.Case != plan.ID() || e.Time.IsZero() {
			t.Errorf("the event %+v", e)
		}
		kinds = append(kinds, string(e.Kind))
	})
	r.Check("", "a", good)
	r.Check("created", "b", bad)
	r.Check("created", "c", good)
	r.Finish()
	if got := strings.Join(kinds, " "); got != "case-started check-started check-done check-started check-done case-done" {
		t.Errorf("the events are %s", got)
	}
}

func TestOperationsAddUp(t *testing.T) {
	result := record(t, t.Context(), func(r *cases.Recorder) {
		done := make(chan bool)
		for range 4 {
			go func() { r.Operation("msb exec", time.Second); done <- true }()
		}
		for range 4 {
			<-done
		}
		r.Timed("upload")()
		r.Observe("created", "policy", "%d%%", 5)
	})
	if o := result.Operations; len(o) != 2 || o[0] != (report.Operation{Name: "msb exec", Count: 4, Elapsed: 4 * time.Second}) || o[1].Name != "upload" {
		t.Errorf("the operations are %+v", o)
	}
	if o := result.Observations; len(o) != 1 || o[0] != (report.Observation{Phase: "created", Name: "policy", Value: "5%"}) {
		t.Errorf("the observations are %+v", o)
	}
}

// What a case measured travels with its result, as all else of it does.
func TestMeasurementsTravelWithTheResult(t *testing.T) {
	want := report.Performance{FreshUp: 3 * time.Second, ReusedUp: time.Second, WarmProbes: []time.Duration{3, 1, 2}}
	var last []byte
	r := cases.NewRecorder(t.Context(), plan, "r1", func(e report.Event) {
		var err error
		if last, err = json.Marshal(e); err != nil {
			t.Error(err)
		}
	})
	r.Measured(want)
	r.Finish()
	var e report.Event
	if err := json.Unmarshal(last, &e); err != nil {
		t.Fatal(err)
	}
	if e.Kind != report.CaseDone || e.Result.Performance == nil || !reflect.DeepEqual(*e.Result.Performance, want) {
		t.Errorf("expected the measurements %+v in the result, got %s", want, last)
	}
}

func TestNonces(t *testing.T) {
	a, b := cases.Nonce("host"), cases.Nonce("host")
	if a == b || !strings.HasPrefix(a, "host-") || strings.Trim(a, "abcdefghijklmnopqrstuvwxyz234567-") != "" {
		t.Errorf("the nonces are %s and %s", a, b)
	}
}

// Patience multiplies every deadline; a lab that is slower than they are made for gets as much
// more, and one that is faster no less.
func TestDeadlinesFollowPatienceAndTheLabsSpeed(t *testing.T) {
	for _, test := range []struct {
		patience float64
		unit     time.Duration
		want     time.Duration
	}{
		{0, 0, time.Minute},
		{1, cases.Nominal / 10, time.Minute},
		{3, 0, 3 * time.Minute},
		{1, 2 * cases.Nominal, 2 * time.Minute},
		{2, 3 * cases.Nominal, 6 * time.Minute},
	} {
		e := cases.Env{Tools: cases.Tools{Patience: test.patience}, Unit: test.unit}
		if got := e.Within(time.Minute); got != test.want {
			t.Errorf("patience %g and a unit of %s give %s, want %s", test.patience, test.unit, got, test.want)
		}
	}
}

// The case's own deadline and those of its clean-ups are multiplied too, and the finding names the
// one that it was.
func TestACasesOwnDeadlinesFollowPatience(t *testing.T) {
	env := cases.Env{RunID: "run", Scratch: t.TempDir(), Emit: func(report.Event) {}, Tools: cases.Tools{Patience: 4}}
	atLeast := func(ctx context.Context, what string, d time.Duration) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) < d {
			t.Errorf("%s ends at %s", what, deadline)
		}
	}
	env.Case(t.Context(), plan, func(ctx context.Context, _ *cases.Recorder, _ string, c *cases.Cleanup) {
		atLeast(ctx, "the case", 3*cases.Deadline)
		c.Add("it", func(ctx context.Context) error { atLeast(ctx, "its clean-up", 4*time.Minute); return nil })
	})
	env.Tools.Patience = 1e-9
	c := env.Case(t.Context(), plan, func(ctx context.Context, r *cases.Recorder, _ string, _ *cases.Cleanup) {
		<-ctx.Done()
		r.Check("", "a", good)
	})
	if !strings.Contains(c.Checks[0].Seen, "deadline of 1.8µs passed") {
		t.Errorf("seen is %q", c.Checks[0].Seen)
	}
}
