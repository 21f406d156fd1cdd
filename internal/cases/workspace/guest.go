package workspace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/subject"
)

// sentProbe is where the probe program is put in a guest that does not have it.
const sentProbe = "/tmp/parity-probe"

// Guest is a workspace that is entered over one SSH session.
type Guest struct {
	Session *subject.Session
	Probe   string // where the guest has the probe program, once BringProbe has seen to it
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

// BringProbe copies the probe program into a guest that does not have it, and runs it there.
func (w *Workspace) BringProbe(ctx context.Context, g *Guest) (err error) {
	if g.Probe, err = g.find(ctx, w.Probe, images.ProbePath, sentProbe); err != nil {
		return err
	}
	if g.Probe == "" {
		if err := w.sendProbe(ctx, g); err != nil {
			return err
		}
	}
	return g.Version(ctx)
}

// sendProbe copies the probe program into a guest. It takes seconds where KVM is emulated.
func (w *Workspace) sendProbe(ctx context.Context, g *Guest) error {
	defer w.Timed("upload")()
	g.Probe = sentProbe
	return g.Session.Upload(ctx, w.Probe, sentProbe, 0o755)
}

// find gives the first of the places at which the guest has an executable file like a program of
// this machine, byte for byte; empty means none of them.
//
// The guest hashes a fresh word together with each file. A program that says the known hash of what
// the file should be gives no right answer, and nor does an answer of an earlier phase.
func (g *Guest) find(ctx context.Context, program string, places ...string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	word := rand.Text()
	script := fmt.Sprintf(`for file in %s; do { printf %%s %s; [ -x "$file" ] && cat "$file"; } 2>/dev/null | sha256sum; done`,
		shellescape.QuoteCommand(places), word)
	res, err := g.Session.Run(ctx, script, nil)
	if _, ended := errors.AsType[*subject.RunError](err); ended { // it has no sha256sum
		return "", nil
	}
	if err != nil {
		return "", err
	}
	want := fmt.Sprintf("%x ", sha256.Sum256(append([]byte(word), content...)))
	for i, line := range strings.Split(string(res.Stdout), "\n") {
		if strings.HasPrefix(line, want) && i < len(places) {
			return places[i], nil
		}
	}
	return "", nil
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
	res, err := g.Session.Run(ctx, shellescape.QuoteCommand(append([]string{g.Probe}, args...)), nil)
	if err != nil {
		return answer, fmt.Errorf("the probe program in the guest: %w", err)
	}
	return parse(res.Stdout)
}
