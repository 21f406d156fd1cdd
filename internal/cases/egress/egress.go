// Package egress is the scenario egress: public TCP works by default; denied TCP is refused, provably, also after a restart and a
// recreation.
package egress

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/fixtures/ways"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// Scenario is the scenario's name in the catalogue.
const Scenario = "egress"

// The names of the two cases in the catalogue.
const (
	casePublic = "public"
	caseDeny   = "deny"
)

// probeTimeout is the probe program's own deadline.
const probeTimeout = 20 * time.Second

// The names of the workspaces.
const (
	targetID  = "target"
	controlID = "control"
)

// scenario is one case under way.
type scenario struct {
	*workspace.Workspace // the target
	deny                 bool

	endpoint *endpoint.Endpoint
	ways     *ways.Ways
	control  *workspace.Guest
	expected map[string]bool // the nonces whose receipts the endpoint must hold, once each

	swept map[string]bool // the nonces of sweeps that may arrive by any other way

	forbidden map[string]bool // the nonces of denied requests: a receipt of one is a leak, whenever it comes
	leaked    bool            // a leak is on record

	marker string // on the target's disk
}

// Run runs one case of the scenario.
func Run(ctx context.Context, env cases.Env, plan catalogue.Case) report.Case {
	return env.Case(ctx, plan, func(ctx context.Context, r *cases.Recorder, dir string, c *cases.Cleanup) {
		s := &scenario{
			Workspace: &workspace.Workspace{Recorder: r, Env: env, Ctx: ctx, ID: targetID, Provider: plan.Provider},
			deny:      plan.Name == caseDeny, expected: map[string]bool{}, swept: map[string]bool{}, forbidden: map[string]bool{}, marker: cases.Nonce("marker"),
		}
		s.prelude(dir, c)
		for _, phase := range []string{catalogue.Created, catalogue.Restarted, catalogue.Recreated} {
			s.phase(phase)
		}
		s.end()
	})
}

// prelude makes the fixtures and, for a denied target, the control workspace.
func (s *scenario) prelude(dir string, c *cases.Cleanup) {
	l := s.MakeLink(c, ways.Addresses()...)
	s.Check("", "fixture/endpoint", func() cases.Finding {
		e, err := endpoint.Start(netip.AddrPortFrom(l.Address.Addr(), 0))
		if err != nil {
			return cases.Unclear("", err.Error(), "see whether something else took the address")
		}
		s.endpoint = e
		c.Add("the endpoint", func(context.Context) error { return e.Close() })
		if err := s.checkEndpoint(); err != nil {
			return cases.Unclear("", err.Error(), "run it again; the endpoint is the test's own")
		}
		return cases.Passed(e.Addr().String())
	})
	s.Check("", "fixture/ways", func() cases.Finding {
		w, err := ways.Start(l.Address.Addr())
		if err != nil {
			return cases.Unclear("", err.Error(), "the lab's kernel must have IPv6, and its /etc/resolv.conf must be a file; see `parity doctor`")
		}
		s.ways = w
		c.Add("the other ways out", func(context.Context) error { return w.Close() })
		return cases.Passed(report.Count(len(w.Targets()), "way"))
	})
	s.Check("", "fixture/image", func() cases.Finding {
		b, err := cases.NewBench(s.Env, s.Provider, s.Recorder, dir, cases.Surroundings{}, c)
		if err == nil {
			err = b.ServeImage(s.Ctx)
		}
		if err != nil {
			return cases.Unclear("", err.Error(), "see `parity doctor`, and the free space of the lab's scratch disk (--disk)")
		}
		s.Bench, s.Intact = b, b.ImageServed
		return cases.Passed(b.Image)
	})
	s.AddProvider()
	if !s.deny {
		return
	}
	s.Check("", "workspace/control", func() cases.Finding {
		g, err := s.newControl(c)
		if err != nil {
			return cases.Unclear("", err.Error(), "without a healthy control workspace a refusal proves nothing: see why it did not come up")
		}
		s.control = g
		return cases.Passed("it came up, answers over SSH and runs the probe program")
	})
}

