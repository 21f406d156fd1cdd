package workspace

import (
	"context"
	"errors"
	"fmt"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/subject"
)

// GuestProbe is where the probe program is put in a guest.
const GuestProbe = "/tmp/parity-probe"

// Guest is a workspace that is entered over one SSH session.
type Guest struct {
	Session *subject.Session
}

// Close ends the session, if there is one.
func (g *Guest) Close() {
	if g.Session != nil {
		_ = g.Session.Close() // what it had to say was said when it was used
	}
}

// Open opens the session and shows that it answers. What it opened is there to close also when it fails.
func (g *Guest) Open(ctx context.Context, b *cases.Bench, id string) (err error) {
	if g.Session, err = b.Dial(ctx, id); err != nil {
		return err
	}
	return g.Session.Alive(ctx)
}

// Enter opens a session to another workspace of the case, until the case ends, and brings the probe program there.
func (w *Workspace) Enter(ctx context.Context, id string, c *cases.Cleanup) (*Guest, error) {
	g := &Guest{}
	c.Add("the SSH session to "+id, func(context.Context) error { g.Close(); return nil })
	if err := g.Open(ctx, w.Bench, id); err != nil {
		return nil, err
	}
	return g, w.BringProbe(ctx, g)
}

// BringProbe copies the probe program into a guest and runs it there.
func (w *Workspace) BringProbe(ctx context.Context, g *Guest) error {
	defer w.Timed("upload")()
	if err := g.Session.Upload(ctx, w.Probe, GuestProbe, 0o755); err != nil {
		return err
	}
	return g.Version(ctx)
}

// Version shows that the probe program runs in the guest.
func (g *Guest) Version(ctx context.Context) error {
	_, err := RunProbe(ctx, g, probe.VersionArgs(), probe.ParseVersion)
	return err
}

// RunProbe runs the probe program in a guest and reads its answer. That the program is missing, does not run, or prints something
// else is an error: it says nothing of what was asked.
func RunProbe[T any](ctx context.Context, g *Guest, args []string, parse func([]byte) (T, error)) (answer T, err error) {
	if g.Session == nil {
		return answer, errors.New("no SSH session")
	}
	res, err := g.Session.Run(ctx, shellescape.QuoteCommand(append([]string{GuestProbe}, args...)), nil)
	if err != nil {
		return answer, fmt.Errorf("the probe program in the guest: %w", err)
	}
	return parse(res.Stdout)
}
