package egress

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"dagger/parity/fixtures/ways"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
)

// silence is how long the probe program waits for an answer to what has no connection, where none is expected. Elsewhere it
// waits as long as for a connection. An answer that comes later was sent, so what it answers has left a receipt. The stand-in
// has no microVM between the guest and the listener.
func (s *scenario) silence() time.Duration {
	if s.StandIn {
		return 500 * time.Millisecond
	}
	return 2 * time.Second
}

// sweep tries the ways that are wanted side by side, from a guest.
func (s *scenario) sweep(g *workspace.Guest, nonce string, silence time.Duration, wanted func(catalogue.Way) bool) (swept probe.Sweep, err error) {
	targets := chosen(s.ways.GuestTargets(), wanted)
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		swept, err = workspace.RunProbe(ctx, g, probe.SweepArgs(targets, nonce, s.Within(probeTimeout), s.Within(silence)), probe.ParseSweep)
		return err
	})
	return swept, complete(swept, err, targets)
}

// sweepFromHost tries every way from the lab's host, where each must be open.
func (s *scenario) sweepFromHost() cases.Finding {
	nonce, targets := s.expectSweep("host"), s.ways.Targets()
	var swept probe.Sweep
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error {
		argv := append([]string{s.Probe}, probe.SweepArgs(targets, nonce, s.Within(probeTimeout), s.Within(probeTimeout))...)
		res, err := proc.Run(ctx, proc.Cmd{Argv: argv})
		if err != nil {
			return err
		}
		swept, err = probe.ParseSweep(res.Stdout)
		return err
	})
	return s.judgeSweepBracket(swept, complete(swept, err, targets), nonce, "the host does not get through: the lab's network is broken, not the workspace's")
}

// chosen gives the targets whose ways are wanted.
func chosen(targets []probe.Target, wanted func(catalogue.Way) bool) []probe.Target {
	return slices.DeleteFunc(targets, func(t probe.Target) bool {
		return !slices.ContainsFunc(catalogue.Ways, func(w catalogue.Way) bool { return w.Name == t.Name && wanted(w) })
	})
}

// complete makes it an error that a sweep has not all its targets in their order.
func complete(swept probe.Sweep, err error, targets []probe.Target) error {
	same := slices.EqualFunc(swept.Tries, targets, func(t probe.Try, of probe.Target) bool { return t.Name == of.Name })
	if err == nil && !same {
		return fmt.Errorf("the probe program was asked for %d ways out, and reports of others: %d", len(targets), len(swept.Tries))
	}
	return err
}

// expectSweep gives a fresh nonce for a sweep that may arrive anywhere.
func (s *scenario) expectSweep(whose string) string {
	nonce := cases.Nonce(whose)
	s.swept[nonce] = true
	return nonce
}

// judgeSweepBracket judges a sweep that must get through for the test to be able to tell anything.
func (s *scenario) judgeSweepBracket(swept probe.Sweep, err error, nonce, next string) cases.Finding {
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	var lost []string
	for _, t := range swept.Tries {
		if t.Outcome != probe.OutcomeBody || t.Body != s.ways.Answer(t.Name, nonce) {
			lost = append(lost, describeTry(t))
		}
	}
	if len(lost) > 0 {
		return cases.Unclear("an answer by each way", strings.Join(lost, "; "), next)
	}
	return cases.Passed("the endpoint's body, and an answer by each of " + report.Count(len(swept.Tries), "other way"))
}

// lookAround puts on record what is open by the default policy. It judges nothing of that. A way that is open by that policy and
// gave no answer at first is tried again, for longer: what is on record is compared with the other provider's.
func (s *scenario) lookAround(phase string, target *workspace.Guest) cases.Finding {
	swept, err := s.sweep(target, s.expectSweep("target"), s.silence(), func(catalogue.Way) bool { return true })
	late := func(w catalogue.Way) bool {
		return w.Open && slices.ContainsFunc(swept.Tries, func(t probe.Try) bool { return t.Name == w.Name && t.Outcome == probe.OutcomeSilence })
	}
	if err == nil && slices.ContainsFunc(catalogue.Ways, late) {
		var again probe.Sweep
		again, err = s.sweep(target, s.expectSweep("target"), probeTimeout, late)
		for i, first := range swept.Tries {
			if at := slices.IndexFunc(again.Tries, func(t probe.Try) bool { return t.Name == first.Name }); at >= 0 {
				swept.Tries[i] = again.Tries[at]
			}
		}
	}
	if err != nil {
		return cases.Unclear("", err.Error(), workspace.NextGuest)
	}
	s.observe(phase, swept)
	return cases.Passed(describeSweep(swept))
}

