package progress

import (
	"slices"
	"strings"
	"time"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// Collector builds the results of one lab's cases from its events. It is for one goroutine.
type Collector struct {
	selected []catalogue.Case
	runID    string
	head     *report.Head
	bare     time.Duration
	done     []report.Case         // as the step gave them
	begun    map[string]*begunCase // by id; each case that has an event
	commands map[string][]report.Command
}

// begunCase is what the events before its end say of a case.
type begunCase struct {
	started, last time.Time
	checks        []report.Check
	begun         *report.Check // the last that started; in flight unless it is in checks
}

// NewCollector collects the results of the cases that were given to one lab. The run ID goes into the cases that the lab did
// not finish.
func NewCollector(selected []catalogue.Case, runID string) *Collector {
	return &Collector{selected: selected, runID: runID, begun: map[string]*begunCase{}, commands: map[string][]report.Command{}}
}

// Event takes the lab's next event.
func (c *Collector) Event(e report.Event) {
	if e.Kind == report.Started && e.Head != nil {
		c.head = e.Head
	}
	if e.BareCreate > 0 {
		c.bare = e.BareCreate
	}
	if e.Case == "" {
		return
	}
	b := c.begun[e.Case]
	if b == nil {
		b = &begunCase{started: e.Time}
		c.begun[e.Case] = b
	}
	b.last = e.Time
	switch {
	case e.Kind == report.CheckStarted && e.Check != nil:
		b.begun = e.Check
	case e.Kind == report.CheckDone && e.Check != nil:
		b.checks = append(b.checks, *e.Check)
	case e.Kind == report.CommandDone && e.Command != nil:
		c.commands[e.Case] = append(c.commands[e.Case], *e.Command)
	case e.Kind == report.CaseDone && e.Result != nil:
		c.done = append(c.done, *e.Result)
	}
}

// Transcripts returns the subject's commands that have ended, by the case's id.
func (c *Collector) Transcripts() map[string][]report.Command { return c.commands }

// Head is what the lab's step said of the place where it ran; nil when it said nothing.
func (c *Collector) Head() *report.Head { return c.head }

// BareCreate is what the lab's step measured of the lab's speed; 0 when it did not.
func (c *Collector) BareCreate() time.Duration { return c.bare }

// Cases gives the results: what the step said of each case that it finished, and for each selected case that it did not, what
// its events say, with reason as the explanation: the check in flight is inconclusive, those after it are not reached. Cases
// that were not selected and results that came twice are in it too, so that catalogue.Verify can refuse them.
func (c *Collector) Cases(reason string) []report.Case {
	cases := slices.Clone(c.done)
	for _, plan := range c.selected {
		if !slices.ContainsFunc(c.done, func(r report.Case) bool { return r.ID == plan.ID() }) {
			cases = append(cases, c.unfinished(plan, reason))
		}
	}
	return cases
}

// Left returns the selected cases that the lab did not finish and whose verdict is not known yet.
// What failed before the lab did is a fail, unless all says that the lab was wrong from its start.
func (c *Collector) Left(all bool) (left []catalogue.Case) {
	for _, plan := range c.selected {
		begun := c.begun[plan.ID()]
		failed := begun != nil && slices.ContainsFunc(begun.checks, func(k report.Check) bool { return k.Verdict == report.Fail })
		done := slices.ContainsFunc(c.done, func(r report.Case) bool { return r.ID == plan.ID() })
		if !done && (all || !failed) {
			left = append(left, plan)
		}
	}
	return left
}

const cut = "the step ended during this check: "

// Cut tells whether a check was under way when its lab's step ended.
func Cut(c report.Check) bool {
	return c.Verdict == report.Inconclusive && strings.HasPrefix(c.Seen, cut)
}

// unfinished is the result of a case whose end was not seen. It is never a pass: it has a problem.
func (c *Collector) unfinished(plan catalogue.Case, reason string) report.Case {
	result := report.Case{ID: plan.ID(), RunID: c.runID}
	b := c.begun[plan.ID()]
	if b == nil {
		b = &begunCase{}
		result.Problems = []string{"the case never started: " + reason}
	} else {
		result.Started, result.Elapsed = b.started, b.last.Sub(b.started)
		result.Problems = []string{"the case did not finish: " + reason}
	}
	rest := slices.Clone(b.checks)
	for _, planned := range plan.Checks {
		same := func(k report.Check) bool { return k.Phase == planned.Phase && k.Name == planned.Name }
		check := report.Check{Phase: planned.Phase, Name: planned.Name, Verdict: report.NotReached}
		if i := slices.IndexFunc(rest, same); i >= 0 {
			check = rest[i]
			rest = slices.Delete(rest, i, i+1)
		} else if b.begun != nil && same(*b.begun) {
			check.Verdict = report.Inconclusive
			check.Expected = planned.Sentence
			check.Seen = cut + reason
			check.Next = "find out why the step ended, then run the case again"
		}
		result.Checks = append(result.Checks, check)
	}
	result.Checks = append(result.Checks, rest...)
	result.Verdict = result.Judge()
	return result
}
