package progress

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
)

// selected is a selection of two small cases.
func selected() []catalogue.Case {
	return []catalogue.Case{
		{Scenario: "egress", Provider: "builtin", Name: "public", Checks: []catalogue.Check{{Name: "one", Sentence: "One holds."}}},
		{Scenario: "egress", Provider: "builtin", Name: "deny", Checks: []catalogue.Check{
			{Phase: "created", Name: "one", Sentence: "One holds."},
			{Phase: "created", Name: "two", Sentence: "Two holds."},
			{Phase: "restarted", Name: "one", Sentence: "One holds again."},
		}},
	}
}

func event(kind report.EventKind, c *report.Check) report.Event {
	return report.Event{Time: start, Kind: kind, Case: denyID, Check: c}
}

func done(c report.Case) report.Event {
	return report.Event{Time: start.Add(time.Minute), Kind: report.CaseDone, Case: c.ID, Result: &c}
}

// collect gives the results of a lab that told these events and then died for the reason "boom".
func collect(events ...report.Event) map[string]report.Case {
	c := NewCollector(selected(), "r1")
	for _, e := range events {
		c.Event(e)
	}
	cases := map[string]report.Case{}
	for _, result := range c.Cases("boom") {
		cases[result.ID] = result
	}
	return cases
}

func verdicts(c report.Case) string {
	var b strings.Builder
	for _, check := range c.Checks {
		fmt.Fprintf(&b, "%s: %s; ", check.FullName(), check.Verdict)
	}
	return b.String()
}

func TestCasesThatDidNotFinish(t *testing.T) {
	passed := func(phase, name string) report.Event {
		return event(report.CheckDone, check(phase, name, report.Pass))
	}
	began := event(report.CaseStarted, nil)
	inFlight := event(report.CheckStarted, check("created", "two", ""))
	for what, test := range map[string]struct {
		events  []report.Event
		checks  string
		problem string
		verdict report.Verdict
	}{
		"never started": {nil,
			"created one: not reached; created two: not reached; restarted one: not reached; ",
			"the case never started: boom", report.Inconclusive},
		"died at its start": {[]report.Event{began},
			"created one: not reached; created two: not reached; restarted one: not reached; ",
			"the case did not finish: boom", report.Inconclusive},
		"died during a check": {[]report.Event{began, passed("created", "one"), inFlight},
			"created one: pass; created two: inconclusive; restarted one: not reached; ",
			"the case did not finish: boom", report.Inconclusive},
		"died between checks": {[]report.Event{began, passed("created", "one"), inFlight, passed("created", "two")},
			"created one: pass; created two: pass; restarted one: not reached; ",
			"the case did not finish: boom", report.Inconclusive},
		"died after its last check": {[]report.Event{began, passed("created", "one"), passed("created", "two"), passed("restarted", "one")},
			"created one: pass; created two: pass; restarted one: pass; ",
			"the case did not finish: boom", report.Inconclusive},
		"died after a fail": {[]report.Event{began, event(report.CheckDone, check("created", "one", report.Fail))},
			"created one: fail; created two: not reached; restarted one: not reached; ",
			"the case did not finish: boom", report.Fail},
		"a check that was not planned, and one twice": {[]report.Event{began, passed("", "x"), passed("created", "one"), passed("created", "one")},
			"created one: pass; created two: not reached; restarted one: not reached; x: pass; created one: pass; ",
			"the case did not finish: boom", report.Inconclusive},
	} {
		got := collect(test.events...)[denyID]
		if verdicts(got) != test.checks || !reflect.DeepEqual(got.Problems, []string{test.problem}) || got.Verdict != test.verdict {
			t.Errorf("%s: %q, %q, %q\nwant %q, %q, %q", what, verdicts(got), got.Problems, got.Verdict, test.checks, test.problem, test.verdict)
		}
		if got.RunID != "r1" {
			t.Errorf("%s: the run ID is %q", what, got.RunID)
		}
	}
}

func TestTheCheckInFlightSaysWhy(t *testing.T) {
	got := collect(event(report.CheckStarted, check("created", "two", "")))[denyID].Checks[1]
	if got.Expected != "Two holds." || !strings.Contains(got.Seen, "boom") || got.Next == "" {
		t.Errorf("the check in flight says %+v", got)
	}
}

