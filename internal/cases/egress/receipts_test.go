package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/report"
)

// evidence is a case under way with a real endpoint, which expects the nonce host and forbids the nonce denied.
func evidence(t *testing.T, ctx context.Context) *scenario {
	t.Helper()
	e, err := endpoint.Start(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return &scenario{
		Workspace: &workspace.Workspace{Recorder: cases.NewRecorder(ctx, windowChecks(t), "run", func(report.Event) {}), Ctx: ctx},
		endpoint:  e,
		ways:      newWays(t),
		swept:     map[string]bool{},
		expected:  map[string]bool{"host": true}, forbidden: map[string]bool{"denied": true},
	}
}

// get sends one request and reads the answer; of an empty target it opens a connection and closes it.
func get(t *testing.T, e *endpoint.Endpoint, target string) {
	t.Helper()
	conn, err := net.Dial("tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if target == "" {
		return
	}
	if _, err := io.WriteString(conn, "GET "+target+" HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
}

func TestReceiptsAndLeak(t *testing.T) {
	for name, test := range map[string]struct {
		targets        []string
		leak, receipts report.Verdict
	}{
		"the host's":        {[]string{"/probe/host"}, report.Pass, report.Pass},
		"nothing":           {nil, report.Pass, report.Inconclusive},
		"the host's twice":  {[]string{"/probe/host", "/probe/host"}, report.Pass, report.Inconclusive},
		"the target's":      {[]string{"/probe/host", "/probe/denied"}, report.Fail, report.Fail},
		"only the target's": {[]string{"/probe/denied"}, report.Fail, report.Fail},
		"no request":        {[]string{"/probe/host", ""}, report.Fail, report.Inconclusive},
		"no nonce":          {[]string{"/probe/host", "/other"}, report.Fail, report.Inconclusive},
		"a stranger's":      {[]string{"/probe/host", "/probe/stranger"}, report.Inconclusive, report.Inconclusive},
		"stranger and leak": {[]string{"/probe/stranger", "/probe/host", "/probe/denied"}, report.Fail, report.Fail},
	} {
		t.Run(name, func(t *testing.T) {
			s := evidence(t, t.Context())
			if err := s.checkEndpoint(); err != nil { // its own connection is no stranger's
				t.Fatal(err)
			}
			for _, target := range test.targets {
				get(t, s.endpoint, target)
			}
			if f := s.leak(0, nil); f.Verdict != test.leak {
				t.Errorf("leak: %+v, want %s", f, test.leak)
			}
			if f := s.receipts(); f.Verdict != test.receipts {
				t.Errorf("receipts: %+v, want %s", f, test.receipts)
			}
			if f := s.leak(s.endpoint.Mark(), s.ways.Mark()); f.Verdict != report.Pass {
				t.Errorf("after the mark, leak: %+v", f)
			}
		})
	}
}

// A bracket's own probe that came no further than the handshake leaves a connection without a nonce.
func TestAConnectionWithoutANonceIsNoLeakWhenABracketBroke(t *testing.T) {
	s := evidence(t, t.Context())
	get(t, s.endpoint, "")
	s.Check("created", "endpoint-before", func() cases.Finding { return cases.Unclear("", "broken", "") })
	if f := s.leak(0, nil); f.Verdict != report.Inconclusive {
		t.Errorf("leak: %+v", f)
	}
	get(t, s.endpoint, "/probe/denied")
	if f := s.leak(0, nil); f.Verdict != report.Fail {
		t.Errorf("with the target's request, leak: %+v", f)
	}
}

func TestTheTargetsRequestIsALeakThoughTheTimeIsOver(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := evidence(t, ctx)
	get(t, s.endpoint, "/probe/denied")
	open, err := net.Dial("tcp", s.endpoint.Addr().String()) // cannot settle
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	cancel()
	if f := s.leak(0, nil); f.Verdict != report.Fail {
		t.Errorf("leak: %+v", f)
	}
	if f := s.leak(1, nil); f.Verdict != report.Inconclusive {
		t.Errorf("of the open connection alone, leak: %+v", f)
	}
	if f := s.receipts(); f.Verdict != report.Fail {
		t.Errorf("receipts: %+v", f)
	}
}

// endChecks are the checks no-leak of a phase and receipts, which is the last.
func endChecks(t *testing.T) catalogue.Case {
	t.Helper()
	plan := windowChecks(t)
	plan.Checks = append(slices.DeleteFunc(plan.Checks, func(c catalogue.Check) bool { return c.Name != "ssh-after" && c.Name != "no-leak" }),
		catalogue.Check{Name: "receipts", Alone: true, Sentence: "The endpoint holds exactly the receipts that are expected."})
	return plan
}

// A request that was denied and arrives after its window is a leak, whatever became of the case meanwhile.
func TestALateDeniedRequestIsALeakThoughTheCaseBroke(t *testing.T) {
	pass := func() cases.Finding { return cases.Passed("") }
	unclear := func() cases.Finding { return cases.Unclear("", "broken", "") }
	for _, test := range []struct {
		name   string
		window func() cases.Finding // what the check in the window finds
		late   string               // what is sent then
		denied bool                 // something was denied before the case broke
		over   bool                 // the case's time is over
		want   string
		whole  report.Verdict
	}{
		{"broken, then the target's request", unclear, "/probe/denied", true, false, "ssh-after: inconclusive, receipts: fail", report.Fail},
		{"broken, then nothing", unclear, "", true, false, "ssh-after: inconclusive", report.Inconclusive},
		{"broken, then a stranger's", unclear, "/probe/stranger", true, false, "ssh-after: inconclusive", report.Inconclusive},
		{"broken before anything was denied", unclear, "/probe/denied", false, false, "ssh-after: inconclusive", report.Inconclusive},
		{"out of time, then the target's request", pass, "/probe/denied", true, true, "receipts: fail", report.Fail},
		{"out of time, then nothing", pass, "", true, true, "receipts: inconclusive", report.Inconclusive},
		{"intact, then the target's request", pass, "/probe/denied", true, false, "receipts: fail", report.Fail},
		{"intact", pass, "", true, false, "", report.Pass},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := evidence(t, ctx)
			s.Recorder = cases.NewRecorder(ctx, endChecks(t), "run", func(report.Event) {})
			if !test.denied {
				s.forbidden = map[string]bool{}
			}
			get(t, s.endpoint, "/probe/host")
			s.Check("created", "ssh-after", test.window)
			s.Check("created", "no-leak", func() cases.Finding { return s.leak(0, nil) })
			if test.late != "" {
				get(t, s.endpoint, test.late)
			}
			if test.over {
				cancel()
			}
			s.end()
			c := s.Finish()
			if got := broken(c); got != test.want || c.Verdict != test.whole {
				t.Errorf("%s, %q; want %s, %q", c.Verdict, got, test.whole, test.want)
			}
		})
	}
}

