package workspace

import (
	"context"
	"errors"
	"fmt"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// Blame is the finding for an operation of the subject that failed while everything around it was intact.
func (w *Workspace) Blame(err error) cases.Finding {
	if excused := w.Excuse(cases.Broken("", err.Error(), "")); excused.Verdict != report.Fail {
		return excused
	}
	if full := w.Bench.DiskFull(); full != nil {
		return cases.Unclear("", fmt.Sprintf("%v, and %v", err, full), cases.NextRoom)
	}
	if cases.NoRoom(err.Error()) {
		return cases.Unclear("", err.Error(), cases.NextRoom)
	}
	if slow := w.Bench.Slow(w.Ctx, w.Env, err); slow != "" {
		return cases.Unclear("", err.Error()+"; and "+slow, cases.NextSlow)
	}
	var contract *subject.ContractError
	if _, exited := proc.ExitCode(err); !exited && !errors.As(err, &contract) && !errors.Is(err, subject.ErrNotFound) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return cases.Unclear("", err.Error(), "the subject could not be run: run it again")
	}
	next := advice(err)
	if w.Provider == catalogue.External {
		next += ", and `parity conformance` the provider's runtime alone (docs/runtime-protocol.md)"
	}
	return cases.Broken("", err.Error(), next)
}

// Excuse makes a failure of the subject's inconclusive where a fixture that it depends on is broken. Any other finding stays.
func (w *Workspace) Excuse(f cases.Finding) cases.Finding {
	if f.Verdict != report.Fail || w.Intact == nil {
		return f
	}
	if broken := w.Bounded(GuestDeadline, w.Intact); broken != nil {
		return cases.Unclear(f.Expected, f.Seen+"; and "+broken.Error(), "what the workspace depends on is the test's own: run it again")
	}
	return f
}

// advice says what to do about an operation of the subject that failed: its own words come first, where it had some.
func advice(err error) string {
	const contract = "`parity contract` checks its command line alone (docs/contract.md)"
	var said *subject.UpError
	var failed *proc.Error
	ran := errors.As(err, &failed)
	switch {
	case ran && errors.Is(err, context.DeadlineExceeded):
		return "the subject hung, and the lab is as fast as its deadline is made for: run the same command by hand, or give it more time with --patience; " + contract
	case errors.As(err, &said), ran && failed.Stderr != "":
		return "the subject's own message says why; " + contract
	case ran:
		return "the subject failed and said nothing on stderr: run the same command by hand; " + contract
	}
	return "the subject's answer is not what was asked for; " + contract
}