// newControl makes the control workspace: the default policy, created once, never restarted or recreated.
func (s *scenario) newControl(c *cases.Cleanup) (*workspace.Guest, error) {
	ctx, cancel := context.WithTimeout(s.Ctx, s.Within(workspace.UpDeadline))
	defer cancel()
	if _, err := s.Bench.Up(ctx, subject.UpOptions{ID: controlID}); err != nil {
		return nil, err
	}
	var name string
	err := cases.Bounded(ctx, s.Within(workspace.GuestDeadline), func(ctx context.Context) (err error) {
		_, name, err = s.Bench.Sandbox(ctx, controlID)
		return err
	})
	if err != nil {
		return nil, err
	}
	box, err := s.Bench.MSB.Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, f := judgePolicy(box, false); f.Verdict != report.Pass {
		return nil, fmt.Errorf("its policy is not the default one: %s", f.Seen)
	}
	g, err := s.Enter(ctx, controlID, c)
	if err != nil {
		return nil, err
	}
	var boot probe.BootID
	if err := s.ReadBootID(g, &boot); err != nil {
		return nil, err
	}
	if there, err := s.BootOf(box.Name); err != nil {
		return nil, err
	} else if there != boot.BootID {
		return nil, fmt.Errorf("SSH enters another guest (boot ID %s in %s) than the sandbox %s (boot ID %s)", boot.BootID, boot.Hostname, box.Name, there)
	}
	return g, nil
}

// phase runs the checks of one phase.
func (s *scenario) phase(phase string) {
	if s.Broken() { // there may be no bench
		return
	}
	var o subject.UpOptions
	if s.deny && phase != catalogue.Restarted { // a restart must keep what the workspace was made with, without being told again
		o.ProviderOptions = s.Bench.Subject.Deny()
	}
	s.Phase(phase, o, func(box msb.Sandbox) {
		s.Check(phase, "policy", func() cases.Finding {
			policy, f := judgePolicy(box, s.deny)
			s.Observe(phase, "policy", "%s", policy)
			return f
		})
	}, func(target *workspace.Guest) {
		s.Check(phase, "identity/disk", func() cases.Finding { return s.disk(phase, target) })
		if s.deny {
			s.denied(phase, target)
		} else {
			s.public(phase, target)
		}
	})
}

// public is the proof that public TCP works by default.
func (s *scenario) public(phase string, target *workspace.Guest) {
	s.Check(phase, "host-probe", s.probeHost)
	s.Check(phase, "public", func() cases.Finding {
		nonce := s.expect("target")
		answer, err := s.dial(target, nonce)
		f := s.judgePublic(phase, answer, err, nonce)
		s.Observe(phase, "probe", "%s", outcome(answer, err))
		if f.Verdict != report.Fail {
			return f
		}
		// A failure is the subject's only if the endpoint can still be reached.
		if err := s.checkEndpoint(); err != nil {
			return cases.Unclear("", f.Seen+"; and the endpoint is dead: "+err.Error(), "run it again; the endpoint is the test's own")
		}
		if host := s.probeHost(); host.Verdict != report.Pass {
			return cases.Unclear("", f.Seen+"; and the host does not reach the endpoint: "+host.Seen, "run it again; the link is the test's own")
		}
		return f
	})
	s.Check(phase, "sweep", func() cases.Finding { return s.lookAround(phase, target) })
}

func (s *scenario) judgePublic(phase string, answer probe.TCP, err error, nonce string) cases.Finding {
	if err != nil {
		return cases.Unclear("", err.Error(), workspace.NextGuest)
	}
	if !s.reached(answer, nonce) {
		return cases.Broken("", describe(answer), "the workspace has no public egress; see its policy, and the lab's network")
	}
	receipts := 0
	for _, r := range s.endpoint.Receipts() {
		if r.Nonce == nonce {
			receipts++
			s.Observe(phase, "peer", "%s", r.Peer.Addr())
		}
	}
	if receipts != 1 {
		return cases.Unclear("", fmt.Sprintf("the right body, and %d receipts of its nonce", receipts), "the endpoint lost or doubled a receipt: it is the test's own")
	}
	return cases.Passed("the endpoint's body, and one receipt")
}

// end makes the last check, on the receipts. A denied request that arrived late stands by itself: it is looked for also when the case
// broke before or its time is over. The endpoint is open until then, as clean-ups come after it.
func (s *scenario) end() {
	if s.Broken() && (len(s.forbidden) == 0 || s.leaked) {
		return // nothing was denied yet, or a leak is on record already
	}
	f := s.receipts()
	if f.Verdict == report.Fail {
		s.Override("", "receipts", f)
		return
	}
	s.Check("", "receipts", func() cases.Finding { return f })
}

// lateDeadline bounds the last look for a denied request when the case's own time is over.
const lateDeadline = 5 * time.Second

