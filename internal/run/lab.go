package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
	"dagger/parity/internal/step"
)

// labRun runs cases in a lab of their own, and once more in another one what a failed lab left.
type labRun struct {
	Options
	id       string // the run's
	name     string // the lab's; empty if it is the only one
	life     *labLife
	breaches *breaches
	again    <-chan struct{}
	progress *progress.Progress
}

// outcome is what came of one lab.
type outcome struct {
	cases   []report.Case
	lab     report.Lab
	head    *report.Head // nil when its step said nothing
	problem string
	ended   bool // by a breach of the contract
	visits  bool // its microVMs are on another machine

	failure error            // the emulated machine failed, and not what ran in it
	left    []catalogue.Case // what runs once more because of that

	transcripts map[string][]report.Command // by the case's id
}

// run runs the cases. What an emulated lab had not finished when it failed runs once more, in a new
// one: whatever became of those cases says nothing of the subject.
func (l labRun) run(mine []catalogue.Case) []outcome {
	out := l.attempt(mine, nil)
	if out.failure == nil || len(out.left) == 0 {
		return []outcome{out}
	}
	var ids []string
	for _, c := range out.left {
		ids = append(ids, c.ID())
	}
	l.progress.Note("%s failed: %v: a new one takes its place and runs %s", strings.TrimSpace("lab "+l.name), out.failure, strings.Join(ids, ", "))
	out.problem = ""
	out.cases = slices.DeleteFunc(out.cases, func(c report.Case) bool { return slices.Contains(ids, c.ID) })
	for _, id := range ids {
		delete(out.transcripts, id)
	}
	return []outcome{out, l.attempt(out.left, out.failure)}
}

// overdueError is the end of a lab in which a case did not come to its own end.
type overdueError struct {
	id  string
	had time.Duration
}

func (e overdueError) Error() string {
	return fmt.Sprintf("%s had not ended %s after its start, by the clock of this machine", e.id, e.had)
}

// attempt runs a step with the cases in one lab. before is why the lab failed whose place this one
// takes, if it takes one's.
func (l labRun) attempt(mine []catalogue.Case, before error) outcome {
	name := l.name
	if before != nil {
		name = strings.TrimSpace(name + " (new)")
	}
	collector := progress.NewCollector(mine, l.id)
	out := outcome{lab: report.Lab{Name: name}, visits: l.visits(mine[0])}
	for _, c := range mine {
		out.lab.Cases = append(out.lab.Cases, c.ID())
	}
	argv, err := l.step(out.lab.Cases)
	if err != nil {
		out.problem = fmt.Sprintf("the lab's setup could not be written: %v", err)
		out.cases = collector.Cases(out.problem)
		return out
	}
	ctx, end := context.WithCancelCause(l.life.ctx)
	defer end(nil)
	started := time.Now()
	stdout, events := io.Pipe()
	var words lastLines
	var following sync.WaitGroup
	following.Go(func() {
		overdue := overdue{end: end, patience: l.Tools.patient(l.Patience)}
		defer overdue.stop()
		err := progress.Decode(stdout, func(e report.Event) {
			collector.Event(e)
			overdue.event(e)
			l.progress.Event(l.name, e)
			if l.Watch != nil {
				l.Watch(e)
			}
			if e.Kind == report.CaseDone && e.Result != nil {
				l.breaches.done(*e.Result)
			}
		}, func(line string) { fmt.Fprintln(&words, line) })
		stdout.CloseWithError(err)
	})
	var noted sync.Mutex
	lo := l.options(argv, out.visits, before != nil)
	lo.Stdout, lo.Stderr = events, &words
	lo.Notes = func(text string) {
		noted.Lock()
		defer noted.Unlock()
		out.lab.Notes = append(out.lab.Notes, text)
		l.progress.Note("%s: %s", strings.TrimSpace("lab "+name), text)
	}
	res, began, err := start(ctx, l.again, lo)
	events.Close()
	following.Wait()

	noted.Lock()
	defer noted.Unlock()
	out.lab.Boot, out.lab.Total, out.lab.BareCreate, out.lab.Stalls = res.Boot, time.Since(started), collector.BareCreate(), res.Stalls
	out.head = collector.Head()
	late, overran := errors.AsType[overdueError](context.Cause(ctx))
	reason := ""
	switch {
	case l.life.ctx.Err() != nil:
		reason = fmt.Sprintf("the run was ended: %v", context.Cause(l.life.ctx))
	case overran:
		out.failure = late
	case err != nil && lo.KVM == lab.Emulated && began:
		out.failure = err
	case err != nil:
		reason = err.Error()
	case res.ExitCode != 0:
		reason = strings.TrimSpace(fmt.Sprintf("the step exited with code %d: %s", res.ExitCode, words.String()))
	}
	if out.failure != nil {
		reason = out.failure.Error()
		out.lab.Failed = reason
		if before != nil {
			reason = fmt.Sprintf("two labs failed one after the other: %v; %s", before, reason)
		}
		out.left = collector.Left(errors.Is(out.failure, lab.ErrClock))
	}
	if l.life.ctx.Err() != nil && res.Removed != "" {
		how := "its cases cleaned up after themselves"
		if err != nil {
			how = "its cases' own clean-up was cut short"
		}
		l.progress.Note("%s: %s; removed %s", strings.TrimSpace("lab "+name), how, res.Removed)
	}
	out.problem = reason
	broke, ended := errors.AsType[breachError](context.Cause(l.life.ctx))
	if ended {
		// The case that broke says what is wrong: the run itself is sound, and ended the others as it has to.
		reason, out.problem, out.ended = "it was ended: "+broke.Error(), "", true
	}
	if reason == "" {
		reason = "the step ended without a word about it"
	}
	out.transcripts = collector.Transcripts()
	out.cases = collector.Cases(reason)
	if errors.Is(out.failure, lab.ErrClock) {
		distrust(out.cases, out.left, reason)
	}
	if out.ended {
		out.cases = l.breaches.explain(l.life, out.cases, broke)
	}
	return out
}

