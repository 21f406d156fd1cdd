// Package cases is what all cases share: what they run with, how they record their checks, and how they clean up.
package cases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// Recorder records one case's checks against the catalogue's plan of it, and tells of each as it comes. After a check that broke,
// the rest is not reached. A Recorder is for one goroutine, save Operation.
type Recorder struct {
	ctx    context.Context
	plan   catalogue.Case
	emit   func(report.Event)
	result report.Case
	next   int  // the planned check that comes next
	broken bool // a check did not pass

	mu         sync.Mutex
	operations []report.Operation
	commands   int   // how many of the subject's have ended
	ended      []int // the numbers of those that ended since the last check
}

// NewRecorder starts the record of a case. Its context is the case's: once it is done, no check can pass any more.
func NewRecorder(ctx context.Context, plan catalogue.Case, runID string, emit func(report.Event)) *Recorder {
	r := &Recorder{ctx: ctx, plan: plan, emit: emit, result: report.Case{ID: plan.ID(), RunID: runID, Started: time.Now()}}
	r.event(report.Event{Kind: report.CaseStarted})
	return r
}

// Broken tells whether a check did not pass, so that the checks that follow are not reached.
func (r *Recorder) Broken() bool { return r.broken }

// Check makes the planned check that comes next and tells whether the case goes on. It does nothing after a check that broke. A
// check that is not the next one of the plan is a fault of this program.
func (r *Recorder) Check(phase, name string, check func() Finding) bool {
	if r.broken {
		return false
	}
	if r.next >= len(r.plan.Checks) || r.plan.Checks[r.next].Phase != phase || r.plan.Checks[r.next].Name != name {
		r.Problem("the case made the check %s, and its plan has another one there", report.Check{Phase: phase, Name: name}.FullName())
		r.broken = true
		return false
	}
	planned := r.plan.Checks[r.next]
	r.next++
	c := report.Check{Phase: phase, Name: name}
	r.event(report.Event{Kind: report.CheckStarted, Check: &report.Check{Phase: phase, Name: name}})
	started := time.Now()
	r.took() // what ended between two checks is neither's
	f := r.find(check)
	c.Commands = r.took()
	c.Verdict, c.Seen, c.Next, c.Elapsed = f.Verdict, f.Seen, f.Next, time.Since(started)
	c.Expected = cmp.Or(f.Expected, planned.Sentence)
	r.broken = f.Verdict != report.Pass
	r.done(c)
	return !r.broken
}

// Override records that the subject broke the promise of a planned check, although an earlier check broke: for evidence that stands by
// itself, such as a receipt of the target's under deny. The checks between are not reached.
func (r *Recorder) Override(phase, name string, f Finding) {
	for i := r.next; i < len(r.plan.Checks); i++ {
		if p := r.plan.Checks[i]; p.Phase == phase && p.Name == name {
			r.skipTo(i)
			r.next = i + 1
			r.broken = true
			r.done(report.Check{Phase: phase, Name: name, Verdict: f.Verdict, Expected: cmp.Or(f.Expected, p.Sentence), Seen: f.Seen, Next: f.Next})
			return
		}
	}
	r.Problem("the case overrides the check %s, which its plan does not have ahead", report.Check{Phase: phase, Name: name}.FullName())
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
		return Unclear("", fmt.Sprintf("the case's deadline of %s passed", Deadline), "see which check took the time, and run it again on a machine that is less busy")
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

// Command adds a command of the subject's, which has ended, to the case's transcript. It may be called
// from any goroutine.
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

// Finish ends the record: what was not reached is named so, and the verdict follows from the checks.
func (r *Recorder) Finish() report.Case {
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