// receipts holds the endpoint's receipts against what the case expects.
func (s *scenario) receipts() cases.Finding {
	if f := s.late(); f.Verdict == report.Fail {
		return f
	}
	// Not bounded by the case's time, which may be over: a late request is evidence all the same.
	deadline := s.Within(settleDeadline)
	if s.Ctx.Err() != nil {
		deadline = lateDeadline
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Ctx), deadline)
	defer cancel()
	settled := s.endpoint.Settle(ctx)
	if f := s.late(); f.Verdict == report.Fail {
		return f
	}
	missing := len(s.expected)
	seen := map[string]int{}
	var strangers []string
	for _, r := range s.endpoint.Receipts() {
		switch {
		case r.Self:
		case s.expected[r.Nonce]:
			if seen[r.Nonce]++; seen[r.Nonce] == 1 {
				missing--
			} else {
				strangers = append(strangers, "a second one of "+r.Nonce)
			}
		default:
			strangers = append(strangers, describeReceipt(r))
		}
	}
	if settled != nil {
		return cases.Unclear("", settled.Error(), "see who dialled the endpoint and sent nothing")
	}
	if missing > 0 || len(strangers) > 0 {
		return cases.Unclear("", fmt.Sprintf("missing of those expected: %d; not expected: %s", missing, orNone(strangers)),
			"something else dialled the endpoint, or it lost a receipt: the run's evidence is not sound")
	}
	return cases.Passed(report.Count(len(s.expected), "receipt") + ", each expected")
}

// late looks for a denied request among all receipts.
func (s *scenario) late() cases.Finding {
	for _, r := range s.endpoint.Receipts() {
		if s.forbidden[r.Nonce] {
			return cases.Broken("no receipt of a denied request", "a denied request arrived late: "+describeReceipt(r), nextLeak)
		}
	}
	if f := s.leakedBy(s.ways.Since(nil), false); f.Verdict == report.Fail {
		f.Seen = "late: " + f.Seen
		return f
	}
	return cases.Passed("none")
}

// expect gives a fresh nonce whose receipt the endpoint must hold at the end.
func (s *scenario) expect(whose string) string {
	nonce := cases.Nonce(whose)
	s.expected[nonce] = true
	return nonce
}

// settleDeadline bounds the wait for the endpoint to have read what was sent to it.
const settleDeadline = 40 * time.Second

func (s *scenario) checkEndpoint() error { return s.Bounded(workspace.GuestDeadline, s.endpoint.Check) }

// probeHost runs the probe program on the lab's host: the host must reach the endpoint, and the end of each other way out.
func (s *scenario) probeHost() cases.Finding {
	if f := s.dialFromHost(); f.Verdict != report.Pass {
		return f
	}
	return s.sweepFromHost()
}

func (s *scenario) dialFromHost() cases.Finding {
	nonce := s.expect("host")
	var answer probe.TCP
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error {
		argv := append([]string{s.Probe}, probe.TCPArgs(s.endpoint.Addr(), nonce, s.Within(probeTimeout))...)
		res, err := proc.Run(ctx, proc.Cmd{Argv: argv})
		if err != nil {
			return err
		}
		answer, err = probe.ParseTCP(res.Stdout)
		return err
	})
	return s.judgeBracket(answer, err, nonce, "the host does not reach the endpoint: the lab's network is broken, not the workspace's")
}

// judgeBracket judges a probe that must reach the endpoint for the test to be able to tell anything.
func (s *scenario) judgeBracket(answer probe.TCP, err error, nonce, next string) cases.Finding {
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	if !s.reached(answer, nonce) {
		return cases.Unclear("", describe(answer), next)
	}
	return cases.Passed("the endpoint's body")
}

// reached tells whether a probe got the body that only the endpoint can know.
func (s *scenario) reached(answer probe.TCP, nonce string) bool {
	return answer.Outcome == probe.OutcomeBody && answer.Body == s.endpoint.Body(nonce)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, "; ")
}

func describeReceipt(r endpoint.Receipt) string {
	what := "no request"
	if r.Request != "" {
		what = r.Request
	}
	return fmt.Sprintf("a connection from %s with %s", r.Peer, what)
}

// describe says what a probe saw.
func describe(t probe.TCP) string {
	s := string(t.Outcome)
	if t.Errno != "" {
		s += " (" + t.Errno + ")"
	}
	s += fmt.Sprintf(" at %s after %d ms", t.Stage, t.ElapsedMillis)
	if t.Status != 0 {
		s += fmt.Sprintf(", HTTP status %d", t.Status)
	}
	if t.Body != "" {
		s += fmt.Sprintf(", body %.100q", t.Body)
	}
	if t.Detail != "" {
		s += ", " + t.Detail
	}
	return s
}

// outcome is a probe's outcome as an observation.
func outcome(t probe.TCP, err error) string {
	if err != nil {
		return "no answer"
	}
	return string(t.Outcome)
}
