// Package selftest shows that Parity's checks catch what they are there for: it runs the cases on the stand-in for msb, once with each
// fault that Parity's own parts can be told to have (package fault), and expects exactly the checks to break that the plan lists. A
// check that breaks for nothing would be as bad as one that never breaks, so the cases also run without a fault, many times.
package selftest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sourcegraph/conc/pool"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/imageparity"
	"dagger/parity/internal/cases/remoteagent"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
	"dagger/parity/internal/step"
)

// Scenario is the scenario's name in the report.
const Scenario = "selftest"

// Selection is what of the self-test runs, and on what.
type Selection struct {
	Rows   []Row
	Whole  bool // the rows are the whole plan, so it must have no gap
	Repeat int  // how often the cases run without a fault
	Real   bool // on real microVMs, not on the stand-in
}

// Whole is the whole plan on the stand-in.
func Whole(repeat int) Selection { return Selection{Rows: Plan(), Whole: true, Repeat: repeat} }

// OnReal is the handful of the plan's rows that run on real microVMs too, with the built-in provider.
func OnReal() Selection {
	return Selection{Rows: slices.DeleteFunc(rows(), func(r Row) bool { return !r.Real }), Real: true}
}

// Only keeps the rows whose name holds the text.
func (s Selection) Only(text string) Selection {
	s.Rows = slices.DeleteFunc(slices.Clone(s.Rows), func(r Row) bool { return !strings.Contains(r.Name(), text) })
	s.Whole = false
	return s
}

// Options say how to run the self-test.
type Options struct {
	RunID    string
	Tools    run.Tools // with the stand-in, unless the selection is of real microVMs
	KVM      lab.Decision
	Cache    string // Parity's cache folder
	Folder   string // an existing folder, for the reports of the rows; they are left there
	Parallel int    // how many rows run side by side; 0 means two for each processor, as a row often waits
	Emit     func(report.Event)
}

// wholePlan is the name of the case that is about the plan and not about a row of it.
const wholePlan = "plan"

// nothingElse is the check of each row that what was listed is all that broke.
const nothingElse = "nothing else breaks"

// Cases are the cases of the selection, one a row: as many checks as the row has trips, and one that nothing else broke.
func (s Selection) Cases() []catalogue.Case {
	var list []catalogue.Case
	add := func(name, promise string, checks ...catalogue.Check) {
		on := "standin" // where another case's id has its provider
		if s.Real {
			on = "msb"
		}
		list = append(list, catalogue.Case{Scenario: Scenario, Provider: on, Name: name, Promise: promise, Checks: checks})
	}
	if s.Whole {
		const promise = "Each fault trips a check, and each check of the catalogue is tripped by a fault."
		add(wholePlan, promise, catalogue.Check{Name: "no gap", Sentence: promise})
	}
	if s.Repeat > 0 {
		promise := fmt.Sprintf("Without a fault every case passes, %d times in a row; those with a Docker Engine %s.", s.Repeat,
			report.Count((s.Repeat+engineEvery-1)/engineEvery, "time"))
		add(Row{}.Name(), promise, catalogue.Check{Name: nothingElse, Sentence: promise})
	}
	for _, row := range s.Rows {
		var checks []catalogue.Check
		for _, t := range row.Trips {
			checks = append(checks, catalogue.Check{Name: t.String(), Sentence: "The fault breaks this check, in this way."})
		}
		checks = append(checks, catalogue.Check{Name: nothingElse, Sentence: "Every other check passes, or stands on one that broke."})
		promise := fmt.Sprintf("The fault %s is caught.", row.Fault)
		if fault.Honest(row.Fault) {
			promise = fmt.Sprintf("With %s, which breaks no promise, every case passes.", row.Fault)
		}
		add(row.Name(), promise, checks...)
	}
	return list
}