// A leak that is on record is not recorded again at the end.
func TestALeakIsRecordedOnce(t *testing.T) {
	s := evidence(t, t.Context())
	s.Recorder = cases.NewRecorder(t.Context(), endChecks(t), "run", func(report.Event) {})
	s.leaked = true
	s.Override("created", "no-leak", cases.Broken("", "it arrived", ""))
	get(t, s.endpoint, "/probe/denied")
	s.end()
	if got := broken(s.Finish()); got != "no-leak: fail" {
		t.Errorf("broken is %q", got)
	}
}

// The last look at the receipts comes while the endpoint is still open: a request whose bytes are under way is read.
func TestALateRequestIsWaitedForAtTheEnd(t *testing.T) {
	s := evidence(t, t.Context())
	s.Recorder = cases.NewRecorder(t.Context(), endChecks(t), "run", func(report.Event) {})
	s.Check("created", "ssh-after", func() cases.Finding { return cases.Unclear("", "broken", "") })
	conn, err := net.Dial("tcp", s.endpoint.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		for len(s.endpoint.Receipts()) == 0 { // until it is accepted, and the wait for it can begin
			time.Sleep(time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		_, _ = io.WriteString(conn, "GET /probe/denied HTTP/1.0\r\n\r\n")
	}()
	s.end()
	if got := broken(s.Finish()); got != "ssh-after: inconclusive, receipts: fail" {
		t.Errorf("broken is %q", got)
	}
}

func TestJudgePublicWantsTheEndpointsBytesAndOneReceipt(t *testing.T) {
	s := evidence(t, t.Context())
	right := probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: s.endpoint.Body("n")}
	if f := s.judgePublic("created", right, nil, "n"); f.Verdict != report.Inconclusive {
		t.Errorf("without a receipt: %+v", f)
	}
	get(t, s.endpoint, "/probe/n")
	if f := s.judgePublic("created", right, nil, "n"); f.Verdict != report.Pass {
		t.Errorf("with one receipt: %+v", f)
	}
	if f := s.judgePublic("created", right, nil, "m"); f.Verdict != report.Fail {
		t.Errorf("with another nonce's body: %+v", f)
	}
	if f := s.judgePublic("created", right, errors.New("no answer"), "n"); f.Verdict != report.Inconclusive {
		t.Errorf("with an error: %+v", f)
	}
	for _, outcome := range probe.Outcomes {
		if f := s.judgePublic("created", probe.TCP{Outcome: outcome, Body: "x"}, nil, "n"); f.Verdict != report.Fail || !strings.Contains(f.Seen, string(outcome)) {
			t.Errorf("%s: %+v", outcome, f)
		}
	}
	get(t, s.endpoint, "/probe/n")
	if f := s.judgePublic("created", right, nil, "n"); f.Verdict != report.Inconclusive {
		t.Errorf("with two receipts: %+v", f)
	}
}