// distrust makes inconclusive what failed in cases that a lab did not finish and whose clock was
// wrong: the deadlines there were others.
func distrust(results []report.Case, left []catalogue.Case, reason string) {
	for i, result := range results {
		if !slices.ContainsFunc(left, func(c catalogue.Case) bool { return c.ID() == result.ID }) {
			continue
		}
		for k, check := range result.Checks {
			if check.Verdict == report.Fail {
				check.Verdict, check.Seen = report.Inconclusive, strings.TrimPrefix(check.Seen+"; ", "; ")+reason
				result.Checks[k] = check
			}
		}
		results[i].Verdict = result.Judge()
	}
}

// step returns the command of the step that runs the cases.
func (l labRun) step(ids []string) ([]string, error) {
	return l.Tools.step(l.Folder, l.Patience, step.Setup{
		RunID: l.id, Cases: ids, Contracts: l.breaches.contracts(), Broken: l.breaches.broken(),
	})
}

// options are those of the lab.
func (l labRun) options(argv []string, visits, again bool) lab.Options {
	o := l.Lab
	o.KVM, o.Argv, o.Env, o.Dir = l.KVM.KVM, argv, append(os.Environ(), fault.Env+"="+string(l.Fault)), "/"
	if o.Fault = l.Fault; again && l.Fault == fault.LabDiesOnce {
		o.Fault = ""
	}
	if visits { // it needs no KVM here, and a way to the remote machine
		o.KVM, o.UserNet = lab.Native, true
	}
	o.Grace = Grace
	return o
}

// overdue holds the cases of a lab to their deadlines by this machine's clock: nothing that happens
// in a lab makes a run longer than the sum of them.
type overdue struct {
	end      context.CancelCauseFunc
	patience float64
	unit     time.Duration
	timer    *time.Timer
}

// event takes the lab's next event.
func (o *overdue) event(e report.Event) {
	o.unit = max(o.unit, e.BareCreate)
	switch e.Kind {
	case report.CaseStarted:
		o.stop()
		env := cases.Env{Unit: o.unit, Tools: cases.Tools{Patience: o.patience}}
		had := env.Within(cases.Deadline) + env.Within(cases.CleanUps)
		had += had / 10 // which the lab's clock may be off
		o.timer = time.AfterFunc(had, func() { o.end(overdueError{e.Case, had.Round(time.Second)}) })
	case report.CaseDone:
		o.stop()
	}
}

func (o *overdue) stop() {
	if o.timer != nil {
		o.timer.Stop()
	}
}

// start runs a lab. It tells whether anything of it began: another one would not begin either.
func start(ctx context.Context, again <-chan struct{}, o lab.Options) (r lab.Result, began bool, err error) {
	l, err := lab.Start(ctx, o)
	if err != nil {
		return r, false, err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-again:
			l.Signal(syscall.SIGTERM) // the second one that it gets
		case <-done:
		}
	}()
	r, err = l.Wait()
	return r, true, err
}
