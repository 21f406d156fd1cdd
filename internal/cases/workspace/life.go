package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// NextShape is what to do when MicroSandbox's answer has a form that is not known.
const NextShape = "this MicroSandbox says it in another way than 0.7.2: Parity must learn it before it can judge"

// up has the subject bring the workspace up.
func (w *Workspace) up(o subject.UpOptions) cases.Finding {
	up := func(ctx context.Context) error {
		_, err := w.Bench.Up(ctx, o)
		return err
	}
	deadline := cmp.Or(w.UpTime, UpDeadline)
	started := time.Now()
	err := w.Bounded(deadline, up)
	w.UpTook = time.Since(started)
	if err == nil {
		return cases.Passed("outcome success")
	}
	f := w.Blame(err)
	if f.Verdict == report.Fail {
		// It is the subject's failure only if MicroSandbox could have done it.
		if bare := w.Bounded(UpDeadline, w.Bench.Healthy); bare != nil {
			return cases.Unclear("", f.Seen+"; and MicroSandbox does not boot a bare sandbox either: "+bare.Error(), "see `parity doctor`, and whether the machine is overloaded")
		}
		// And only if it fails again: MicroSandbox can fail to boot now and then, most of all where KVM is emulated and the machine busy.
		if w.Bounded(deadline, up) == nil {
			return cases.Unclear("", f.Seen+"; and the same command succeeded when it was run again", "see whether the machine is overloaded, and run it again")
		}
	}
	return f
}

// stop has the subject stop the workspace, and shows that MicroSandbox says so.
func (w *Workspace) stop() cases.Finding {
	err := w.Bounded(stopDeadline, func(ctx context.Context) error { return w.Bench.Subject.Stop(ctx, w.ID) })
	if err != nil {
		return w.Blame(err)
	}
	_, f := w.Inspect(msb.StatusStopped)
	return f
}

// fetched shows that the subject has fetched the external runtime: else it may run the workspace with its own driver.
func (w *Workspace) fetched() cases.Finding {
	n := w.Bench.Served()
	if n == 0 {
		return cases.Broken("", "nobody asked for it", "the subject did not use the provider that it was given")
	}
	return cases.Passed(report.Count(n, "request"))
}

// Inspect asks MicroSandbox, never the subject, for the workspace's state. It does not enter the
// guest. The subject is asked only for the name: if it does not say it, that is its failure; if
// MicroSandbox does not answer, nothing can be said.
func (w *Workspace) Inspect(want msb.Status) (msb.Sandbox, cases.Finding) {
	name, f := w.sandbox(GuestDeadline)
	if f.Verdict != report.Pass {
		return msb.Sandbox{}, f
	}
	var box msb.Sandbox
	err := w.Bounded(GuestDeadline, func(ctx context.Context) (err error) {
		box, err = w.Bench.MSB.Inspect(ctx, name)
		return err
	})
	switch {
	case errors.Is(err, msb.ErrNotFound):
		return box, cases.Broken("", "MicroSandbox has no sandbox "+name, "the subject said success and MicroSandbox does not have the workspace")
	case err != nil:
		return box, cases.Unclear("", err.Error(), "MicroSandbox could not be asked: run it again, and see `parity doctor`")
	case box.Status != msb.StatusRunning && box.Status != msb.StatusStopped && box.Status != msb.StatusCrashed:
		return box, cases.Unclear("", fmt.Sprintf("the status %q of %s", box.Status, name), NextShape)
	case box.Status != want:
		return box, cases.Broken(fmt.Sprintf("MicroSandbox says %s of %s", want, name), string(box.Status),
			"the subject said success and MicroSandbox has another state")
	}
	return box, cases.Passed(fmt.Sprintf("%s of %s", box.Status, name))
}

// sandbox asks the subject for MicroSandbox's name of the workspace: with `workspace list`, and
// with what else the CLI's adapter has. A command that fails or hangs breaks the contract, as a
// list that lacks the workspace does, unless MicroSandbox does not answer either.
func (w *Workspace) sandbox(deadline time.Duration) (string, cases.Finding) {
	var name string
	err := w.Bounded(deadline, func(ctx context.Context) (err error) {
		w.listed, name, err = w.Bench.Sandbox(ctx, w.ID)
		return err
	})
	if err == nil {
		return name, cases.Passed(name)
	}
	f := w.Blame(err)
	f.Expected = fmt.Sprintf("`workspace list` has %q, and the name of its sandbox follows from that", w.ID)
	if f.Verdict == report.Fail {
		msbErr := w.Bounded(GuestDeadline, func(ctx context.Context) error {
			_, err := w.Bench.MSB.List(ctx)
			return err
		})
		if msbErr != nil {
			return "", cases.Unclear(f.Expected, f.Seen+"; and MicroSandbox does not answer either: "+msbErr.Error(), "run it again, and see `parity doctor`")
		}
	}
	return "", f
}
