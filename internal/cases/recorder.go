// Package cases is what all cases share: what they run with, how they record their checks, and how they clean up.
package cases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sourcegraph/conc/panics"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// Finding is what a check found.
type Finding struct {
	Verdict  report.Verdict
	Expected string
	Seen     string
	Next     string // what to do about it; empty when it passed

	Deviations []string // what the adapter reads otherwise than the contract has it, and the check stands on
}

// Passed says that a check was seen to hold.
func Passed(seen string) Finding { return Finding{Verdict: report.Pass, Seen: seen} }

// Broken says that the subject broke the promise that a check is about.
func Broken(expected, seen, next string) Finding {
	return Finding{Verdict: report.Fail, Expected: expected, Seen: seen, Next: next}
}

// Unclear says that the test could not tell.
func Unclear(expected, seen, next string) Finding {
	return Finding{Verdict: report.Inconclusive, Expected: expected, Seen: seen, Next: next}
}

// Recorder records one case's checks against the catalogue's plan of it, and tells of each as it
// comes. After a check that broke, those that stand on it are not reached; where the plan does not
// say on what, that is the rest. A Recorder is for one goroutine, save Operation.
type Recorder struct {
	ctx    context.Context
	plan   catalogue.Case
	emit   func(report.Event)
	result report.Case
	next   int  // the planned check that comes next; those before it are in the result
	broken bool // a check did not pass
	lost   bool // the case left its plan: nothing that it does is a check any more

	deadline time.Duration // the case's own

	mu         sync.Mutex
	operations []report.Operation
	commands   int   // how many of the subject's have ended
	ended      []int // the numbers of those that ended since the last check
}

// NewRecorder starts the record of a case. Its context is the case's: once it is done, no check can pass any more.
func NewRecorder(ctx context.Context, plan catalogue.Case, runID string, emit func(report.Event)) *Recorder {
	r := &Recorder{ctx: ctx, plan: plan, emit: emit, deadline: Deadline, result: report.Case{ID: plan.ID(), RunID: runID, Started: time.Now()}}
	r.event(report.Event{Kind: report.CaseStarted})
	return r
}

// Broken tells whether a check did not pass, so that the checks that stand on it are not reached.
func (r *Recorder) Broken() bool { return r.broken }

// Check makes the planned check that comes next and tells whether it passed. It does nothing after
// a check that broke, if this one stands on it, directly or through others. A check that is not the
// next one of the plan that can be made is a fault of this program.
func (r *Recorder) Check(phase, name string, check func() Finding) bool {
	if r.lost {
		return false
	}
	at := r.ahead(phase, name)
	if at < 0 || slices.ContainsFunc(r.upTo(at), func(i int) bool { return !r.unreachable(i) }) {
		r.Problem("the case made the check %s, and its plan has another one there", report.Check{Phase: phase, Name: name}.FullName())
		r.broken, r.lost = true, true
		return false
	}
	if r.unreachable(at) {
		return false
	}
	r.skipTo(at)
	planned := r.plan.Checks[r.next]
	r.next++
	c := report.Check{Phase: phase, Name: name}
	r.event(report.Event{Kind: report.CheckStarted, Check: &report.Check{Phase: phase, Name: name}})
	started := time.Now()
	r.took() // what ended between two checks is neither's
	f := r.find(check)
	c.Commands, c.Deviations = r.took(), f.Deviations
	c.Verdict, c.Seen, c.Next, c.Elapsed = f.Verdict, f.Seen, f.Next, time.Since(started)
	c.Expected = cmp.Or(f.Expected, planned.Sentence)
	r.broken = r.broken || f.Verdict != report.Pass
	r.done(c)
	return f.Verdict == report.Pass
}

// ahead gives the place of a planned check that was not come to yet; -1 if there is none.
func (r *Recorder) ahead(phase, name string) int {
	for i := r.next; i < len(r.plan.Checks); i++ {
		if p := r.plan.Checks[i]; p.Phase == phase && p.Name == name {
			return i
		}
	}
	return -1
}

// upTo gives the places of the checks that were not come to yet and are before one.
func (r *Recorder) upTo(end int) (places []int) {
	for i := r.next; i < end; i++ {
		places = append(places, i)
	}
	return places
}

// unreachable tells whether a planned check stands on one that did not pass, or was not come to.
func (r *Recorder) unreachable(i int) bool {
	return slices.ContainsFunc(r.plan.StandsOn(i), func(on int) bool {
		return on < 0 || on >= r.next || r.result.Checks[on].Verdict != report.Pass
	})
}

