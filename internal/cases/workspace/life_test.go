package workspace

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// asked is a case under way with fakes for the subject and for msb, which are shell scripts.
func asked(t *testing.T, fakeSubject, fakeMSB string) *Workspace {
	t.Helper()
	dir := t.TempDir()
	write := func(name, script string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	r := cases.NewRecorder(t.Context(), catalogue.Case{}, "run", func(report.Event) {})
	env := cases.Env{RunID: "run", Tools: cases.Tools{MSB: write("msb", fakeMSB), Subject: []string{write("subject", fakeSubject)}}}
	b, err := cases.NewBench(env, catalogue.Builtin, r, dir, cases.Surroundings{}, &cases.Cleanup{})
	if err != nil {
		t.Fatal(err)
	}
	return &Workspace{Ctx: t.Context(), ID: "target", Bench: b}
}

const (
	lists    = `echo '[{"id":"target","uid":"u","provider":{"name":"p"}}]'`
	inspects = `case $1 in list) echo '[]';; *) echo '{"name":"devsy-u","status":"Running"}';; esac`
)

// Who is to blame for a state that could not be learnt: the subject for its `workspace list`, nobody for MicroSandbox's own.
func TestInspectTellsTheSubjectsFailureFromMicroSandboxs(t *testing.T) {
	for _, test := range []struct {
		name, subject, msb string
		want               report.Verdict
		seen, next         string
	}{
		{"both answer", lists, inspects, report.Pass, "Running", ""},
		{"list exits 1", "echo no database >&2; exit 1", inspects, report.Fail, "no database", "own message"},
		{"list exits 1 and says nothing", "exit 1", inspects, report.Fail, "exited with code 1", "said nothing"},
		{"list prints garbage", "echo hello", inspects, report.Fail, "a JSON array", "docs/contract.md"},
		{"list lacks the workspace", "echo '[]'", inspects, report.Fail, "does not have", "docs/contract.md"},
		{"list is killed", "kill -KILL $$", inspects, report.Fail, "killed", ""},
		{"list exits 1, and so does msb", "exit 1", "echo broken store >&2; exit 1", report.Inconclusive, "broken store", "doctor"},
		{"inspect exits 1", lists, "echo broken store >&2; exit 1", report.Inconclusive, "broken store", "doctor"},
		{"inspect prints garbage", lists, "echo hello", report.Inconclusive, "hello", "doctor"},
		{"inspect knows no such sandbox", lists, "echo 'sandbox not found' >&2; exit 1", report.Fail, "no sandbox devsy-u", ""},
		{"another state", lists, `echo '{"name":"devsy-u","status":"Stopped"}'`, report.Fail, "Stopped", ""},
	} {
		_, f := asked(t, test.subject, test.msb).Inspect(msb.StatusRunning)
		if f.Verdict != test.want || !strings.Contains(f.Seen, test.seen) || !strings.Contains(f.Next, test.next) {
			t.Errorf("%s: %+v; want %s, seen %q, next %q", test.name, f, test.want, test.seen, test.next)
		}
	}
}

// A subject that hangs breaks its contract, and the finding says how long it had. Where
// MicroSandbox itself has become slow, or boots nothing, it may be the lab's doing.
func TestASubjectThatHangsBreaksItsContractUnlessTheLabIsSlow(t *testing.T) {
	for _, test := range []struct {
		name, create string
		patience     float64
		deadline     time.Duration
		want         report.Verdict
		seen, next   string
	}{
		{"a sound lab", "exit 0", 1, 200 * time.Millisecond, report.Fail, "it had 200ms", "hung"},
		// Slow is above 3.2 s at this patience. The load and the create have 30 s, on any machine.
		{"a slow lab", "sleep 3.4", 0.1, 2 * time.Second, report.Inconclusive, "the lab is slow", "--patience"},
		{"a lab that boots nothing", "echo no KVM >&2; exit 1", 1, 200 * time.Millisecond, report.Inconclusive, "no KVM", "--patience"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := asked(t, "exec sleep 600", "case $1 in create) "+test.create+";; list) echo '[]';; esac")
			s.Patience = test.patience
			if _, f := s.sandbox(test.deadline); f.Verdict != test.want || !strings.Contains(f.Seen, test.seen) || !strings.Contains(f.Next, test.next) {
				t.Errorf("%+v; want %s, seen %q, next %q", f, test.want, test.seen, test.next)
			}
		})
	}
}

