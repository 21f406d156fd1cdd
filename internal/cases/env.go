package cases

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sourcegraph/conc/panics"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/remote"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// Env is what the cases of one lab run with. They run one after another.
type Env struct {
	RunID   string
	Scratch string // an empty folder, on a file system with user xattrs
	Emit    func(report.Event)
	Tools

	// Unit is how long MicroSandbox itself took to create a bare sandbox in this lab, before the
	// cases; 0 where that is not known.
	Unit time.Duration
}

// Tools are the programs that cases use, and how. They are found outside of the lab.
type Tools struct {
	MSB     string   // the msb executable; with the stand-in, the step installs it
	StandIn bool     // msb is the stand-in, which is built into parity
	Subject []string // the workspace CLI and its first arguments
	Adapter string   // the text of the adapter by which it is spoken to; empty: the contract
	Path    []string // folders of programs that the user adds to the subject's PATH
	Builtin string   // the SOURCE of the provider with the subject's own driver; empty: the adapter's
	Probe   string   // the probe program for guests

	External External // the external provider, for the cases that have one
	Docker   Docker   // for the cases with a Docker Engine
	Remote   Remote   // for the cases with a remote machine

	AgentFile string // what is served as the subject's agent to a remote machine: a file
	AgentName string // the name under which the subject asks for it, below the agent's URL; empty means DefaultAgentName

	// Patience multiplies the deadlines of a case; 0 means 1. Less of it is for the self-test,
	// whose faults are waited for.
	Patience float64
}

// DefaultAgentName is the name under which a CLI asks for its agent unless it is said otherwise.
const DefaultAgentName = "devsy-linux-amd64"

// Docker says which Docker Engine cases have.
type Docker struct {
	Programs docker.Programs // of an engine of a case's own; empty: no case has one
	Host     string          // an existing engine, as DOCKER_HOST has it; empty: one of a case's own
}

// Remote says which remote machine cases have.
type Remote struct {
	Root   remote.Root // the folder with the root of one of a case's own, which runs in an engine of the case's own
	Target string      // the file with the remote.Target of one that is not Parity's; empty: one of the case's own
}

// Nominal is the unit that every deadline is made for: how long MicroSandbox takes to create a bare
// sandbox in an emulated lab on a busy machine that is sound otherwise. Where KVM is native, a
// tenth of it is usual; a lab is slow only when it is slower than an emulated one, as the deadlines
// are the same.
const Nominal = 16 * time.Second

// Within is a deadline of a case, as patience and the lab's speed have it: a lab that is slower
// than the deadlines are made for gets as much more time.
func (e Env) Within(d time.Duration) time.Duration {
	return time.Duration(float64(d) * cmp.Or(e.Patience, 1) * max(1, float64(e.Unit)/float64(Nominal)))
}

// Deadline bounds one case. It is long enough for an emulated lab on a busy machine, also where a case builds images.
const Deadline = 30 * time.Minute

// cleanDeadline bounds each clean-up by itself, whatever became of the case's own time.
const cleanDeadline = 90 * time.Second

// CleanUps is how long a run, from outside of the lab, lets all clean-ups of a case take together.
const CleanUps = 10 * cleanDeadline

// NotRun gives a case that is not run, with the reason.
func (e Env) NotRun(plan catalogue.Case, reason string) report.Case {
	r := NewRecorder(context.Background(), plan, e.RunID, e.Emit)
	r.Problem("%s", reason)
	return r.Finish()
}

// Case runs one case: body makes its checks with a context that is bounded, and registers clean-ups, which all run, the last one
// first, each with its own deadline. dir is an empty folder of the case's own.
func (e Env) Case(ctx context.Context, plan catalogue.Case, body func(ctx context.Context, r *Recorder, dir string, c *Cleanup)) report.Case {
	ctx, cancel := context.WithTimeout(ctx, e.Within(Deadline))
	defer cancel()
	r := NewRecorder(ctx, plan, e.RunID, e.Emit)
	r.deadline = e.Within(Deadline)
	c := Cleanup{deadline: e.Within(cleanDeadline)}
	// MicroSandbox makes sockets below: the path is short.
	dir := filepath.Join(e.Scratch, plan.Name+"-"+plan.Provider[:min(1, len(plan.Provider))])
	if err := os.Mkdir(dir, 0o755); err != nil {
		r.Problem("make the case's folder: %v", err)
		return r.Finish()
	}
	c.Add("the case's folder", func(context.Context) error { return os.RemoveAll(dir) })
	if p := panics.Try(func() { body(ctx, r, dir, &c) }); p != nil {
		r.Problem("the case panicked: %s", p)
	}
	for _, err := range c.Run() {
		r.Problem("clean-up: %v", err)
	}
	return r.Finish()
}

// Cleanup is a list of what a case has to remove.
type Cleanup struct {
	steps    []step
	deadline time.Duration // of each, if it is longer than cleanDeadline
}

type step struct {
	what string
	do   func(context.Context) error
}

// Add registers a clean-up. It must be registered before the thing is made, and be content when it is not there.
func (c *Cleanup) Add(what string, do func(context.Context) error) {
	c.steps = append(c.steps, step{what, do})
}

// Run runs the clean-ups, the last one first, and gives the errors of those that failed.
func (c *Cleanup) Run() []error {
	var errs []error
	for i := len(c.steps) - 1; i >= 0; i-- {
		s := c.steps[i]
		ctx, cancel := context.WithTimeout(context.Background(), max(cleanDeadline, c.deadline))
		var err error
		if p := panics.Try(func() { err = s.do(ctx) }); p != nil {
			err = errors.Join(err, p.AsError())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.what, err))
		}
		cancel()
	}
	return errs
}

// Nonce gives a fresh nonce that begins with a word that tells whose it is.
func Nonce(whose string) string { return whose + "-" + strings.ToLower(rand.Text()[:16]) }
