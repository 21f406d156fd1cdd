package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
	"dagger/parity/internal/selftest"
)

// selftestFlags are the flags of the self-test.
type selftestFlags struct {
	report      string
	only        string
	repeat      int
	repeatGiven bool
	parallel    int
	real        bool
	kvm         string
	markdown    bool
	verbose     bool
}

func selftestCommand() *cobra.Command {
	var f selftestFlags
	c := &cobra.Command{
		Use:   "selftest",
		Short: "Show that each check catches the fault that it is there for",
		Long: `Run the cases on Parity's stand-in for msb with each fault that Parity's own parts can be told to have, and show that exactly the
checks break that are to catch it. It needs no KVM. docs/faults.md lists the faults.

Exit codes: 0 each fault was caught by exactly its checks; 1 one was not, or a case failed without a fault; 2 bad usage; 3 the
environment lacks something.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cmp.Or(refuseEmpty(c, "report", "only", "kvm"), refuseBelow(c, limit{"repeat", 1, "", "a run without a fault is part of the self-test"}, limit{"parallel", 1, "", "the runs need a lab"})); err != nil {
				return err
			}
			f.repeatGiven = c.Flags().Changed("repeat")
			if f.markdown {
				return selftest.Markdown(os.Stdout, selftest.Plan())
			}
			return f.run(c.Context())
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.report, "report", "parity-selftest", "folder for report.json, junit.xml and summary.md, and below it a report of each run with a fault")
	flags.StringVar(&f.only, "only", "", "run only the rows whose name, FAULT/SCENARIO, holds this text")
	flags.IntVar(&f.repeat, "repeat", 3, "how often the cases run without a fault; with --only they do not, unless it is given")
	flags.IntVar(&f.parallel, "parallel", 0, "runs side by side (default two for each processor, and one with --real)")
	flags.BoolVar(&f.real, "real", false, "run a handful of the faults on real microVMs instead of the stand-in")
	flags.StringVar(&f.kvm, "kvm", string(lab.Auto), "with --real: auto, native or emulated")
	verboseFlag(flags, &f.verbose)
	flags.BoolVar(&f.markdown, "markdown", false, "print docs/faults.md and run nothing")
	return c
}

func (f selftestFlags) run(ctx context.Context) (err error) {
	selection := selftest.Whole(f.repeat)
	if f.real {
		selection = selftest.OnReal()
	}
	if f.only != "" {
		selection = selection.Only(f.only)
		if !f.repeatGiven {
			selection.Repeat = 0
		}
	}
	mode, err := lab.ParseKVM(f.kvm)
	switch {
	case err != nil:
		return usageErrorf("%w", err)
	case len(selection.Rows) == 0:
		return usageErrorf("--only %q: no row's name, FAULT/SCENARIO, holds it; docs/faults.md lists them", f.only)
	case !fault.On(""):
		return usageErrorf("%s is set: the self-test sets it itself", fault.Env)
	}
	cache, err := lab.CacheDir()
	if err != nil {
		return err
	}
	started := time.Now()
	ctx, again, stop := interruptible(ctx)
	defer stop()
	go exitSoonAfter(again)
	place, dir, leave, err := occupy(cache, f.report)
	if err != nil {
		return err
	}
	defer leave()
	runs := filepath.Join(dir, "runs")
	if err := errors.Join(os.RemoveAll(runs), os.Mkdir(runs, 0o755)); err != nil {
		return err
	}
	p := progress.New(os.Stderr, progressStyle(f.verbose), started)
	defer p.Close()
	cleanBefore(cache, place, p)
	tools, err := run.FindTools(ctx, run.ToolOptions{Cache: cache, StandIn: !f.real, External: true, Docker: true, Remote: true, Folder: place.Path()})
	if err != nil {
		return err
	}
	decision := standInKVM
	if f.real {
		if decision, err = decide(ctx, mode, cache, tools.Cases.MSB); err != nil {
			return err
		}
		p.Note("KVM %s: %s", decision.KVM, reason(decision, f.verbose))
	}
	r := report.Report{Started: started, Head: report.Head{
		RunID: run.NewRunID(), Parity: version(), KVM: string(decision.KVM), KVMReason: decision.Reason,
		MicroSandbox: tools.MicroSandbox, Subject: tools.Subject,
	}}
	planned := selection.Cases()
	for _, c := range planned {
		r.Selected = append(r.Selected, c.ID())
	}
	r.Cases, r.Head.Kernel = selection.Run(ctx, selftest.Options{
		RunID: r.Head.RunID, Tools: tools, KVM: decision, Cache: cache, Folder: runs, Parallel: f.parallel,
		Emit: func(e report.Event) { p.Event("", e) },
	})
	r.Elapsed = time.Since(started)
	r.Problems = catalogue.Verify(planned, r)
	r = report.Conclude(r)
	if err := report.Write(dir, r); err != nil {
		return err
	}
	p.Close()
	return show(r, dir, f.verbose)
}
