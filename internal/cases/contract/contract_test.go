package contract

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// ran is the error of a real command; the deadline is short when the command hangs.
func ran(t *testing.T, deadline time.Duration, argv ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	_, err := proc.Run(ctx, proc.Cmd{Argv: argv})
	if err == nil {
		t.Fatalf("%q succeeded", argv)
	}
	return err
}

func TestJudgeTellsABreachFromWhatCouldNotBeChecked(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		err  error
		want report.Verdict
	}{
		"it holds":         {nil, report.Pass},
		"a breach":         {&subject.ContractError{Verb: "workspace up", Expected: "this", Seen: "that"}, report.Fail},
		"it exited":        {ran(t, time.Minute, "sh", "-c", "exit 3"), report.Fail},
		"the disk is full": {ran(t, time.Minute, "sh", "-c", "echo No space left on device >&2; exit 1"), report.Inconclusive},
		"it hung":          {ran(t, 50*time.Millisecond, "sleep", "600"), report.Fail},
		"it never started": {ran(t, time.Minute, "/nonexistent"), report.Inconclusive},
		"interrupted":      {cancelled.Err(), report.Inconclusive},
		"anything else":    {errors.New("no room"), report.Inconclusive},
	} {
		f := judge("this", "", test.err, func(error) string { return "" })
		if f.Verdict != test.want {
			t.Errorf("%s: %+v, want %s", name, f, test.want)
		}
		if f.Verdict != report.Pass && (f.Expected != "this" || f.Seen == "" || f.Next == "") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// A command whose deadline passed is the lab's doing where that is slow; else it is a breach that
// says how long it had.
func TestACommandThatHangsInASlowLabIsNoBreach(t *testing.T) {
	hung := func(ctx context.Context) error {
		_, err := proc.Run(ctx, proc.Cmd{Argv: []string{"sleep", "600"}})
		return err
	}
	err := cases.Bounded(t.Context(), 50*time.Millisecond, hung)
	for _, test := range []struct {
		slow string
		want report.Verdict
		seen string
	}{
		{"", report.Fail, "it had 50ms"},
		{"the lab is slow", report.Inconclusive, "the lab is slow"},
	} {
		f := judge("this", "that", err, func(asked error) string {
			if asked != err {
				t.Errorf("asked about %v", asked)
			}
			return test.slow
		})
		if f.Verdict != test.want || !strings.Contains(f.Seen, test.seen) {
			t.Errorf("%+v; want %s, seen %q", f, test.want, test.seen)
		}
	}
}

// What a machine is, is MicroSandbox's word. That there is none is an error of its own, and says
// nothing yet of who is to blame; any other error says nothing of the subject.
func TestAMachineIsWhatMicroSandboxSays(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		none   bool
		want   string
	}{
		"a machine":  {`echo '{"name":"'$4'","status":"Stopped","created_at":"2026-11-30T12:00:00.5Z"}'`, false, "Stopped 2026-11-30T12:00:00.5Z"},
		"none":       {"echo 'sandbox not found' >&2; exit 1", true, ""},
		"a bad disk": {"echo 'broken store' >&2; exit 1", false, "broken store"},
	} {
		program := filepath.Join(t.TempDir(), "msb")
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		m, err := machine(&msb.Client{Path: program, Home: t.TempDir()})(t.Context(), "devsy-u")
		said := m.State + " " + m.CreatedAt.Format(time.RFC3339Nano)
		if err != nil {
			said = err.Error()
			if f := judge("this", "", err, func(error) string { return "" }); f.Verdict != report.Inconclusive {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if !strings.Contains(said, test.want) || errors.Is(err, subject.ErrNoMachine) != test.none {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// What breaks once and holds then is no breach, and no pass either.
func TestABreachIsSeenTwice(t *testing.T) {
	holds, broken, unclear := cases.Passed("it holds"), cases.Broken("this", "that", "do"), cases.Unclear("this", "no room", "do")
	for name, test := range map[string]struct {
		found []cases.Finding
		want  report.Verdict
	}{
		"it holds":             {[]cases.Finding{holds}, report.Pass},
		"broken twice":         {[]cases.Finding{broken, broken}, report.Fail},
		"broken once":          {[]cases.Finding{broken, holds}, report.Inconclusive},
		"broken, then unclear": {[]cases.Finding{broken, unclear}, report.Fail},
		"it could not be told": {[]cases.Finding{unclear}, report.Inconclusive},
	} {
		made := 0
		f := confirmed(func() cases.Finding { made++; return test.found[made-1] })
		if f.Verdict != test.want || made != len(test.found) {
			t.Errorf("%s: %+v after %d checks; want %s", name, f, made, test.want)
		}
	}
}
