package workspace

import (
	"context"
	"fmt"
	"strings"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
)

func (w *Workspace) sameCreation(phase string, box msb.Sandbox) cases.Finding {
	seen := fmt.Sprintf("created at %s, and in the phase before at %s", box.CreatedAt.Format(time.RFC3339Nano), w.createdAt.Format(time.RFC3339Nano))
	if box.CreatedAt.IsZero() || w.createdAt.IsZero() {
		return cases.Unclear("a creation time", seen, "the answer of msb inspect has another shape: see facts of that MicroSandbox version")
	}
	same := box.CreatedAt.Equal(w.createdAt)
	w.Observe(phase, "identity", "%s", map[bool]string{true: "the same sandbox", false: "another sandbox"}[same])
	if same != (phase == catalogue.Restarted) {
		return cases.Broken("", seen, "the subject "+map[bool]string{true: "restarted a workspace that it was to recreate", false: "recreated a workspace that it was to restart"}[same])
	}
	return cases.Passed(seen)
}

// ReadBootID reads the boot ID of a guest, unless the case is broken.
func (w *Workspace) ReadBootID(g *Guest, into *probe.BootID) error {
	if w.Broken() {
		return nil
	}
	return w.Bounded(GuestDeadline, func(ctx context.Context) (err error) {
		*into, err = RunProbe(ctx, g, probe.BootIDArgs(), probe.ParseBootID)
		return err
	})
}

func (w *Workspace) otherBoot(g *Guest, boot *probe.BootID) cases.Finding {
	if err := w.ReadBootID(g, boot); err != nil {
		return cases.Unclear("", err.Error(), NextGuest)
	}
	for i, earlier := range w.bootIDs {
		if boot.BootID == earlier {
			return cases.Broken("", fmt.Sprintf("boot ID %s, as in phase %d", boot.BootID, i+1), "the guest was not booted anew")
		}
	}
	return cases.Passed("boot ID " + boot.BootID)
}

// sameBoot shows that what the phase saw is of one boot of one guest: the boot that began it, and the guest of the sandbox that
// MicroSandbox was asked about.
func (w *Workspace) sameBoot(g *Guest, atStart probe.BootID, sandbox string) cases.Finding {
	var now probe.BootID
	if err := w.ReadBootID(g, &now); err != nil {
		return cases.Unclear("", err.Error(), NextGuest)
	}
	if atStart.BootID == "" {
		return cases.Unclear("the boot ID of the phase's start", "it could not be read then", NextGuest)
	}
	if now.BootID != atStart.BootID {
		return cases.Broken("boot ID "+atStart.BootID, "boot ID "+now.BootID, "the guest was booted during the phase: what its probes saw is of two boots")
	}
	seen := fmt.Sprintf("boot ID %s in %s", now.BootID, now.Hostname)
	there, err := w.BootOf(sandbox)
	if err != nil {
		return cases.Unclear("", err.Error(), "MicroSandbox's own exec could not be asked: run it again")
	}
	if there != now.BootID {
		return cases.Broken(fmt.Sprintf("boot ID %s, which MicroSandbox's own exec sees in %s", there, sandbox), seen,
			"the subject's SSH enters another guest than the one that it was asked for")
	}
	if w.Bench.Here != nil { // the sandboxes are on another machine
		return cases.Passed(seen)
	}
	others, err := elsewhere(w.MSB, w.Bench.MSB.Home)
	if err != nil {
		return cases.Unclear("", err.Error(), "the processes of the lab could not be looked at: run it again")
	}
	if len(others) > 0 {
		return cases.Broken("sandboxes of the case's own store only", strings.Join(others, "; "),
			"MicroSandbox is asked about the case's store: what runs in another is not what was judged")
	}
	return cases.Passed(seen)
}

// BootOf gives the boot ID of a sandbox by MicroSandbox's own exec, to hold against the one that was read over SSH. A guest's host name
// would say nothing: who has the guest can change it, and another store can have a sandbox of the same name.
func (w *Workspace) BootOf(sandbox string) (id string, err error) {
	var own proc.Result
	err = w.Bounded(GuestDeadline, func(ctx context.Context) (err error) {
		own, err = w.Bench.MSB.Exec(ctx, sandbox, []string{"cat", "/proc/sys/kernel/random/boot_id"}, nil)
		return err
	})
	return strings.TrimSpace(string(own.Stdout)), err
}

// NextGuest is what to do when the guest could not be asked.
const NextGuest = "the guest could not be asked: run it again, and see the check ssh"
