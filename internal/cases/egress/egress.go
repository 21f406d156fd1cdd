// Package egress is the scenario egress: public TCP works by default; denied TCP is refused, provably, also after a restart and a
// recreation.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/fixtures/link"
	"dagger/parity/internal/cases"
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

// Deadlines of single steps, for an emulated lab on a busy machine. Each is far above what was measured.
const (
	upDeadline    = 5 * time.Minute
	stopDeadline  = 2 * time.Minute
	guestDeadline = time.Minute
	probeTimeout  = 20 * time.Second // the probe program's own
)

// The names of the workspaces.
const (
	targetID  = "target"
	controlID = "control"
)

// scenario is one case under way.
type scenario struct {
	*cases.Recorder
	cases.Env
	ctx  context.Context
	deny bool

	provider string // builtin or external

	bench    *cases.Bench // the case's subject, msb and image
	endpoint *endpoint.Endpoint
	control  *guest
	expected map[string]bool // the nonces whose receipts the endpoint must hold, once each

	forbidden map[string]bool // the nonces of denied requests: a receipt of one is a leak, whenever it comes
	leaked    bool            // a leak is on record

	// What the earlier phases saw of the target.
	createdAt time.Time
	bootIDs   []string
	marker    string
}

// Run runs one case of the scenario.
func Run(ctx context.Context, env cases.Env, plan catalogue.Case) report.Case {
	return env.Case(ctx, plan, func(ctx context.Context, r *cases.Recorder, dir string, c *cases.Cleanup) {
		s := &scenario{
			Recorder: r, Env: env, ctx: ctx, deny: plan.Name == caseDeny, provider: plan.Provider,
			expected: map[string]bool{}, forbidden: map[string]bool{}, marker: cases.Nonce("marker"),
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
	var l *link.Link
	s.Check("", "fixture/link", func() cases.Finding {
		var err error
		if l, err = cases.NewLink(s.RunID, c); err != nil {
			return cases.Unclear("", err.Error(), "the lab's kernel must have the module dummy or bridge; see `parity doctor`")
		}
		return cases.Passed(fmt.Sprintf("%s %s, %s", l.Kind, l.Name, l.Address))
	})
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
	s.Check("", "fixture/image", func() cases.Finding {
		b, err := cases.NewBench(s.ctx, s.Env, s.provider, s.Recorder, dir, c)
		if err != nil {
			return cases.Unclear("", err.Error(), "see `parity doctor`, and the free space of the lab's scratch disk (--disk)")
		}
		s.bench = b
		return cases.Passed(b.Image)
	})
	s.Check("", "provider", func() cases.Finding {
		if err := s.bounded(guestDeadline, s.bench.AddProvider); err != nil {
			return s.broken(err)
		}
		return cases.Passed("exit code 0")
	})
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
func (s *scenario) newControl(c *cases.Cleanup) (*guest, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.Within(upDeadline))
	defer cancel()
	if _, err := s.bench.Up(ctx, subject.UpOptions{ID: controlID}); err != nil {
		return nil, err
	}
	w, err := s.bench.Subject.Find(ctx, controlID)
	if err != nil {
		return nil, err
	}
	box, err := s.bench.MSB.Inspect(ctx, subject.VMName(w.UID))
	if err != nil {
		return nil, err
	}
	if _, f := judgePolicy(box, false, s.endpoint.Addr()); f.Verdict != report.Pass {
		return nil, fmt.Errorf("its policy is not the default one: %s", f.Seen)
	}
	g, err := s.enter(ctx, controlID, c)
	if err != nil {
		return nil, err
	}
	var boot probe.BootID
	if err := s.readBootID(g, &boot); err != nil {
		return nil, err
	}
	if there, err := s.bootOf(box.Name, boot); err != nil {
		return nil, err
	} else if there != boot.BootID {
		return nil, fmt.Errorf("SSH enters another guest (boot ID %s in %s) than the sandbox %s (boot ID %s)", boot.BootID, boot.Hostname, box.Name, there)
	}
	return g, nil
}

// phase runs the checks of one phase.
func (s *scenario) phase(phase string) {
	if s.Broken() {
		return
	}
	if phase == catalogue.Restarted {
		s.Check(phase, "workspace/stop", s.stop)
	}
	s.Check(phase, "workspace/up", func() cases.Finding { return s.up(phase) })
	if s.provider == catalogue.External && phase == catalogue.Created {
		s.Check(phase, "runtime", s.fetched)
	}
	var box msb.Sandbox
	s.Check(phase, "identity/state", func() (f cases.Finding) {
		box, f = s.inspect(msb.StatusRunning)
		return f
	})
	if phase != catalogue.Created {
		s.Check(phase, "identity/created-at", func() cases.Finding { return s.sameCreation(phase, box) })
	}
	s.createdAt = box.CreatedAt
	s.Check(phase, "policy", func() cases.Finding {
		policy, f := judgePolicy(box, s.deny, s.endpoint.Addr())
		s.Observe(phase, "policy", "%s", policy)
		return f
	})

	var target guest
	defer target.close()
	s.Check(phase, "ssh", func() cases.Finding {
		if err := s.bounded(guestDeadline, func(ctx context.Context) error { return target.open(ctx, s.bench.Subject, targetID) }); err != nil {
			return cases.Unclear("", err.Error(), "without a healthy SSH session nothing can be said of the guest: see `parity contract`")
		}
		return cases.Passed("a fresh word came back")
	})
	s.Check(phase, "probe", func() cases.Finding {
		if err := s.bounded(guestDeadline, func(ctx context.Context) error { return s.bringProbe(ctx, &target) }); err != nil {
			return cases.Unclear("", err.Error(), "the probe program is a static amd64 executable: see whether the guest can run one in "+filepath.Dir(guestProbe))
		}
		return cases.Passed(guestProbe)
	})
	var boot probe.BootID
	if phase == catalogue.Created {
		_ = s.readBootID(&target, &boot) // identity/same-boot says that it could not be read
	} else {
		s.Check(phase, "identity/boot-id", func() cases.Finding { return s.otherBoot(&target, &boot) })
	}
	s.Check(phase, "identity/disk", func() cases.Finding { return s.disk(phase, &target) })
	if s.deny {
		s.denied(phase, &target)
	} else {
		s.public(phase, &target)
	}
	s.Check(phase, "identity/same-boot", func() cases.Finding { return s.sameBoot(&target, boot, box.Name) })
	s.bootIDs = append(s.bootIDs, boot.BootID)
}

// fetched shows that the subject has fetched the external runtime: else it may run the workspace with its own driver.
func (s *scenario) fetched() cases.Finding {
	n := s.bench.Served()
	if n == 0 {
		return cases.Broken("", "nobody asked for it", "the subject did not use the provider that it was given")
	}
	return cases.Passed(report.Count(n, "request"))
}

func (s *scenario) stop() cases.Finding {
	err := s.bounded(stopDeadline, func(ctx context.Context) error { return s.bench.Subject.Stop(ctx, targetID) })
	if err != nil {
		return s.broken(err)
	}
	_, f := s.inspect(msb.StatusStopped)
	return f
}

func (s *scenario) up(phase string) cases.Finding {
	o := subject.UpOptions{ID: targetID, Recreate: phase == catalogue.Recreated}
	if s.deny && phase != catalogue.Restarted { // a restart must keep what the workspace was made with, without being told again
		o.ProviderOptions = map[string]string{"MICROSANDBOX_BLOCK_EGRESS": "true"}
	}
	up := func(ctx context.Context) error {
		_, err := s.bench.Up(ctx, o)
		return err
	}
	err := s.bounded(upDeadline, up)
	if err == nil {
		return cases.Passed("outcome success")
	}
	f := s.broken(err)
	if f.Verdict == report.Fail {
		// It is the subject's failure only if MicroSandbox could have done it.
		if bare := s.bounded(upDeadline, s.bench.Healthy); bare != nil {
			return cases.Unclear("", f.Seen+"; and MicroSandbox does not boot a bare sandbox either: "+bare.Error(), "see `parity doctor`, and whether the machine is overloaded")
		}
		// And only if it fails again: MicroSandbox can fail to boot now and then, most of all where KVM is emulated and the machine busy.
		if s.bounded(upDeadline, up) == nil {
			return cases.Unclear("", f.Seen+"; and the same command succeeded when it was run again", "see whether the machine is overloaded, and run it again")
		}
	}
	return f
}

// broken is the finding for an operation of the subject that failed while everything around it was intact.
func (s *scenario) broken(err error) cases.Finding {
	if full := s.bench.DiskFull(); full != nil {
		return cases.Unclear("", fmt.Sprintf("%v, and %v", err, full), "give the lab a larger scratch disk (--disk)")
	}
	var contract *subject.ContractError
	if _, exited := proc.ExitCode(err); !exited && !errors.As(err, &contract) && !errors.Is(err, subject.ErrNotFound) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return cases.Unclear("", err.Error(), "the subject could not be run: run it again")
	}
	return cases.Broken("", err.Error(), advice(err))
}

// advice says what to do about an operation of the subject that failed: its own words come first, where it had some.
func advice(err error) string {
	const contract = "`parity contract` checks its command line alone (docs/contract.md)"
	var said *subject.UpError
	var failed *proc.Error
	ran := errors.As(err, &failed)
	switch {
	case ran && errors.Is(err, context.DeadlineExceeded):
		return "the subject hung: run the same command by hand; " + contract
	case errors.As(err, &said), ran && failed.Stderr != "":
		return "the subject's own message says why; " + contract
	case ran:
		return "the subject failed and said nothing on stderr: run the same command by hand; " + contract
	}
	return "the subject's answer is not what was asked for; " + contract
}

// inspect asks MicroSandbox, never the subject, for the target's state. It does not enter the guest. The subject is asked only for the
// target's uid: if it does not say it, that is its failure; if MicroSandbox does not answer, nothing can be said.
func (s *scenario) inspect(want msb.Status) (msb.Sandbox, cases.Finding) {
	uid, f := s.uid(guestDeadline)
	if f.Verdict != report.Pass {
		return msb.Sandbox{}, f
	}
	name := subject.VMName(uid)
	var box msb.Sandbox
	err := s.bounded(guestDeadline, func(ctx context.Context) (err error) {
		box, err = s.bench.MSB.Inspect(ctx, name)
		return err
	})
	switch {
	case errors.Is(err, msb.ErrNotFound):
		return box, cases.Broken("", "MicroSandbox has no sandbox "+name, "the subject said success and MicroSandbox does not have the workspace")
	case err != nil:
		return box, cases.Unclear("", err.Error(), "MicroSandbox could not be asked: run it again, and see `parity doctor`")
	case box.Status != msb.StatusRunning && box.Status != msb.StatusStopped && box.Status != msb.StatusCrashed:
		return box, cases.Unclear("", fmt.Sprintf("the status %q of %s", box.Status, name), nextShape)
	case box.Status != want:
		return box, cases.Broken(fmt.Sprintf("MicroSandbox says %s of %s", want, name), string(box.Status),
			"the subject said success and MicroSandbox has another state")
	}
	return box, cases.Passed(fmt.Sprintf("%s of %s", box.Status, name))
}

// uid asks the subject for the target's uid, with `workspace list`. A list that fails or hangs breaks the contract, as one that lacks the
// workspace does, unless MicroSandbox does not answer either.
func (s *scenario) uid(deadline time.Duration) (string, cases.Finding) {
	var w subject.Workspace
	err := s.bounded(deadline, func(ctx context.Context) (err error) {
		w, err = s.bench.Subject.Find(ctx, targetID)
		return err
	})
	if err == nil {
		return w.UID, cases.Passed(w.UID)
	}
	f := s.broken(err)
	f.Expected = fmt.Sprintf("`workspace list` has %q with its uid", targetID)
	if f.Verdict == report.Fail {
		msbErr := s.bounded(guestDeadline, func(ctx context.Context) error {
			_, err := s.bench.MSB.List(ctx)
			return err
		})
		if msbErr != nil {
			return "", cases.Unclear(f.Expected, f.Seen+"; and MicroSandbox does not answer either: "+msbErr.Error(), "run it again, and see `parity doctor`")
		}
	}
	return "", f
}

func (s *scenario) sameCreation(phase string, box msb.Sandbox) cases.Finding {
	seen := fmt.Sprintf("created at %s, and in the phase before at %s", box.CreatedAt.Format(time.RFC3339Nano), s.createdAt.Format(time.RFC3339Nano))
	if box.CreatedAt.IsZero() || s.createdAt.IsZero() {
		return cases.Unclear("a creation time", seen, "the answer of msb inspect has another shape: see facts of that MicroSandbox version")
	}
	same := box.CreatedAt.Equal(s.createdAt)
	s.Observe(phase, "identity", "%s", map[bool]string{true: "the same sandbox", false: "another sandbox"}[same])
	if same != (phase == catalogue.Restarted) {
		return cases.Broken("", seen, "the subject "+map[bool]string{true: "restarted a workspace that it was to recreate", false: "recreated a workspace that it was to restart"}[same])
	}
	return cases.Passed(seen)
}

func (s *scenario) readBootID(target *guest, into *probe.BootID) error {
	if s.Broken() {
		return nil
	}
	return s.bounded(guestDeadline, func(ctx context.Context) (err error) {
		*into, err = runProbe(ctx, target, probe.BootIDArgs(), probe.ParseBootID)
		return err
	})
}

func (s *scenario) otherBoot(target *guest, boot *probe.BootID) cases.Finding {
	if err := s.readBootID(target, boot); err != nil {
		return cases.Unclear("", err.Error(), nextGuest)
	}
	for i, earlier := range s.bootIDs {
		if boot.BootID == earlier {
			return cases.Broken("", fmt.Sprintf("boot ID %s, as in phase %d", boot.BootID, i+1), "the guest was not booted anew")
		}
	}
	return cases.Passed("boot ID " + boot.BootID)
}

// sameBoot shows that what the phase saw is of one boot of one guest: the boot that began it, and the guest of the sandbox that
// MicroSandbox was asked about.
func (s *scenario) sameBoot(target *guest, atStart probe.BootID, sandbox string) cases.Finding {
	var now probe.BootID
	if err := s.readBootID(target, &now); err != nil {
		return cases.Unclear("", err.Error(), nextGuest)
	}
	if atStart.BootID == "" {
		return cases.Unclear("the boot ID of the phase's start", "it could not be read then", nextGuest)
	}
	if now.BootID != atStart.BootID {
		return cases.Broken("boot ID "+atStart.BootID, "boot ID "+now.BootID, "the guest was booted during the phase: what its probes saw is of two boots")
	}
	seen := fmt.Sprintf("boot ID %s in %s", now.BootID, now.Hostname)
	there, err := s.bootOf(sandbox, now)
	if err != nil {
		return cases.Unclear("", err.Error(), "MicroSandbox's own exec could not be asked: run it again")
	}
	if there != now.BootID {
		return cases.Broken(fmt.Sprintf("boot ID %s, which MicroSandbox's own exec sees in %s", there, sandbox), seen,
			"the subject's SSH enters another guest than the one that it was asked for")
	}
	return cases.Passed(seen)
}

// bootOf gives the boot ID of a sandbox, to hold against the one that was read over SSH. MicroSandbox names a guest by its sandbox, so
// one of that name is believed; one of another name, as a long one is cut, is asked for by MicroSandbox's own exec.
func (s *scenario) bootOf(sandbox string, overSSH probe.BootID) (id string, err error) {
	if overSSH.Hostname == sandbox {
		return overSSH.BootID, nil
	}
	var own proc.Result
	err = s.bounded(guestDeadline, func(ctx context.Context) (err error) {
		own, err = s.bench.MSB.Exec(ctx, sandbox, []string{"cat", "/proc/sys/kernel/random/boot_id"}, nil)
		return err
	})
	return strings.TrimSpace(string(own.Stdout)), err
}

const nextGuest = "the guest could not be asked: run it again, and see the check ssh"

// markerPath is on the image's own disk: not /tmp, not the workspace folder.
const markerPath = "/var/lib/parity/marker"

func (s *scenario) disk(phase string, target *guest) cases.Finding {
	args := probe.MarkerReadArgs(markerPath)
	if phase == catalogue.Created {
		args = probe.MarkerWriteArgs(markerPath, s.marker)
	}
	var m probe.Marker
	err := s.bounded(guestDeadline, func(ctx context.Context) (err error) {
		m, err = runProbe(ctx, target, args, probe.ParseMarker)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), nextGuest)
	}
	if !m.RootDevice || m.FSType == "virtiofs" {
		return cases.Unclear("a marker on the image's own disk", fmt.Sprintf("%s is on %s (%s)", markerPath, m.MountPoint, m.FSType),
			"a folder of the host or a mount survives a recreation: it says nothing of the image's disk")
	}
	seen := "no marker"
	if m.Exists {
		seen = fmt.Sprintf("marker %q", m.Value)
	}
	seen = fmt.Sprintf("%s on %s (%s)", seen, m.MountPoint, m.FSType)
	kept := m.Exists && m.Value == s.marker
	s.Observe(phase, "disk", "%s", map[bool]string{true: "has the marker", false: "has not the marker"}[kept])
	switch {
	case phase == catalogue.Created && !kept:
		return cases.Unclear("", seen, "the guest lost what was written and synced a moment ago")
	case phase == catalogue.Restarted && !kept:
		return cases.Broken("", seen, "a restart must keep the workspace's disk")
	case phase == catalogue.Recreated && m.Exists:
		return cases.Broken("", seen, "a recreation must begin with the image's own disk")
	}
	return cases.Passed(seen)
}

// public is the proof that public TCP works by default.
func (s *scenario) public(phase string, target *guest) {
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
}

func (s *scenario) judgePublic(phase string, answer probe.TCP, err error, nonce string) cases.Finding {
	if err != nil {
		return cases.Unclear("", err.Error(), nextGuest)
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
	deadline := settleDeadline
	if s.ctx.Err() != nil {
		deadline = lateDeadline
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), deadline)
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
	return cases.Passed("none")
}

// expect gives a fresh nonce whose receipt the endpoint must hold at the end.
func (s *scenario) expect(whose string) string {
	nonce := cases.Nonce(whose)
	s.expected[nonce] = true
	return nonce
}

// bounded calls do with a deadline of its own within the case's.
func (s *scenario) bounded(d time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.Within(d))
	defer cancel()
	return do(ctx)
}

// settleDeadline bounds the wait for the endpoint to have read what was sent to it.
const settleDeadline = 40 * time.Second

func (s *scenario) checkEndpoint() error { return s.bounded(guestDeadline, s.endpoint.Check) }

// probeHost runs the probe program on the lab's host.
func (s *scenario) probeHost() cases.Finding {
	nonce := s.expect("host")
	var answer probe.TCP
	err := s.bounded(guestDeadline, func(ctx context.Context) error {
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
