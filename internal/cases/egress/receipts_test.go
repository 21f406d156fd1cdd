package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"dagger/parity/fixtures/endpoint"
	"dagger/parity/internal/cases"
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
		Recorder: cases.NewRecorder(ctx, windowChecks(t), "run", func(report.Event) {}), ctx: ctx, endpoint: e,
		expected: map[string]bool{"host": true}, forbidden: map[string]bool{"denied": true},
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
			if f := s.leak(0); f.Verdict != test.leak {
				t.Errorf("leak: %+v, want %s", f, test.leak)
			}
			if f := s.receipts(); f.Verdict != test.receipts {
				t.Errorf("receipts: %+v, want %s", f, test.receipts)
			}
			if f := s.leak(s.endpoint.Mark()); f.Verdict != report.Pass {
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
	if f := s.leak(0); f.Verdict != report.Inconclusive {
		t.Errorf("leak: %+v", f)
	}
	get(t, s.endpoint, "/probe/denied")
	if f := s.leak(0); f.Verdict != report.Fail {
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
	if f := s.leak(0); f.Verdict != report.Fail {
		t.Errorf("leak: %+v", f)
	}
	if f := s.leak(1); f.Verdict != report.Inconclusive {
		t.Errorf("of the open connection alone, leak: %+v", f)
	}
	if f := s.receipts(); f.Verdict != report.Fail {
		t.Errorf("receipts: %+v", f)
	}
}

func TestJudgePublicWantsTheEndpointsBytesAndOneReceipt(t *testing.T) {
	s := evidence(t, t.Context())
	right := probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: s.endpoint.Body("n")}
	if f := s.judgePublic(right, nil, "n"); f.Verdict != report.Inconclusive {
		t.Errorf("without a receipt: %+v", f)
	}
	get(t, s.endpoint, "/probe/n")
	if f := s.judgePublic(right, nil, "n"); f.Verdict != report.Pass {
		t.Errorf("with one receipt: %+v", f)
	}
	if f := s.judgePublic(right, nil, "m"); f.Verdict != report.Fail {
		t.Errorf("with another nonce's body: %+v", f)
	}
	if f := s.judgePublic(right, errors.New("no answer"), "n"); f.Verdict != report.Inconclusive {
		t.Errorf("with an error: %+v", f)
	}
	for _, outcome := range probe.Outcomes {
		if f := s.judgePublic(probe.TCP{Outcome: outcome, Body: "x"}, nil, "n"); f.Verdict != report.Fail || !strings.Contains(f.Seen, string(outcome)) {
			t.Errorf("%s: %+v", outcome, f)
		}
	}
	get(t, s.endpoint, "/probe/n")
	if f := s.judgePublic(right, nil, "n"); f.Verdict != report.Inconclusive {
		t.Errorf("with two receipts: %+v", f)
	}
}
