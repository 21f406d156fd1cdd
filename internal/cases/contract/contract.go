// Package contract is the case that holds the subject's command line to its contract. It comes
// first within its lab. The other cases stand on some of its checks (package catalogue): when one
// of those breaks, they are not run, or ended in the other labs.
package contract

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// Scenario is the scenario's name in the catalogue.
const Scenario = "contract"

// checkDeadline bounds each check. Some boot a microVM, in an emulated lab on a busy machine.
const checkDeadline = 5 * time.Minute

// Checks are the checks of the case, for the catalogue.
func Checks() []catalogue.Check {
	list, _ := subject.Contract(subject.ContractOptions{})
	checks := make([]catalogue.Check, len(list))
	for i, c := range list {
		checks[i] = catalogue.Check{Name: c.Name, Sentence: c.Sentence, Stands: catalogue.On(c.On...)}
	}
	return checks
}

// Run runs the case.
func Run(ctx context.Context, env cases.Env, plan catalogue.Case) report.Case {
	return env.Case(ctx, plan, func(ctx context.Context, r *cases.Recorder, dir string, c *cases.Cleanup) {
		b, o, err := prepare(ctx, env, plan.Provider, r, dir, c)
		if err != nil {
			r.Problem("the contract could not be checked: %v", err)
			return
		}
		checks, cleanup := subject.Contract(o)
		c.Add("the contract's workspace", cleanup)
		for _, check := range checks {
			r.Check("", check.Name, func() (f cases.Finding) {
				defer func() { f.Deviations = o.CLI.Deviations(check.Name) }()
				return confirmed(func() cases.Finding {
					var expected, seen string
					err := cases.Bounded(ctx, env.Within(checkDeadline), func(ctx context.Context) (err error) {
						expected, seen, err = check.Run(ctx)
						return err
					})
					return excuse(b, judge(expected, seen, err, func(err error) string { return b.Slow(ctx, env, err) }))
				})
			})
		}
	})
}

// confirmed makes a check, and makes it again before it says that the contract is broken: MicroSandbox can fail to boot now and then,
// most of all where KVM is emulated and the machine busy.
func confirmed(check func() cases.Finding) cases.Finding {
	f := check()
	if f.Verdict == report.Fail && check().Verdict == report.Pass {
		return cases.Unclear(f.Expected, f.Seen+"; and it held when it was checked again", "see whether the machine is overloaded, and run it again")
	}
	return f
}

func prepare(ctx context.Context, env cases.Env, provider string, r *cases.Recorder, dir string, c *cases.Cleanup) (b *cases.Bench, o subject.ContractOptions, err error) {
	if _, err = cases.NewLink(env.RunID, c); err != nil { // MicroSandbox gives a guest no network without a default route
		return nil, o, err
	}
	if b, err = cases.NewBench(env, provider, r, dir, cases.Surroundings{}, c); err != nil {
		return nil, o, err
	}
	if err := b.ServeImage(ctx); err != nil {
		return nil, o, err
	}
	o = subject.ContractOptions{CLI: b.Subject, Source: b.Source, Image: b.Image, Work: filepath.Join(dir, "c"), Machine: machine(b.MSB)}
	if o.CLI.Home, err = b.NewHome("1"); err != nil {
		return nil, o, err
	}
	if o.Other, err = b.NewHome("2"); err != nil {
		return nil, o, err
	}
	return b, o, os.Mkdir(o.Work, 0o755)
}

// servedDeadline bounds the look at the image's registry. It is not bounded by the check's own
// time, which may be over.
const servedDeadline = time.Minute

// excuse makes a breach of the contract inconclusive where the registry of the workspace's image is
// broken. Any other finding stays.
func excuse(b *cases.Bench, f cases.Finding) cases.Finding {
	if f.Verdict != report.Fail {
		return f
	}
	ctx, cancel := context.WithTimeout(context.Background(), servedDeadline)
	defer cancel()
	if broken := b.ImageServed(ctx); broken != nil {
		return cases.Unclear(f.Expected, f.Seen+"; and "+broken.Error(), "the registry is the test's own: run it again")
	}
	return f
}

// machine asks MicroSandbox for a machine, by its name.
func machine(client *msb.Client) func(context.Context, string) (subject.Machine, error) {
	return func(ctx context.Context, name string) (subject.Machine, error) {
		box, err := client.Inspect(ctx, name)
		if errors.Is(err, msb.ErrNotFound) {
			return subject.Machine{}, subject.ErrNoMachine
		}
		if err != nil { // whose exit code is none of the subject's
			return subject.Machine{}, fmt.Errorf("MicroSandbox could not be asked: %v", err)
		}
		return subject.Machine{State: string(box.Status), CreatedAt: box.CreatedAt}, nil
	}
}

// judge gives the finding for a check of the contract. A command that hangs breaks the contract, as one that says the wrong thing
// does, unless slow says why it may be the lab's doing that it did not end.
func judge(expected, seen string, err error, slow func(error) string) cases.Finding {
	var breach *subject.ContractError
	_, exited := proc.ExitCode(err)
	const next = "docs/contract.md has the command line that a subject must speak"
	switch {
	case err == nil:
		return cases.Passed(seen)
	case cases.NoRoom(err.Error() + seen):
		return cases.Unclear(expected, seen+" "+err.Error(), cases.NextRoom)
	}
	if why := slow(err); why != "" {
		return cases.Unclear(expected, err.Error()+"; and "+why, cases.NextSlow)
	}
	if _, overdue := errors.AsType[*cases.OverdueError](err); overdue {
		seen = err.Error() // which says how long it had
	}
	switch {
	case errors.As(err, &breach), exited, errors.Is(err, context.DeadlineExceeded):
		if seen == "" {
			seen = err.Error()
		}
		return cases.Broken(expected, seen, next)
	}
	return cases.Unclear(expected, err.Error(), next)
}