// What a failed lab left runs again: neither what was done, nor what had failed before, unless the
// lab was wrong from its start.
func TestWhatAFailedLabLeft(t *testing.T) {
	began := event(report.CaseStarted, nil)
	failed := event(report.CheckDone, check("created", "one", report.Fail))
	finished := done(report.Case{ID: publicID, RunID: "r1", Verdict: report.Pass})
	for name, test := range map[string]struct {
		events    []report.Event
		left, all []string
	}{
		"nothing began":       {nil, []string{publicID, denyID}, []string{publicID, denyID}},
		"one is done":         {[]report.Event{finished, began}, []string{denyID}, []string{denyID}},
		"one had failed":      {[]report.Event{finished, began, failed}, nil, []string{denyID}},
		"one was not reached": {[]report.Event{began, failed}, []string{publicID}, []string{publicID, denyID}},
	} {
		c := NewCollector(selected(), "r1")
		for _, e := range test.events {
			c.Event(e)
		}
		for _, all := range []bool{false, true} {
			want, got := test.left, []string(nil)
			if all {
				want = test.all
			}
			for _, plan := range c.Left(all) {
				got = append(got, plan.ID())
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, %t: %q, want %q", name, all, got, want)
			}
		}
	}
}

func TestFinishedCasesAreTakenAsTheyCame(t *testing.T) {
	finished := report.Case{ID: denyID, RunID: "r0", Verdict: report.Pass, Observations: []report.Observation{{Name: "o"}}}
	stranger := report.Case{ID: "egress/builtin/other", RunID: "r1"}
	c := NewCollector(selected(), "r1")
	head := &report.Head{KVM: "native"}
	c.Event(report.Event{Time: start, Kind: report.Started, Head: head})
	for _, e := range []report.Event{done(finished), done(stranger), done(finished)} {
		c.Event(e)
	}
	cases := c.Cases("boom")
	if len(cases) != 4 || !reflect.DeepEqual(cases[:3], []report.Case{finished, stranger, finished}) || cases[3].ID != publicID {
		t.Errorf("the results are %+v, want what came, strangers and doubles too, and the case that did not", cases)
	}
	if c.Head() != head {
		t.Errorf("the lab's head is %+v", c.Head())
	}
}

// A step that is killed leaves a report that is whole, names the check in flight, and is never a pass.
func TestAKilledStepLeavesAWholeReport(t *testing.T) {
	public := report.Case{ID: publicID, RunID: "r1", Verdict: report.Pass, Checks: []report.Check{{Name: "one", Verdict: report.Pass}}}
	script := "cat; kill -9 $$"
	input := encode(t, done(public)) + encode(t, event(report.CaseStarted, nil)) +
		encode(t, event(report.CheckDone, check("created", "one", report.Pass))) +
		encode(t, event(report.CheckStarted, check("created", "two", "")))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := proc.Run(ctx, proc.Cmd{Argv: []string{"sh", "-c", script}, Stdin: strings.NewReader(input)})
	if err == nil {
		t.Fatal("the step was not killed")
	}
	c := NewCollector(selected(), "r1")
	if err := Decode(bytes.NewReader(result.Stdout), c.Event, func(line string) { t.Errorf("not an event: %s", line) }); err != nil {
		t.Fatal(err)
	}
	r := report.Report{Head: report.Head{RunID: "r1"}, Selected: []string{publicID, denyID}, Cases: c.Cases(err.Error())}
	if problems := catalogue.Verify(selected(), r); len(problems) > 0 {
		t.Errorf("the report has problems: %q", problems)
	}
	r = report.Conclude(r)
	want := "INCONCLUSIVE: the test could not tell: egress/builtin/deny at created two (the step ended during this check: " +
		"sh -c 'cat; kill -9 $$' ended with code 137 (killed))"
	if r.Sentence() != want || r.ExitCode != 3 {
		t.Errorf("the run says\n  %s with exit code %d, want\n  %s with 3", r.Sentence(), r.ExitCode, want)
	}
}
