package egress

import (
	"context"
	"fmt"

	"dagger/parity/fixtures/ways"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/report"
)

// denied is the proof that denied TCP is refused. A refusal proves something only between brackets: before and after it the
// endpoint, the host, the control workspace, the SSH session and the probe program are shown to work.
func (s *scenario) denied(phase string, target *workspace.Guest) {
	if s.Broken() {
		return
	}
	mark, wayMark := s.endpoint.Mark(), s.ways.Mark()
	s.Check(phase, "endpoint-before", s.bracketEndpoint)
	s.Check(phase, "host-probe-before", s.probeHost)
	s.Check(phase, "control-probe-before", s.probeControl)
	s.Check(phase, "ssh-before", func() cases.Finding { return s.alive(target) })
	s.Check(phase, "probe-runs", func() cases.Finding {
		if err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error { return target.Version(ctx) }); err != nil {
			return cases.Unclear("", err.Error(), "the probe program is gone from the guest or does not run there any more")
		}
		return cases.Passed("it reports its version")
	})
	if s.Broken() {
		return
	}
	nonce := cases.Nonce("target")
	s.forbidden[nonce] = true
	answer, err := s.dial(target, nonce)
	s.Observe(phase, "probe", "%s", outcome(answer, err))
	swept, sweepErr := s.sweep(target, nonce, s.silence(), func(catalogue.Way) bool { return true })
	s.observe(phase, swept)
	s.Check(phase, "ssh-after", func() cases.Finding { return s.alive(target) })
	s.Check(phase, "control-probe-after", s.probeControl)
	s.Check(phase, "host-probe-after", s.probeHost)
	s.Check(phase, "endpoint-after", s.bracketEndpoint)

	leak := s.leak(mark, wayMark)
	if leak.Verdict == report.Fail {
		// A leak is a leak, though a bracket broke or the case's time is over.
		s.leaked = true
		s.Override(phase, "no-leak", leak)
		return
	}
	s.Check(phase, "no-leak", func() cases.Finding { return leak })
	s.Check(phase, "deny", func() cases.Finding { return judgeDeny(answer, err) })
	s.Check(phase, "sweep", func() cases.Finding { return judgeSweep(swept, sweepErr) })
}

// judgeDeny judges the denied probe between intact brackets, when the endpoint accepted nothing.
func judgeDeny(answer probe.TCP, err error) cases.Finding {
	if err != nil {
		return cases.Unclear("", err.Error(), "the denied probe gave no answer that can be read: see whether the probe program is intact in the guest")
	}
	switch answer.Outcome {
	case probe.OutcomeRefused:
		return cases.Passed("refused: " + describe(answer))
	case probe.OutcomeResetConnecting:
		return cases.Passed("reset while connecting: " + describe(answer))
	case probe.OutcomeReset:
		// MicroSandbox answers the handshake itself, and resets for an allowed but dead port too. This one is alive: host and
		// control reached it just before and after, and it accepted nothing in between.
		return cases.Passed("reset after the connection was established, and nothing arrived: " + describe(answer))
	case probe.OutcomeTimeout, probe.OutcomeTimeoutConnecting:
		return cases.Broken("", describe(answer), "packets that are dropped are not a refusal: programs hang instead of failing")
	case probe.OutcomeHTTP, probe.OutcomeBody, probe.OutcomeGarbage:
		return cases.Broken("", describe(answer), "something that is not the endpoint answered: a proxy's answer is not a refusal")
	}
	return cases.Broken("", describe(answer), "this is not a refusal")
}

// leak looks at what the endpoint accepted since the mark: only the host's, the control's and its own connections may be there. A
// request of the target's is a leak. So is a connection without a nonce, if the brackets are intact: else it may be that of a
// host's or control's probe which came no further.
func (s *scenario) leak(mark int, wayMark ways.Mark) cases.Finding {
	// A connection that is still open and has sent nothing by then counts as one without a nonce.
	_ = s.Bounded(settleDeadline, s.endpoint.Settle)
	_ = s.Bounded(settleDeadline, s.ways.Settle)
	intact := !s.Broken() && s.Ctx.Err() == nil
	var unclear []string
	for _, r := range s.endpoint.Since(mark) {
		switch {
		case r.Self || s.expected[r.Nonce]:
		case s.forbidden[r.Nonce]:
			return cases.Broken("", "the target's request arrived: "+describeReceipt(r), nextLeak)
		case r.Nonce == "" && intact:
			return cases.Broken("", describeReceipt(r), "a connection without a nonce can only be the target's: "+nextLeak)
		default:
			unclear = append(unclear, describeReceipt(r))
		}
	}
	if f := s.leakedBy(s.ways.Since(wayMark), intact); f.Verdict != report.Pass {
		return f
	}
	if len(unclear) > 0 {
		return cases.Unclear("", orNone(unclear), "something else dialled the endpoint: the run's evidence is not sound")
	}
	return cases.Passed("nothing else")
}

const nextLeak = "egress is not denied, whatever the client saw"

func (s *scenario) bracketEndpoint() cases.Finding {
	if err := s.checkEndpoint(); err != nil {
		return cases.Unclear("", err.Error(), "the endpoint is the test's own: a refusal by a dead endpoint proves nothing; run it again")
	}
	return cases.Passed("healthy")
}

func (s *scenario) alive(g *workspace.Guest) cases.Finding {
	if err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error { return g.Session.Alive(ctx) }); err != nil {
		return cases.Unclear("", err.Error(), "a dead SSH session proves nothing of the network: see why it died")
	}
	return cases.Passed("a fresh word came back")
}

// probeControl runs the probe program in the control workspace: it must reach the endpoint, and the ends of those other ways out that the
// default policy lets through.
func (s *scenario) probeControl() cases.Finding {
	next := fmt.Sprintf("the control workspace does not get through: a refusal to %s proves nothing", targetID)
	nonce := s.expect("control")
	answer, err := s.dial(s.control, nonce)
	if f := s.judgeBracket(answer, err, nonce, next); f.Verdict != report.Pass {
		return f
	}
	nonce = s.expectSweep("control")
	swept, err := s.sweep(s.control, nonce, probeTimeout, func(w catalogue.Way) bool { return w.Open })
	return s.judgeSweepBracket(swept, err, nonce, next)
}
