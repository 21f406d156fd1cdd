package egress

import (
	"context"

	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/probe"
)

// dial runs the probe program in a guest against the endpoint.
func (s *scenario) dial(g *workspace.Guest, nonce string) (answer probe.TCP, err error) {
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		answer, err = workspace.RunProbe(ctx, g, probe.TCPArgs(s.endpoint.Addr(), nonce, s.Within(probeTimeout)), probe.ParseTCP)
		return err
	})
	return answer, err
}
