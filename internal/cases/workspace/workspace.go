// Package workspace is a workspace under test as every scenario drives it, enters it and looks at it: through the subject's command
// line, one SSH session, and MicroSandbox's own word.
package workspace

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"time"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/link"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/subject"
)

// Deadlines of single steps, for an emulated lab on a busy machine. Each is far above what was measured.
const (
	UpDeadline    = 5 * time.Minute
	GuestDeadline = time.Minute

	stopDeadline   = 2 * time.Minute
	engineDeadline = 4 * time.Minute
)

// Workspace is one workspace of a case under way.
type Workspace struct {
	*cases.Recorder
	cases.Env
	Ctx      context.Context
	Bench    *cases.Bench // the case's subject and msb
	ID       string
	Provider string // builtin or external

	// UpTime bounds an up; 0 means UpDeadline.
	UpTime time.Duration

	// Intact, if set, looks at the fixtures that the subject depends on. Its error says which is broken: what the subject failed at then
	// is not its failure.
	Intact func(context.Context) error

	// UpTook is how long the last up took that succeeded at once.
	UpTook time.Duration

	listed subject.Workspace // as the subject listed it last

	// What the earlier phases saw.
	createdAt time.Time
	bootIDs   []string
}

// Bounded calls do with a deadline of its own within the case's; see cases.Bounded.
func (w *Workspace) Bounded(d time.Duration, do func(context.Context) error) error {
	return cases.Bounded(w.Ctx, w.Within(d), do)
}

// Listed returns the workspace as the subject listed it last.
func (w *Workspace) Listed() subject.Workspace { return w.listed }

// MakeLink makes the check that the link of the case is there, with further addresses, and gives it.
func (w *Workspace) MakeLink(c *cases.Cleanup, others ...netip.Prefix) (l *link.Link) {
	w.Check("", "fixture/link", func() cases.Finding {
		var err error
		if l, err = cases.NewLink(w.RunID, c, others...); err != nil {
			return cases.Unclear("", err.Error(), "the lab's kernel must have the module dummy or bridge; see `parity doctor`")
		}
		return cases.Passed(fmt.Sprintf("%s %s, %s", l.Kind, l.Name, l.Address))
	})
	return l
}

// StartDocker makes the check that the Docker Engine of the case answers, and gives it: one of the case's own, or the one at the options' Host.
func (w *Workspace) StartDocker(o docker.Options, c *cases.Cleanup) (engine *docker.Engine) {
	o.RunID, o.Programs = w.RunID, w.Docker.Programs
	w.Check("", "fixture/docker", func() cases.Finding {
		defer w.Timed("Docker start")()
		err := w.Bounded(engineDeadline, func(ctx context.Context) (err error) {
			if err = fault.Failing(fault.DockerFails); err == nil {
				engine, err = docker.Start(ctx, o)
			}
			return err
		})
		if err != nil {
			return cases.Unclear("", err.Error(), "see `parity doctor`; scripts/setup installs the Docker Engine that the lab runs")
		}
		c.Add("the Docker Engine", engine.Close)
		return cases.Passed(engine.Description())
	})
	return engine
}

// AddProvider makes the check that the subject adds its provider.
func (w *Workspace) AddProvider() {
	w.Check("", "provider", func() cases.Finding {
		if err := w.Bounded(GuestDeadline, w.Bench.AddProvider); err != nil {
			return w.Blame(err)
		}
		return cases.Passed("exit code 0")
	})
}

// Phase makes the checks of a phase (see catalogue.Phase): it brings the workspace up as o says, and opens an SSH session with the probe
// program in the guest. outside makes the checks that need no guest, of the sandbox as MicroSandbox has it; inside those that
// enter it.
func (w *Workspace) Phase(phase string, o subject.UpOptions, outside func(msb.Sandbox), inside func(*Guest)) {
	if w.Broken() {
		return
	}
	if phase == catalogue.Restarted {
		w.Check(phase, "workspace/stop", w.stop)
	}
	o.ID, o.Recreate = w.ID, phase == catalogue.Recreated
	w.Check(phase, "workspace/up", func() cases.Finding { return w.up(o) })
	if w.Provider == catalogue.External && phase == catalogue.Created {
		w.Check(phase, "runtime", w.fetched)
	}
	var box msb.Sandbox
	w.Check(phase, "identity/state", func() (f cases.Finding) {
		box, f = w.Inspect(msb.StatusRunning)
		return f
	})
	if phase != catalogue.Created {
		w.Check(phase, "identity/created-at", func() cases.Finding { return w.sameCreation(phase, box) })
	}
	w.createdAt = box.CreatedAt
	outside(box)

	var guest Guest
	defer guest.Close()
	w.Check(phase, "ssh", func() cases.Finding {
		if err := w.Bounded(GuestDeadline, func(ctx context.Context) error { return guest.Open(ctx, w.Bench, w.ID) }); err != nil {
			return cases.Unclear("", err.Error(), "without a healthy SSH session nothing can be said of the guest: see `parity contract`")
		}
		return cases.Passed("a fresh word came back")
	})
	w.Check(phase, "probe", func() cases.Finding {
		if err := w.Bounded(GuestDeadline, func(ctx context.Context) error { return w.BringProbe(ctx, &guest) }); err != nil {
			return cases.Unclear("", err.Error(), "the probe program is a static amd64 executable: see whether the guest can run one in "+path.Dir(cmp.Or(guest.Probe, sentProbe)))
		}
		return cases.Passed(guest.Probe)
	})
	var boot probe.BootID
	if phase == catalogue.Created {
		_ = w.ReadBootID(&guest, &boot) // identity/same-boot says that it could not be read
	} else {
		w.Check(phase, "identity/boot-id", func() cases.Finding { return w.otherBoot(&guest, &boot) })
	}
	inside(&guest)
	w.Check(phase, "identity/same-boot", func() cases.Finding { return w.sameBoot(&guest, boot, box.Name) })
	w.bootIDs = append(w.bootIDs, boot.BootID)
}
