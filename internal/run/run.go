// Package run is one run of Parity from the outside: it decides where KVM comes from, spreads the cases over labs, follows their
// steps and makes the report.
package run

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sourcegraph/conc/pool"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/parity"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
)

// Options say what to run, with what.
type Options struct {
	Version string // this program's
	Cases   []catalogue.Case
	KVM     lab.Decision
	Tools   Tools
	Lab     lab.Options        // Cache, MemoryMiB and DiskGiB
	Labs    int                // how many side by side; 0 means as many as there are processors, memory and cases for
	Report  string             // the report's folder
	Folder  string             // an existing folder for the run's temporary files, which labs can read
	Watch   func(report.Event) // is told of each event, from several labs at the same time; may be nil

	Fault    fault.Fault // by which Parity's own parts are to misbehave, if any
	Patience float64     // see cases.Tools
}

// Run runs the cases and writes the report, which it gives too. It shows progress as it goes. The error is about the run, not about
// the cases: there is no report then. When ctx is done the cases clean up, and the report says that the run was interrupted; a
// signal on again ends the labs at once.
func Run(ctx context.Context, o Options, p *progress.Progress, again <-chan struct{}) (report.Report, error) {
	r := report.Report{Started: time.Now()}
	r.Head = report.Head{
		RunID: NewRunID(), Parity: o.Version, KVM: string(o.KVM.KVM), KVMReason: o.KVM.Reason,
		MicroSandbox: o.Tools.MicroSandbox, Subject: o.Tools.Subject, Remote: o.Tools.Visit,
		External: o.Tools.External, Agent: o.Tools.Served, Fault: string(o.Fault),
	}
	if patience := o.Tools.patient(o.Patience); patience != 1 {
		r.Head.Patience = patience
	}
	for _, c := range o.Cases {
		r.Selected = append(r.Selected, c.ID())
	}
	run, comparisons := apart(o.Cases)
	labs := o.spread(run)
	b := newBreaches(ctx, labs)
	defer b.close()

	work := pool.NewWithResults[[]outcome]()
	for i, mine := range labs {
		l := labRun{Options: o, id: r.Head.RunID, name: labName(i, len(labs)), life: b.labs[i], breaches: b, again: again, progress: p}
		work.Go(func() []outcome { return l.run(mine) })
	}
	for _, out := range slices.Concat(work.Wait()...) {
		r.Cases = append(r.Cases, out.cases...)
		r.Labs = append(r.Labs, out.lab)
		if out.problem != "" {
			r.Problems = append(r.Problems, out.problem)
		}
		r.Problems = append(r.Problems, mergeHead(&r.Head, out)...)
		for id, commands := range out.transcripts {
			if err := report.WriteTranscript(o.Report, id, commands); err != nil {
				r.Problems = append(r.Problems, fmt.Sprintf("write the transcript of %s: %v", id, err))
			}
		}
	}
	for _, plan := range comparisons {
		result, differences := parity.Compare(plan, r.Head.RunID, r.Cases)
		r.Cases = append(r.Cases, result)
		r.Differences = append(r.Differences, differences...)
	}
	slices.SortFunc(r.Labs, func(a, b report.Lab) int { return strings.Compare(a.Name, b.Name) })
	r.Problems = append(r.Problems, o.Tools.changed()...)
	r.Elapsed = time.Since(r.Started)
	r.Problems = append(r.Problems, catalogue.Verify(o.Cases, r)...)
	if o.Fault != "" && !fault.Honest(o.Fault) && len(r.Problems) == 0 && report.Conclude(r).Verdict == report.Pass {
		r.Problems = append(r.Problems, fmt.Sprintf("the fault %s was asked for (%s), and nothing showed it: these cases cannot tell", o.Fault, fault.Env))
	}
	slices.Sort(r.Problems)
	r.Problems = slices.Compact(r.Problems) // labs that were ended for one reason say it once
	r = report.Conclude(r)
	return r, report.Write(o.Report, r)
}

// Grace bounds the clean-up of a run that is interrupted: what has not ended by itself by then is ended. The cases' clean-ups are
// bounded too; they take a second where microVMs are native.
const Grace = 3 * time.Minute

