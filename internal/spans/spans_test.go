package spans

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"dagger/parity/internal/report"
)

// started, done and ended are events of a case.
func started(id, phase, name string) report.Event {
	return report.Event{Kind: report.CheckStarted, Case: id, Check: &report.Check{Phase: phase, Name: name}}
}

func done(id, phase, name string, v report.Verdict) report.Event {
	return report.Event{Kind: report.CheckDone, Case: id, Check: &report.Check{Phase: phase, Name: name, Verdict: v, Seen: "seen " + name}}
}

func ended(id string, v report.Verdict) report.Event {
	return report.Event{Kind: report.CaseDone, Case: id, Result: &report.Case{ID: id, Verdict: v}}
}

// tree gives the spans that events make, in the order of their names' paths, with their status.
func tree(t *testing.T, events ...report.Event) []string {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	s := below(context.Background(), recorder)
	for _, e := range events {
		s.Event(e)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if open, ended := len(recorder.Started()), len(recorder.Ended()); open != ended {
		t.Errorf("%d spans were started and %d ended", open, ended)
	}
	names := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		names[span.SpanContext().SpanID().String()] = span
	}
	var paths []string
	for _, span := range recorder.Ended() {
		path := span.Name()
		for up, ok := names[span.Parent().SpanID().String()]; ok; up, ok = names[up.Parent().SpanID().String()] {
			path = up.Name() + " > " + path
		}
		if span.Status().Code == codes.Error {
			path += ": " + strings.TrimSpace(span.Status().Description)
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

func TestCasesPhasesAndChecksAreNestedByName(t *testing.T) {
	got := tree(t,
		report.Event{Kind: report.Started},
		report.Event{Kind: report.CaseStarted, Case: "a"}, report.Event{Kind: report.CaseStarted, Case: "b"},
		started("a", "", "link"), done("a", "", "link", report.Pass),
		started("b", "created", "up"), // two cases at the same time
		started("a", "created", "up"), done("a", "created", "up", report.Pass),
		started("a", "created", "policy"), done("a", "created", "policy", report.Pass),
		started("a", "restarted", "policy"), done("a", "restarted", "policy", report.Fail),
		ended("a", report.Fail),
		done("b", "created", "up", report.Pass), ended("b", report.Pass),
	)
	want := []string{
		"a > created", "a > created > policy", "a > created > up", "a > link",
		"a > restarted: fail", "a > restarted > policy: seen      seen policy", "a: fail",
		"b", "b > created", "b > created > up",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A step that dies leaves spans open: they are ended, and none looks like a pass.
func TestWhatDidNotEndIsNoPass(t *testing.T) {
	got := tree(t, report.Event{Kind: report.CaseStarted, Case: "a"}, started("a", "created", "up"))
	for _, path := range got {
		if !strings.Contains(path, ": ") {
			t.Errorf("%s has no error", path)
		}
	}
	if len(got) != 3 {
		t.Errorf("%d spans; want those of the case, the phase and the check: %q", len(got), got)
	}
}

// In a process of its own: where spans go is read from the environment once.
func TestSpansGoWhereTheEnvironmentSays(t *testing.T) {
	if os.Getenv("PARITY_TEST_SPANS") != "" {
		s := FromEnvironment(context.Background())
		fmt.Println("spans:", s != nil)
		s.Event(report.Event{Kind: report.CaseStarted, Case: "a"})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return
	}
	received := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.URL.Path }))
	defer server.Close()
	run := func(variables ...string) string {
		c := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		c.Env = append(variables, "PARITY_TEST_SPANS=1")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := run(); !strings.Contains(out, "spans: false") {
		t.Errorf("without a place for spans: %s", out)
	}
	if out := run("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + server.URL + "/v1/traces"); !strings.Contains(out, "spans: true") {
		t.Errorf("with a place for spans: %s", out)
	}
	select {
	case path := <-received:
		if path != "/v1/traces" {
			t.Errorf("spans went to %s", path)
		}
	default:
		t.Error("no spans came")
	}
}
