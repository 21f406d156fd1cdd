package egress

import (
	"context"
	"errors"
	"fmt"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/subject"
)

// guestProbe is where the probe program is put in a guest.
const guestProbe = "/tmp/parity-probe"

// guest is a workspace that is entered over one SSH session.
type guest struct {
	session *subject.Session
}

func (g *guest) close() {
	if g.session != nil {
		_ = g.session.Close() // what it had to say was said when it was used
	}
}

// open opens the session and shows that it answers. What it opened is there to close also when it fails.
func (g *guest) open(ctx context.Context, cli subject.CLI, id string) (err error) {
	if g.session, err = cli.Dial(ctx, id); err != nil {
		return err
	}
	return g.session.Alive(ctx)
}

// enter opens a session to a workspace, until the case ends, and brings the probe program there.
func (s *scenario) enter(ctx context.Context, id string, c *cases.Cleanup) (*guest, error) {
	g := &guest{}
	c.Add("the SSH session to "+id, func(context.Context) error { g.close(); return nil })
	if err := g.open(ctx, s.bench.Subject, id); err != nil {
		return nil, err
	}
	return g, s.bringProbe(ctx, g)
}

// bringProbe copies the probe program into a guest and runs it there.
func (s *scenario) bringProbe(ctx context.Context, g *guest) error {
	defer s.Timed("upload")()
	if err := g.session.Upload(ctx, s.Probe, guestProbe, 0o755); err != nil {
		return err
	}
	return g.version(ctx)
}

// version shows that the probe program runs in the guest.
func (g *guest) version(ctx context.Context) error {
	_, err := runProbe(ctx, g, probe.VersionArgs(), probe.ParseVersion)
	return err
}

// dial runs the probe program in a guest against the endpoint.
func (s *scenario) dial(g *guest, nonce string) (answer probe.TCP, err error) {
	err = s.bounded(guestDeadline, func(ctx context.Context) (err error) {
		answer, err = runProbe(ctx, g, probe.TCPArgs(s.endpoint.Addr(), nonce, s.Within(probeTimeout)), probe.ParseTCP)
		return err
	})
	return answer, err
}

// runProbe runs the probe program in a guest and reads its answer. That the program is missing, does not run, or prints something
// else is an error: it says nothing of the network.
func runProbe[T any](ctx context.Context, g *guest, args []string, parse func([]byte) (T, error)) (answer T, err error) {
	if g.session == nil {
		return answer, errors.New("no SSH session")
	}
	res, err := g.session.Run(ctx, shellescape.QuoteCommand(append([]string{guestProbe}, args...)), nil)
	if err != nil {
		return answer, fmt.Errorf("the probe program in the guest: %w", err)
	}
	return parse(res.Stdout)
}
