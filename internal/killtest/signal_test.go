package killtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"dagger/parity/internal/report"
)

// slowSubject makes a subject that is the reference CLI, save that it waits before it deletes the egress cases' target. It gives its
// path, the file that it makes when it begins to wait, and the one that lets it go on.
func (w *world) slowSubject(t *testing.T) (path, waits, goOn string) {
	t.Helper()
	path, waits, goOn = filepath.Join(w.other, "subject"), filepath.Join(w.other, "waits"), filepath.Join(w.other, "go-on")
	script := fmt.Sprintf(`#!/bin/sh
if [ "$1 $2 $3" = "workspace delete target" ]; then
	trap '' TERM
	touch %s
	while [ ! -e %s ]; do sleep 0.02; done
fi
exec %s devsy "$@"
`, waits, goOn, program("parity"))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, waits, goOn
}

// interrupted checks what a run that was interrupted says and leaves: exit code 3, a report that says so, and what was removed, which is
// not there any more.
func (w *world) interrupted(t *testing.T, r *running, before state, signal syscall.Signal) {
	t.Helper()
	if code := r.wait(t); code != 3 {
		t.Errorf("the exit code is %d (%s), and 3 was expected", code, r.cmd.ProcessState)
	}
	got, err := report.Read(w.report)
	want := fmt.Sprintf("interrupted by the signal %q", signal)
	if err != nil || got.Verdict != report.Inconclusive || got.ExitCode != 3 || !strings.Contains(got.Sentence(), want) {
		t.Errorf("the report says %s (%d): %s; it was to say %q (%v)", got.Verdict, got.ExitCode, got.Sentence(), want, err)
	}
	removed := 0
	for line := range strings.Lines(r.said()) {
		if _, what, ok := strings.Cut(line, "removed "); ok {
			_, path, named := strings.Cut(strings.TrimSpace(what), w.cache)
			if _, err := os.Stat(w.cache + path); err == nil || !named {
				t.Errorf("it was to name what it removed, and that was to be gone: %s", line)
			}
			removed++
		}
	}
	if removed < 2 {
		t.Errorf("it did not say that it removed its lab and its own folder:\n%s", r.said())
	}
	w.removeReport(t)
	w.unchanged(t, before)
}

func TestSignalCleansUpAndSaysWhatWasRemoved(t *testing.T) {
	w := newWorld(t)
	before := w.look(t)
	args := []string{"egress", "--standin", "--verbose", "--provider", "builtin", "--report", w.report}
	for _, test := range []struct {
		name   string
		signal syscall.Signal
		check  string // during which the signal comes
		send   func(*testing.T, *running)
	}{
		{"SIGTERM", syscall.SIGTERM, "egress/builtin/deny created workspace/up",
			func(t *testing.T, r *running) { r.signal(t, syscall.SIGTERM) }},
		{"Ctrl-C", syscall.SIGINT, "egress/builtin/deny created ssh",
			func(t *testing.T, r *running) { // the terminal sends it to the whole foreground process group
				if _, err := r.master.WriteString("\x03"); err != nil {
					t.Fatal(err)
				}
			}},
		{"SIGHUP", syscall.SIGHUP, "egress/builtin/deny workspace/control",
			func(t *testing.T, r *running) { r.signal(t, syscall.SIGHUP) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := startOnTerminal(t, w.command(args...))
			r.awaitSaid(t, test.check)
			test.send(t, r)
			r.awaitSaid(t, "cleaning up")
			w.interrupted(t, r, before, test.signal)
			if !strings.Contains(r.said(), "its cases cleaned up after themselves") {
				t.Errorf("the cases did not clean up:\n%s", r.said())
			}
		})
	}
}

func TestSignalDuringTheCleanUpLetsItFinish(t *testing.T) {
	w := newWorld(t)
	subject, waits, goOn := w.slowSubject(t)
	before := w.look(t)
	r := start(t, w.command("egress", "--standin", "--verbose", "--provider", "builtin", "--subject", subject, "--report", w.report))
	awaitFile(t, r, waits)
	r.signal(t, syscall.SIGTERM)
	r.awaitSaid(t, "cleaning up")
	if err := os.WriteFile(goOn, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r.wait(t)
	for _, path := range []string{waits, goOn} {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	w.interrupted(t, r, before, syscall.SIGTERM)
}

// The clean-up of the cases hangs, and would do so for a minute and a half. The second signal ends it.
func TestSecondSignalEndsTheRunAtOnce(t *testing.T) {
	w := newWorld(t)
	subject, waits, _ := w.slowSubject(t)
	before := w.look(t)
	r := startOnTerminal(t, w.command("egress", "--standin", "--provider", "builtin", "--subject", subject, "--report", w.report))
	r.awaitSaid(t, "egress/builtin/deny created ssh")
	if _, err := r.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	awaitFile(t, r, waits)
	if _, err := r.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	r.awaitSaid(t, "ending it at once")
	r.wait(t)
	if !strings.Contains(r.said(), "its cases' own clean-up was cut short") {
		t.Errorf("it did not say that it cut the clean-up short:\n%s", r.said())
	}
	if err := os.Remove(waits); err != nil {
		t.Error(err)
	}
	w.interrupted(t, r, before, syscall.SIGINT)
}

// nohup means that a hang-up is not to end the run.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	w := newWorld(t)
	c := w.command("contract", "--standin", "--verbose", "--provider", "builtin", "--report", w.report)
	c.Args = append([]string{"nohup"}, c.Args...)
	nohup, err := exec.LookPath("nohup")
	if err != nil {
		t.Fatal(err)
	}
	c.Path = nohup
	r := start(t, c)
	r.awaitSaid(t, "contract/builtin/cli  started")
	r.signal(t, syscall.SIGHUP)
	if code := r.wait(t); code != 0 || strings.Contains(r.said(), "cleaning up") {
		t.Errorf("code %d:\n%s", code, r.said())
	}
}
