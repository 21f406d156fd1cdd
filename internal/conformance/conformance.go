// Package conformance holds any runtime to Runtime Protocol v1, one named check for each rule. It starts the runtime as a workspace CLI
// does, makes one workspace, and removes it again.
package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"dagger/parity/internal/report"
	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
)

// Options say what to check, and with what.
type Options struct {
	Runtime runtimeclient.Command
	Image   string // one that the runtime can run; it has /bin/sh, cat, kill, printf and sleep

	Deadline time.Duration // of each check; 0 means 3 minutes: a first boot under an emulator is slow
	Answer   time.Duration // how long a refusal may take; 0 means 20 seconds
	Duplex   int           // how many bytes go both ways at once; 0 means 12 MiB, which is more than all between the two ends can hold
}

// Verdict is what became of a check, as in a report.
type Verdict = report.Verdict

// The verdicts. A run that was ended before the check was leaves it inconclusive.
const (
	Pass         = report.Pass
	Fail         = report.Fail
	Inconclusive = report.Inconclusive
	NotReached   = report.NotReached
)

// Result is a check and what became of it.
type Result struct {
	Name     string        `json:"name"`     // the call and the rule, such as "Find: a missing workspace is no error"
	Sentence string        `json:"sentence"` // true when the rule holds
	Verdict  Verdict       `json:"verdict"`
	Expected string        `json:"expected,omitempty"`
	Seen     string        `json:"seen,omitempty"`
	Elapsed  time.Duration `json:"elapsedNanoseconds"`
}

// check is one rule. An error means that it does not hold: a *breach says no more than expected and seen do.
type check struct {
	name, sentence string
	needs          []string // the names of the checks that it stands on
	run            func(ctx context.Context) (expected, seen string, err error)
}

// breach is a rule that is broken.
type breach struct{ seen string }

func (b *breach) Error() string { return b.seen }

// broken is the result of a check that saw what it did not expect.
func broken(expected, format string, args ...any) (string, string, error) {
	seen := fmt.Sprintf(format, args...)
	return expected, seen, &breach{seen}
}

// suite is a run of the checks.
type suite struct {
	Options
	startErr  error // what the first start came to
	info      *pb.InfoResponse
	workspace string // the workspace of the checks
	absent    string // one that there is not, but for a runtime that is wrong
	marker    string // what the machine's own process says
}

// Run runs the checks in order, tells observe of each as it is done, and gives them all. Its error is that of the cleaning up.
func Run(ctx context.Context, o Options, observe func(Result)) ([]Result, error) {
	if o.Deadline == 0 {
		o.Deadline = 3 * time.Minute
	}
	if o.Answer == 0 {
		o.Answer = 20 * time.Second
	}
	if o.Duplex == 0 {
		o.Duplex = 12 << 20
	}
	id := strings.ToLower(rand.Text()[:10])
	s := &suite{Options: o, workspace: "conformance-" + id, absent: "conformance-absent-" + id, marker: rand.Text()}
	var results []Result
	passed := map[string]bool{}
	for _, c := range s.checks() {
		r := s.result(ctx, c, passed)
		passed[c.name] = r.Verdict == Pass
		results = append(results, r)
		if observe != nil {
			observe(r)
		}
	}
	return results, s.cleanup(ctx)
}

// Names lists the checks: each by its name and its sentence.
func Names() (list [][2]string) {
	for _, c := range (&suite{}).checks() {
		list = append(list, [2]string{c.name, c.sentence})
	}
	return list
}

// Needs gives, for each check by its name, the names of the earlier checks that it stands on.
func Needs() map[string][]string {
	needs := map[string][]string{}
	for _, c := range (&suite{}).checks() {
		needs[c.name] = c.needs
	}
	return needs
}

func (s *suite) result(ctx context.Context, c check, passed map[string]bool) Result {
	r := Result{Name: c.name, Sentence: c.sentence}
	for _, need := range c.needs {
		if !passed[need] {
			r.Verdict, r.Seen = NotReached, fmt.Sprintf("%q did not pass", need)
			return r
		}
	}
	began := time.Now()
	own, cancel := context.WithTimeout(ctx, s.Deadline)
	defer cancel()
	var err error
	r.Expected, r.Seen, err = c.run(own)
	r.Elapsed = time.Since(began)
	var known *breach
	switch {
	case err == nil:
		r.Verdict = Pass
	case ctx.Err() != nil:
		r.Verdict, r.Seen = Inconclusive, "the run was ended: "+context.Cause(ctx).Error()
	case errors.As(err, &known):
		r.Verdict = Fail
	case own.Err() != nil:
		r.Verdict, r.Seen = Fail, fmt.Sprintf("it was not done within %s: %v", s.Deadline, err)
	default:
		r.Verdict, r.Seen = Fail, err.Error()
	}
	return r
}

// cleanup removes what the checks made. It has a deadline of its own.
func (s *suite) cleanup(ctx context.Context) error {
	if s.info == nil {
		return nil // nothing was made: the runtime never got as far
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Deadline)
	defer cancel()
	return s.with(ctx, func(r *runtimeclient.Runtime) error {
		var errs []error
		for _, id := range []string{s.workspace, s.absent} {
			_, err := r.Calls.Delete(ctx, &pb.DeleteRequest{WorkspaceId: id})
			if err != nil {
				// A runtime that cannot delete what is not there may have removed it all the same.
				if found, findErr := r.Calls.Find(ctx, &pb.FindRequest{WorkspaceId: id}); findErr != nil || found.GetFound() {
					errs = append(errs, fmt.Errorf("remove the workspace %s: %w", id, r.Explain("Delete", err)))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// with starts the runtime for one operation, with more in its environment.
func (s *suite) with(ctx context.Context, do func(*runtimeclient.Runtime) error, env ...string) error {
	c := s.Runtime
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], env...)
	r, err := runtimeclient.Start(ctx, c)
	if err != nil {
		return err
	}
	defer r.Close()
	return do(r)
}

// asking makes a check of one that is done with a runtime of its own.
func (s *suite) asking(do func(ctx context.Context, r *runtimeclient.Runtime) (expected, seen string, err error)) func(context.Context) (string, string, error) {
	return func(ctx context.Context) (expected, seen string, err error) {
		startErr := s.with(ctx, func(r *runtimeclient.Runtime) error {
			expected, seen, err = do(ctx, r)
			return nil
		})
		if startErr != nil {
			return "a runtime that starts, as it did before", startErr.Error(), startErr
		}
		return expected, seen, err
	}
}

func (s *suite) checks() []check {
	var all []check
	for _, part := range [][]check{s.processChecks(), s.absentChecks(), s.optionChecks(), s.runChecks(), s.execChecks(), s.frameChecks(), s.endChecks()} {
		all = append(all, part...)
	}
	return all
}