// apart tells the cases that run in labs from those that compare them.
func apart(cases []catalogue.Case) (run, comparisons []catalogue.Case) {
	for _, c := range cases {
		if c.Scenario == catalogue.Parity {
			comparisons = append(comparisons, c)
		} else {
			run = append(run, c)
		}
	}
	return run, comparisons
}

// mergeHead puts what a lab said of itself into the report's head. Labs that differ are a problem: the head could be true of only one.
func mergeHead(head *report.Head, out outcome) []string {
	switch {
	case out.head == nil && (out.problem != "" || out.ended || out.lab.Failed != ""): // which says why
		return nil
	case out.head == nil:
		return []string{"a lab's step did not say where it ran: nothing is known of its KVM and kernel"}
	case out.visits: // which says nothing of where the other cases' microVMs are
		return nil
	}
	var problems []string
	if out.head.KVM != head.KVM {
		problems = append(problems, fmt.Sprintf("a lab says KVM %q, and the run decided %q", out.head.KVM, head.KVM))
	}
	if head.Kernel == "" {
		head.Kernel = out.head.Kernel
	}
	if out.head.Kernel != head.Kernel {
		problems = append(problems, fmt.Sprintf("a lab has the kernel %q, and another has %q", out.head.Kernel, head.Kernel))
	}
	return problems
}

// labs is how many labs run side by side.
func (o Options) labs() int {
	n := o.Labs
	if n == 0 {
		n = runtime.NumCPU()
		if o.KVM.KVM == lab.Emulated {
			n = min(n, max(1, availableMiB()/labMiB))
		}
	}
	return min(n, len(o.Cases))
}

// labMiB is what an emulated lab is counted with: the memory that it was seen to use, with some room.
const labMiB = 3 << 10

func availableMiB() int {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return labMiB
	}
	_, after, _ := bytes.Cut(info, []byte("MemAvailable:"))
	kib := 0
	if _, err := fmt.Sscan(string(after), &kib); err != nil {
		return labMiB
	}
	return kib >> 10
}

// visits tells whether a case visits a remote machine that is not Parity's own.
func (o Options) visits(c catalogue.Case) bool { return o.Tools.Visit != "" && catalogue.IsRemote(c) }

// spread gives the cases of each lab. One that visits a machine has a lab of its own, whose network is this machine's.
func (o Options) spread(cases []catalogue.Case) [][]catalogue.Case {
	var at, visiting []catalogue.Case
	for _, c := range cases {
		if o.visits(c) {
			visiting = append(visiting, c)
		} else {
			at = append(at, c)
		}
	}
	labs := spread(at, min(o.labs(), len(at)))
	if len(visiting) > 0 {
		labs = append(labs, visiting)
	}
	return labs
}

// spread spreads cases over at most n labs: the longest first, each to the lab that has least to do, in catalogue order within a
// lab. So a contract, which is first in the catalogue, is first in its lab.
func spread(cases []catalogue.Case, n int) [][]catalogue.Case {
	order := slices.Clone(cases)
	slices.SortStableFunc(order, func(a, b catalogue.Case) int { return b.Weight - a.Weight })
	labs := make([][]catalogue.Case, n)
	load := make([]int, n)
	for _, c := range order {
		i := slices.Index(load, slices.Min(load))
		labs[i] = append(labs[i], c)
		load[i] += c.Weight
	}
	place := func(c catalogue.Case) int {
		return slices.IndexFunc(cases, func(other catalogue.Case) bool { return other.ID() == c.ID() })
	}
	for _, mine := range labs {
		slices.SortFunc(mine, func(a, b catalogue.Case) int { return place(a) - place(b) })
	}
	return labs
}

func labName(i, n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprint(i + 1)
}

// NewRunID gives a fresh id for a run.
func NewRunID() string { return strings.ToLower(rand.Text()[:8]) }

// lastLines keeps the end of what is written to it.
type lastLines struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf = append(l.buf, b...); len(l.buf) > 4<<10 {
		l.buf = slices.Clone(l.buf[len(l.buf)-4<<10:])
	}
	return len(b), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}

// ErrTool is what an error about a program that a run needs is.
var ErrTool = errors.New("a program that the run needs cannot be used")