// observe puts the outcome of each way on record.
func (s *scenario) observe(phase string, swept probe.Sweep) {
	for _, t := range swept.Tries {
		s.Observe(phase, "sweep/"+t.Name, "%s", t.Outcome)
	}
}

// denials are the outcomes that deny, by what was sent. Silence proves something only between brackets, as a refusal does.
var denials = map[bool][]probe.Outcome{
	true:  {probe.OutcomeRefused, probe.OutcomeResetConnecting, probe.OutcomeReset},
	false: {probe.OutcomeSilence, probe.OutcomeRefused, probe.OutcomeNoName, probe.OutcomeDNSError},
}

// judgeSweep judges the denied sweep between intact brackets, when nothing arrived by any way.
func judgeSweep(swept probe.Sweep, err error) cases.Finding {
	if err != nil {
		return cases.Unclear("", err.Error(), "the denied sweep gave no answer that can be read: see whether the probe program is intact in the guest")
	}
	var odd []string
	for _, t := range swept.Tries {
		if !denies(t) {
			odd = append(odd, describeTry(t))
		}
	}
	if len(odd) > 0 {
		return cases.Broken("TCP is refused or reset; of all else nothing comes back but that a name does not exist", strings.Join(odd, "; "),
			"this is not a refusal, though nothing arrived: something else answered, or packets are dropped")
	}
	return cases.Passed(describeSweep(swept))
}

// denies tells whether what became of a way is a denial of it, given that nothing arrived.
func denies(t probe.Try) bool {
	i := slices.IndexFunc(catalogue.Ways, func(w catalogue.Way) bool { return w.Name == t.Name })
	if i >= 0 && catalogue.Ways[i].Taken && (t.Outcome == probe.OutcomeTimeout || t.Outcome == probe.OutcomeEOF) {
		return true
	}
	return slices.Contains(denials[strings.HasPrefix(t.Name, "tcp-")], t.Outcome)
}

// leakedBy looks at what arrived by the other ways: only the host's and the control's may be there. With intact brackets, a connection
// without a nonce is the target's.
func (s *scenario) leakedBy(receipts []ways.Receipt, intact bool) cases.Finding {
	var unclear []string
	for _, r := range receipts {
		seen := fmt.Sprintf("by the way %s, from %s with %s", r.Way, r.Peer, r.What)
		switch {
		case s.swept[r.Nonce]:
		case s.forbidden[r.Nonce]:
			return cases.Broken("", "the target's arrived "+seen, nextLeak)
		case r.Nonce == "" && intact:
			return cases.Broken("", seen, "a connection without a nonce can only be the target's: "+nextLeak)
		default:
			unclear = append(unclear, seen)
		}
	}
	if len(unclear) > 0 {
		return cases.Unclear("", strings.Join(unclear, "; "), "something else dialled a listener of the test's own: the run's evidence is not sound")
	}
	return cases.Passed("nothing else")
}

func describeSweep(swept probe.Sweep) string {
	var list []string
	for _, t := range swept.Tries {
		list = append(list, t.Name+" "+string(t.Outcome))
	}
	return strings.Join(list, ", ")
}

// describeTry says what became of one way.
func describeTry(t probe.Try) string {
	text := fmt.Sprintf("%s: %s", t.Name, t.Outcome)
	if t.Errno != "" {
		text += " (" + t.Errno + ")"
	}
	text += fmt.Sprintf(" after %d ms", t.ElapsedMillis)
	if t.Body != "" {
		text += fmt.Sprintf(", body %.100q", t.Body)
	}
	if t.Detail != "" {
		text += ", " + t.Detail
	}
	return text
}