// That the lab is slow excuses no command that ended by itself.
func TestASlowLabExcusesNoFailureOfAnotherKind(t *testing.T) {
	s := asked(t, "echo no database >&2; exit 1", "case $1 in create) sleep 0.5;; list) echo '[]';; esac")
	s.Patience = 0.001
	if _, f := s.sandbox(1000 * time.Minute); f.Verdict != report.Fail || !strings.Contains(f.Seen, "no database") {
		t.Errorf("%+v", f)
	}
}

func TestAListThatWasInterruptedSaysNothingOfTheSubject(t *testing.T) {
	s := asked(t, lists, inspects)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Ctx = ctx
	if _, f := s.Inspect(msb.StatusRunning); f.Verdict != report.Inconclusive {
		t.Errorf("%+v", f)
	}
}

// A full disk is nobody's broken promise, however it is spelled.
func TestAFullDiskIsNotTheSubjectsFailure(t *testing.T) {
	for _, words := range []string{"no space left on device", "No space left on device (os error 28)"} {
		s := asked(t, `echo '{"outcome":"error","message":"`+words+`"}'; exit 1`, inspects)
		_, err := s.Bench.Subject.Up(t.Context(), subject.UpOptions{ID: "target", Provider: "p", Dir: t.TempDir()})
		if f := s.Blame(err); f.Verdict != report.Inconclusive || !strings.Contains(f.Next, "room") {
			t.Errorf("%s: %+v", words, f)
		}
	}
}

// What to do about a failed `up` depends on whether the subject said anything.
func TestAdviceNamesTheSubjectsWordsOnlyWhereThereAreSome(t *testing.T) {
	for script, want := range map[string]string{
		`echo '{"outcome":"error","message":"no image"}'; exit 1`: "the subject's own message",
		"echo no image >&2; exit 3":                               "the subject's own message",
		"exit 3":                                                  "said nothing",
	} {
		s := asked(t, script, inspects)
		_, err := s.Bench.Subject.Up(t.Context(), subject.UpOptions{ID: "target", Provider: "p", Dir: t.TempDir()})
		if f := s.Blame(err); f.Verdict != report.Fail || !strings.Contains(f.Next, want) {
			t.Errorf("%s: %+v, want %q", script, f, want)
		}
	}
}

// An external provider's failure may be its runtime's.
func TestAdviceNamesTheCheckOfTheRuntimeForAnExternalProvider(t *testing.T) {
	for provider, want := range map[string]bool{catalogue.Builtin: false, catalogue.External: true} {
		w := asked(t, "exit 3", inspects)
		w.Provider = provider
		_, err := w.Bench.Subject.Up(t.Context(), subject.UpOptions{ID: "target", Provider: "p", Dir: t.TempDir()})
		if f := w.Blame(err); strings.Contains(f.Next, "parity conformance") != want {
			t.Errorf("%s: %+v", provider, f)
		}
	}
}

// An `up` that fails once and then succeeds is no broken promise, and no pass either: MicroSandbox fails to boot now and then.
func TestAnUpThatFailsOnlyOnceIsInconclusive(t *testing.T) {
	const (
		fails = `echo '{"outcome":"error","message":"no boot"}'; exit 1`
		works = `echo '{"outcome":"success","containerId":"c","remoteUser":"root","remoteWorkspaceFolder":"/w"}'`
	)
	for _, test := range []struct {
		name, first, then, msb string
		want                   report.Verdict
		seen                   string
	}{
		{"at once", works, works, "exit 0", report.Pass, "success"},
		{"the second time", fails, works, "exit 0", report.Inconclusive, "succeeded when it was run again"},
		{"never", fails, fails, "exit 0", report.Fail, "no boot"},
		{"never, and MicroSandbox boots nothing", fails, fails, "exit 1", report.Inconclusive, "bare sandbox"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := asked(t, "if [ -e \"$HOME/asked\" ]; then "+test.then+"; else touch \"$HOME/asked\"; "+test.first+"; fi", test.msb)
			if f := s.up(subject.UpOptions{ID: "target"}); f.Verdict != test.want || !strings.Contains(f.Seen, test.seen) {
				t.Errorf("%+v; want %s, seen %q", f, test.want, test.seen)
			}
		})
	}
}