// Override records that the subject broke the promise of a planned check, although an earlier check
// broke: for evidence that stands by itself, such as a receipt of the target's under deny. The plan
// says of which checks that can be. The checks between are not reached.
func (r *Recorder) Override(phase, name string, f Finding) {
	at := r.ahead(phase, name)
	if r.lost || at < 0 || !r.plan.Checks[at].Alone {
		r.Problem("the case overrides the check %s, which its plan does not have ahead as one that stands alone", report.Check{Phase: phase, Name: name}.FullName())
		return
	}
	r.skipTo(at)
	r.next++
	r.broken = true
	r.done(report.Check{Phase: phase, Name: name, Verdict: f.Verdict, Expected: cmp.Or(f.Expected, r.plan.Checks[at].Sentence), Seen: f.Seen, Next: f.Next})
}

func (r *Recorder) find(check func() Finding) Finding {
	if err := r.ctx.Err(); err != nil {
		return r.over(err)
	}
	var f Finding
	if p := panics.Try(func() { f = check() }); p != nil {
		return Unclear("", "the check panicked: "+p.String(), "this is a fault of Parity's own: report it")
	}
	// What a check sees once the case's time is over is the time's doing, not the subject's.
	if err := r.ctx.Err(); err != nil && f.Verdict != report.Pass {
		return r.over(err)
	}
	return f
}

func (r *Recorder) over(err error) Finding {
	if errors.Is(err, context.DeadlineExceeded) {
		return Unclear("", fmt.Sprintf("the case's deadline of %s passed", r.deadline), "see which check took the time, and run it again on a machine that is less busy")
	}
	return Unclear("", "the run was interrupted", "run it again")
}

func (r *Recorder) skipTo(i int) {
	for ; r.next < i; r.next++ {
		p := r.plan.Checks[r.next]
		r.done(report.Check{Phase: p.Phase, Name: p.Name, Verdict: report.NotReached})
	}
}

func (r *Recorder) done(c report.Check) {
	r.result.Checks = append(r.result.Checks, c)
	if c.Verdict != report.NotReached {
		r.event(report.Event{Kind: report.CheckDone, Check: &c})
	}
}

// Observe records a normalised fact.
func (r *Recorder) Observe(phase, name, format string, args ...any) {
	r.result.Observations = append(r.result.Observations, report.Observation{Phase: phase, Name: name, Value: fmt.Sprintf(format, args...)})
}

// Measured records what the case measured.
func (r *Recorder) Measured(p report.Performance) { r.result.Performance = &p }

// Problem records that something about the case itself is wrong, such as a clean-up that failed.
func (r *Recorder) Problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.result.Problems = append(r.result.Problems, text)
	r.event(report.Event{Kind: report.Note, Text: text})
}

// Operation adds to what the case spent its time on. It may be called from any goroutine.
func (r *Recorder) Operation(name string, elapsed time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.operations {
		if r.operations[i].Name == name {
			r.operations[i].Count++
			r.operations[i].Elapsed += elapsed
			return
		}
	}
	r.operations = append(r.operations, report.Operation{Name: name, Count: 1, Elapsed: elapsed})
}

// Command adds a command of the subject's, which has ended, to the case's transcript. It may be
// called from any goroutine.
func (r *Recorder) Command(c report.Command) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commands++
	c.Number = r.commands
	r.ended = append(r.ended, c.Number)
	r.event(report.Event{Kind: report.CommandDone, Command: &c})
}

// took returns the numbers of the commands that ended since it was called last.
func (r *Recorder) took() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := r.ended
	r.ended = nil
	return ended
}

// Timed starts to measure an operation; what it gives ends the measurement.
func (r *Recorder) Timed(name string) (done func()) {
	started := time.Now()
	return func() { r.Operation(name, time.Since(started)) }
}

// Finish ends the record: what was not reached is named so, and the verdict follows from the
// checks. That a check was left out that could be made is a fault of this program.
func (r *Recorder) Finish() report.Case {
	for _, at := range r.upTo(len(r.plan.Checks)) {
		if p := r.plan.Checks[at]; !r.unreachable(at) && len(r.result.Problems) == 0 {
			r.Problem("the case did not make the check %s, and all that it stands on passed", report.Check{Phase: p.Phase, Name: p.Name}.FullName())
		}
	}
	r.skipTo(len(r.plan.Checks))
	r.mu.Lock()
	r.result.Operations = r.operations
	r.mu.Unlock()
	r.result.Elapsed = time.Since(r.result.Started)
	r.result.Verdict = r.result.Judge()
	r.event(report.Event{Kind: report.CaseDone, Result: &r.result})
	return r.result
}

func (r *Recorder) event(e report.Event) {
	e.Time, e.Case = time.Now(), r.plan.ID()
	r.emit(e)
}