// Run runs the selection and gives what came of each of its cases, and the kernel that they ran on.
func (s Selection) Run(ctx context.Context, o Options) (results []report.Case, kernel string) {
	if o.Parallel == 0 {
		o.Parallel = sideBySide(s.Real)
	}
	rows := map[string]Row{}
	for _, row := range s.Rows {
		rows[row.Name()] = row
	}
	work := pool.NewWithResults[report.Case]().WithMaxGoroutines(o.Parallel)
	for _, c := range longestFirst(s.Cases(), rows) {
		work.Go(func() report.Case {
			r := cases.NewRecorder(ctx, c, o.RunID, o.Emit)
			switch c.Name {
			case wholePlan:
				r.Check("", c.Checks[0].Name, func() cases.Finding { return judgeGaps(s.Rows) })
			case Row{}.Name():
				r.Check("", nothingElse, func() cases.Finding { return o.clean(ctx, s.Repeat) })
			default:
				o.row(ctx, rows[c.Name], r)
			}
			return r.Finish()
		})
	}
	results = work.Wait()
	for _, c := range s.Cases() { // any run that got so far says it
		if ran, err := report.Read(filepath.Join(o.Folder, folder(c.Name))); err == nil && ran.Head.Kernel != "" {
			kernel = ran.Head.Kernel
		}
	}
	return results, kernel
}

// sideBySide is how many rows run side by side. On the stand-in a row is half waiting, and so are the
// few with a fault of an emulated lab. With real microVMs each row's machine takes a processor.
func sideBySide(real bool) int {
	if real {
		return runtime.NumCPU()
	}
	return 2 * runtime.NumCPU()
}

// longestFirst puts what takes minutes before what takes seconds, so that nothing runs alone at the
// end: the runs without a fault, and the faults of an emulated lab.
func longestFirst(all []catalogue.Case, rows map[string]Row) []catalogue.Case {
	var long, short []catalogue.Case
	for _, c := range all {
		if c.Name == (Row{}).Name() || fault.OfLab(rows[c.Name].Fault) {
			long = append(long, c)
		} else {
			short = append(short, c)
		}
	}
	return append(long, short...)
}

func judgeGaps(plan []Row) cases.Finding {
	if open := gaps(plan); len(open) > 0 {
		return cases.Broken("", strings.Join(open, "; "), "give the fault a row in internal/selftest, or the check a fault")
	}
	return cases.Passed("none")
}

// engineEvery is in which of the runs without a fault the cases of image-parity and remote-agent run: each has a Docker Engine of its own,
// which takes its time.
const engineEvery = 10

func hasEngine(c catalogue.Case) bool {
	return c.Scenario == imageparity.Scenario || c.Scenario == remoteagent.Scenario
}

// clean runs every case without a fault, again and again.
func (o Options) clean(ctx context.Context, repeat int) cases.Finding {
	for i := range repeat {
		var chosen []string
		for _, c := range step.Catalogue() {
			if c.Scenario != catalogue.Parity && (!hasEngine(c) || i%engineEvery == 0) {
				chosen = append(chosen, c.ID())
			}
		}
		r, err := o.run(ctx, Row{Cases: chosen}, fmt.Sprintf("none-%d", i+1))
		if err != nil {
			return cases.Unclear("", err.Error(), nextRun)
		}
		if r.Verdict != report.Pass {
			return cases.Broken("", fmt.Sprintf("run %d: %s", i+1, r.Sentence()), nextReport(o.Folder, fmt.Sprintf("none-%d", i+1)))
		}
	}
	return cases.Passed(report.Count(repeat, "run"))
}

const nextRun = "run it again; `parity egress --standin` shows more"

func nextReport(folder, name string) string {
	return "see the report in " + filepath.Join(folder, name)
}

// row runs a row once, and checks that it broke what it was to break.
func (o Options) row(ctx context.Context, row Row, r *cases.Recorder) {
	folder := folder(row.Name())
	ran, err := o.run(ctx, row, folder)
	seen := seen(ran, row.Fault)
	shown := "nothing broke"
	if len(seen) > 0 {
		var list []string
		for _, t := range seen {
			list = append(list, t.String())
		}
		shown = "what broke: " + strings.Join(list, "; ")
	}
	for _, t := range row.Trips {
		r.Check("", t.String(), func() cases.Finding {
			switch {
			case err != nil:
				return cases.Unclear("", err.Error(), nextRun)
			case !slices.Contains(seen, t):
				return cases.Broken("", shown, "the fault is not caught as the plan says: "+nextReport(o.Folder, folder))
			}
			return cases.Passed(shown)
		})
	}
	r.Check("", nothingElse, func() cases.Finding {
		extra := slices.DeleteFunc(slices.Clone(seen), func(t Trip) bool { return slices.Contains(row.Trips, t) })
		switch {
		case err != nil:
			return cases.Unclear("", err.Error(), nextRun)
		case len(extra) > 0:
			return cases.Broken("", shown, fmt.Sprintf("%s broke too: %s", extra[0], nextReport(o.Folder, folder)))
		case fault.Honest(row.Fault):
			if ran.Verdict != report.Pass || ran.ExitCode != 0 {
				return cases.Broken("", ran.Sentence(), "it breaks no promise, and the run did not pass: "+nextReport(o.Folder, folder))
			}
		case ran.Verdict == report.Pass, ran.ExitCode == 0:
			return cases.Broken("", fmt.Sprintf("the verdict %s and the exit code %d", ran.Verdict, ran.ExitCode), "checks broke and the run passed: "+nextReport(o.Folder, folder))
		}
		return cases.Passed(fmt.Sprintf("the run's verdict is %s, its exit code %d", ran.Verdict, ran.ExitCode))
	})
}

// folder is the name of the folder of a row's report.
func folder(row string) string { return strings.ReplaceAll(row, "/", "-") }

// rowDeadline bounds the run of a row. It takes seconds on the stand-in, and a minute or two on emulated microVMs.
const rowDeadline = 15 * time.Minute

// run runs the cases of a row in a lab of their own.
func (o Options) run(ctx context.Context, row Row, name string) (report.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, rowDeadline)
	defer cancel()
	dir := filepath.Join(o.Folder, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return report.Report{}, err
	}
	setups, err := os.MkdirTemp("", "setup-")
	if err != nil {
		return report.Report{}, err
	}
	defer os.RemoveAll(setups)
	options := run.Options{
		Folder: setups, Version: "selftest", KVM: o.KVM, Tools: o.Tools,
		Lab: lab.Options{Cache: o.Cache}, Labs: 1, Report: dir, Fault: row.Fault, Patience: row.Patience,
	}
	for _, id := range row.Cases {
		c, ok := step.Catalogue().ByID(id)
		if !ok {
			return report.Report{}, fmt.Errorf("the plan names the case %q, which does not exist", id)
		}
		options.Cases = append(options.Cases, c)
	}
	options.Cases = append(options.Cases, catalogue.Comparisons(options.Cases)...)
	if !slices.ContainsFunc(options.Cases, func(c catalogue.Case) bool { return c.Provider == catalogue.External }) {
		options.Tools.External = nil
	}
	if fault.OfLab(row.Fault) {
		options.KVM = lab.Decision{KVM: lab.Emulated, Reason: "the fault is one of an emulated lab"}
	}
	p := progress.New(io.Discard, progress.Style{}, time.Now())
	defer p.Close()
	ran, err := run.Run(ctx, options, p, nil)
	if err == nil && fault.OfLab(row.Fault) && !slices.ContainsFunc(ran.Labs, func(l report.Lab) bool { return l.Failed != "" || len(l.Notes) > 0 }) {
		err = fmt.Errorf("no lab showed the fault: %s", ran.Sentence())
	}
	return ran, err
}

// seen lists what broke in a run with the fault.
func seen(r report.Report, of fault.Fault) []Trip {
	var trips []Trip
	for _, c := range r.Cases {
		for _, check := range c.Checks {
			// Which check is under way when a lab fails is not foreseen.
			if check.Broke() && !(fault.OfLab(of) && progress.Cut(check)) {
				trips = append(trips, Trip{c.ID, check.Phase, check.Name, check.Verdict})
			}
		}
		if len(c.Problems) > 0 {
			trips = append(trips, problem(c.ID))
		}
	}
	if len(r.Problems) > 0 {
		trips = append(trips, Trip{Verdict: report.Inconclusive})
	}
	return trips
}
