package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/progress"
	"dagger/parity/internal/report"
)

func TestMain(m *testing.M) {
	lab.Reexec()
	os.Exit(m.Run())
}

var checks = []catalogue.Check{{Name: "a", Sentence: "A holds."}, {Name: "b", Sentence: "B holds."}}

var (
	contractCase = catalogue.Case{Scenario: "contract", Provider: "builtin", Name: "cli", Weight: 1, Checks: checks}
	egressCase   = catalogue.Case{Scenario: "egress", Provider: "builtin", Name: "deny", Weight: 3, Checks: checks}
)

// line is an event as a step prints it, with the run's ID as the shell variable $ID.
func line(t *testing.T, e report.Event) string {
	t.Helper()
	e.Time = time.Now()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(fmt.Sprintf("echo '%s'\n", data), "RUNID", "'$ID'")
}

// readSetup begins a shell script that stands for `parity step --setup FILE`: it reads the run's
// id.
const readSetup = "#!/bin/sh\nID=$(sed -n 's/.*\"RunID\": \"\\(.*\\)\".*/\\1/p' \"$3\")\n"

// scriptHead begins such a script that asks `has` whether the setup has a case.
const scriptHead = readSetup + "has() { case \"$ALL\" in *\"$1\"*) return 0;; esac; return 1; }\nALL=$(sed '/\"Contracts\"/,/\\]/d' \"$3\")\n"

// done is the shell line that prints a finished case.
func done(t *testing.T, c catalogue.Case, verdicts ...report.Verdict) string {
	t.Helper()
	r := report.Case{ID: c.ID(), RunID: "RUNID", Started: time.Now()}
	for i, v := range verdicts {
		r.Checks = append(r.Checks, report.Check{Name: c.Checks[i].Name, Verdict: v})
	}
	r.Verdict = r.Judge()
	return line(t, report.Event{Kind: report.CaseDone, Case: c.ID(), Result: &r})
}

func started(t *testing.T, c catalogue.Case, check string) string {
	t.Helper()
	return line(t, report.Event{Kind: report.CaseStarted, Case: c.ID()}) +
		line(t, report.Event{Kind: report.CheckStarted, Case: c.ID(), Check: &report.Check{Name: check}})
}

// run runs cases with a shell script as the step, in native labs, which need no KVM for that.
func runScript(t *testing.T, ctx context.Context, script string, selected ...catalogue.Case) report.Report {
	t.Helper()
	return runScriptUntil(t, ctx, nil, script, selected...)
}

// runScriptUntil is runScript, and again ends the labs at once.
func runScriptUntil(t *testing.T, ctx context.Context, again <-chan struct{}, script string, selected ...catalogue.Case) report.Report {
	t.Helper()
	step := filepath.Join(t.TempDir(), "step")
	if err := os.WriteFile(step, []byte(scriptHead+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return runTools(t, ctx, again, Tools{Self: step}, selected...)
}

// runTools runs cases with the given programs in native labs.
func runTools(t *testing.T, ctx context.Context, again <-chan struct{}, tools Tools, selected ...catalogue.Case) report.Report {
	t.Helper()
	dir := t.TempDir()
	p := progress.New(io.Discard, progress.Style{}, time.Now())
	defer p.Close()
	r, err := Run(ctx, Options{
		Version: "test", Cases: selected, KVM: lab.Decision{KVM: lab.Native, Reason: "a test"},
		Tools: tools, Lab: lab.Options{Cache: t.TempDir()}, Labs: 2, Report: dir, Folder: t.TempDir(),
	}, p, again)
	if err != nil {
		t.Fatal(err)
	}
	read, err := report.Read(dir)
	if err != nil || read.Verdict != r.Verdict || read.ExitCode != r.ExitCode {
		t.Errorf("the written report says %s (%d), %v; the run %s (%d)", read.Verdict, read.ExitCode, err, r.Verdict, r.ExitCode)
	}
	return r
}

func TestRunPassesWhenEveryCaseSaysSo(t *testing.T) {
	script := "echo some text\n" + line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "native", Kernel: "k"}}) +
		"has contract/ && " + done(t, contractCase, report.Pass, report.Pass) +
		"has egress/ && " + done(t, egressCase, report.Pass, report.Pass) + "exit 0\n"
	r := runScript(t, t.Context(), script, contractCase, egressCase)
	if r.ExitCode != 0 || len(r.Problems) != 0 || r.Head.Kernel != "k" || len(r.Labs) != 2 {
		t.Errorf("%s, problems %q, %+v", r.Verdict, r.Problems, r.Head)
	}
}

// Whatever goes wrong with a step, the run does not pass.
func TestRunIsNoPassWhenAStepGoesWrong(t *testing.T) {
	pass := done(t, egressCase, report.Pass, report.Pass)
	for _, test := range []struct {
		name, script, want string
		code               int
	}{
		{"says nothing", "exit 0\n", "never started", 3},
		{"does not start its case", "exit 3\n", "exited with code 3", 3},
		{"dies in the middle", started(t, egressCase, "a") + "kill -KILL $$\n", "did not finish", 3},
		{"fails after its case passed", pass + "echo oops >&2; exit 1\n", "oops", 3},
		{"leaves a check out", done(t, egressCase, report.Pass), "was planned once and is in the report 0 times", 3},
		{"reports its case twice", pass + pass, "2 times", 3},
		{"reports another case", pass + done(t, contractCase, report.Pass, report.Pass), "was not selected", 3},
		{"gives an older run's result", strings.ReplaceAll(pass, "'$ID'", "older"), "another run's result", 3},
		{"skips a check", done(t, egressCase, report.Pass, "skip"), `unknown verdict "skip"`, 3},
		{"says pass of a check that failed", strings.Replace(done(t, egressCase, report.Pass, report.Fail), `"verdict":"fail"`, `"verdict":"pass"`, 1), "", 1},
		{"says it failed", done(t, egressCase, report.Pass, report.Fail), "", 1},
		{"could not tell", done(t, egressCase, report.Pass, report.Inconclusive), "", 3},
		{"does not say where it ran", pass, "did not say where it ran", 3},
		{"says that its KVM is another", line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "emulated"}}) + pass, `says KVM "emulated"`, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := runScript(t, t.Context(), test.script, egressCase)
			if r.ExitCode != test.code {
				t.Errorf("the exit code is %d (%s), want %d", r.ExitCode, r.Sentence(), test.code)
			}
			all := strings.Join(r.Problems, "\n")
			for _, c := range r.Cases {
				all += "\n" + strings.Join(c.Problems, "\n")
			}
			if !strings.Contains(all, test.want) {
				t.Errorf("the problems lack %q:\n%s", test.want, all)
			}
		})
	}
}

// A program that is replaced or removed while cases run is not what the report's hash says.
func TestProgramThatChangesDuringTheRunMakesItInconclusive(t *testing.T) {
	siblings(t)
	dir, sum := program(t, saysVersion, 0o755)
	msb := filepath.Join(dir, "bin", "msb")
	subject, agent := filepath.Join(t.TempDir(), "subject"), filepath.Join(t.TempDir(), "agent")
	pass := line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "native"}}) + done(t, egressCase, report.Pass, report.Pass)
	for _, test := range []struct {
		name, meanwhile string // what happens while the case runs
		want            []string
	}{
		{"nothing", "", nil},
		{"the subject is replaced", "echo '#!/bin/false' >" + subject + ".new; mv " + subject + ".new " + subject, []string{"the subject " + subject, "was replaced"}},
		{"the subject is written to", "echo exit >>" + subject, []string{"the subject " + subject, "was replaced"}},
		{"the subject is removed", "rm " + subject, []string{"the subject " + subject, "cannot be read any more"}},
		{"msb is replaced", "echo exit >>" + msb, []string{"msb " + msb, sum}},
		{"the probe is replaced", "echo exit >>" + beside(self(t), "parity-probe"), []string{"parity-probe", "was replaced"}},
		{"the agent is replaced", "echo exit >>" + agent, []string{"the agent " + agent, "was replaced"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for path, content := range map[string]string{subject: "#!/bin/sh\n", agent: "#!/bin/sh\n", msb: saysVersion, beside(self(t), "parity-probe"): "#!/bin/sh\n"} {
				_ = os.Remove(path) // what the test before made of it
				if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			tools, err := FindTools(t.Context(), ToolOptions{Cache: t.TempDir(), MicroSandbox: dir, Subject: subject, AgentFile: agent})
			if err != nil {
				t.Fatal(err)
			}
			tools.Self = filepath.Join(t.TempDir(), "step")
			if err := os.WriteFile(tools.Self, []byte(readSetup+test.meanwhile+"\n"+pass), 0o755); err != nil {
				t.Fatal(err)
			}
			r := runTools(t, t.Context(), nil, tools, egressCase)
			if test.want == nil {
				if r.ExitCode != 0 {
					t.Errorf("%d: %q", r.ExitCode, r.Problems)
				}
				return
			}
			if r.ExitCode != 3 || len(r.Problems) != 1 {
				t.Fatalf("%d: %q", r.ExitCode, r.Problems)
			}
			for _, want := range append(test.want, "SHA-256", "run again") {
				if !strings.Contains(r.Problems[0], want) {
					t.Errorf("the problem lacks %q: %s", want, r.Problems[0])
				}
			}
		})
	}
}

// self is this test's program.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Nothing can be said of a case when what it stands on broke: it is ended in the other lab, and
// says which check that is.
func TestBrokenContractEndsTheOtherLabs(t *testing.T) {
	script := "if has contract/; then\n" + done(t, contractCase, report.Pass, report.Fail) + "exit 0\nfi\n" +
		started(t, egressCase, "a") + "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done\n"
	r := runScript(t, t.Context(), script, contractCase, egressCase)
	if r.ExitCode != 1 || r.Cases[0].Verdict != report.Fail || r.Cases[1].Verdict != report.Inconclusive {
		t.Errorf("%d: %+v", r.ExitCode, r.Cases)
	}
	if got := strings.Join(r.Cases[1].Problems, "\n"); !strings.Contains(got, `the check "b" of contract/builtin/cli, which did not pass`) {
		t.Errorf("the other case's problems are %q", got)
	}
}

// A case that cleaned up in time when its lab was ended says so too, and for which check; it does
// not only say that it was interrupted.
func TestACaseThatCleansUpWhenItsLabIsEndedSaysWhy(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	script := line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "native"}}) +
		"if has contract/; then\nuntil [ -e $HOME/started ]; do sleep 0.01; done\n" + done(t, contractCase, report.Pass, report.Fail) + "exit 0\nfi\n" +
		"trap 'stop=1' TERM\n" + started(t, egressCase, "a") + "touch $HOME/started\nuntil [ \"$stop\" ]; do sleep 0.05; done\n" +
		done(t, egressCase, report.Inconclusive, report.NotReached)
	r := runScript(t, t.Context(), script, contractCase, egressCase)
	if got := strings.Join(r.Cases[1].Problems, "\n"); r.ExitCode != 1 || !strings.Contains(got, `the check "b" of contract/builtin/cli`) || len(r.Problems) > 0 {
		t.Errorf("%d, %q, %q", r.ExitCode, got, r.Problems)
	}
}

// A check of the contract that a case does not stand on fails the run, and the case goes on, in its
// own lab and in another one.
func TestABrokenLeafOfTheContractEndsNoLab(t *testing.T) {
	leaf := egressCase
	leaf.Contract = catalogue.On("a")
	contract := contractCase
	contract.Checks = slices.Clone(checks)
	contract.Checks[1].Stands = catalogue.On()
	script := line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "native", Kernel: "k"}}) +
		"if has contract/; then\n" + done(t, contract, report.Pass, report.Fail) + "touch $HOME/broke; exit 0\nfi\n" +
		started(t, leaf, "a") + "trap 'exit 0' TERM\nuntil [ -e $HOME/broke ]; do sleep 0.01; done; sleep 0.3\n" + done(t, leaf, report.Pass, report.Pass)
	t.Setenv("HOME", t.TempDir())
	r := runScript(t, t.Context(), script, contract, leaf)
	if r.ExitCode != 1 || r.Cases[0].Verdict != report.Fail || r.Cases[1].Verdict != report.Pass || len(r.Problems) > 0 {
		t.Errorf("%d, %q: %+v", r.ExitCode, r.Problems, r.Cases)
	}
}

// What the step measured of its lab, and by what the deadlines were multiplied, is in the report.
func TestTheLabsSpeedAndThePatienceAreInTheReport(t *testing.T) {
	script := line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "native"}}) +
		line(t, report.Event{Kind: report.Note, Text: "it is slow", BareCreate: 40 * time.Second}) + done(t, egressCase, report.Pass, report.Pass)
	step := filepath.Join(t.TempDir(), "step")
	if err := os.WriteFile(step, []byte(readSetup+"grep -q '\"Patience\": 2.5' \"$3\" || exit 9\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	p := progress.New(io.Discard, progress.Style{}, time.Now())
	defer p.Close()
	r, err := Run(t.Context(), Options{
		Version: "test", Cases: []catalogue.Case{egressCase}, KVM: lab.Decision{KVM: lab.Native, Reason: "a test"}, Patience: 2.5,
		Tools: Tools{Self: step}, Lab: lab.Options{Cache: t.TempDir()}, Labs: 1, Report: t.TempDir(), Folder: t.TempDir(),
	}, p, nil)
	if err != nil || r.ExitCode != 0 || r.Head.Patience != 2.5 || r.Labs[0].BareCreate != 40*time.Second {
		t.Errorf("%v, %d, %q, %g, %+v", err, r.ExitCode, r.Problems, r.Head.Patience, r.Labs)
	}
}

func TestInterruptedRunIsInconclusiveAndSaysWhy(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(300*time.Millisecond, func() { cancel(errors.New("interrupted by the test")) })
	script := started(t, egressCase, "a") + "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done\n"
	r := runScript(t, ctx, script, egressCase)
	if r.ExitCode != 3 || !strings.Contains(r.Sentence(), "interrupted by the test") {
		t.Errorf("%d: %s", r.ExitCode, r.Sentence())
	}
}

// A step that does not end when it is asked to, as one whose clean-up takes long, is ended by the second signal.
func TestSecondSignalEndsTheLabsAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	again, dir := make(chan struct{}), t.TempDir()
	trapped, asked := filepath.Join(dir, "trapped"), filepath.Join(dir, "asked")
	go func() {
		appears(t, trapped)
		cancel(errors.New("interrupted by the test"))
		appears(t, asked)
		close(again)
	}()
	script := started(t, egressCase, "a") + "trap 'touch " + asked + "' TERM\ntouch " + trapped + "\nwhile :; do sleep 0.05; done\n"
	r := runScriptUntil(t, ctx, again, script, egressCase)
	if r.ExitCode != 3 || !strings.Contains(r.Sentence(), "interrupted by the test") {
		t.Errorf("%d: %s", r.ExitCode, r.Sentence())
	}
}

// appears waits until a file is there, or the test is over.
func appears(t *testing.T, path string) {
	for t.Context().Err() == nil {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A case that failed before its lab did has failed, and does not run again. Only what ran in a lab whose
// clock was wrong may change its verdict. The self-test has the rest: lab-dies-once and lab-dies.
func TestACaseThatFailedBeforeItsLabDidHasFailed(t *testing.T) {
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	first := "has contract/ && { " + strings.TrimSpace(done(t, contractCase, report.Pass, report.Pass)) + "; }\n"
	head := line(t, report.Event{Kind: report.Started, Head: &report.Head{KVM: "emulated", Kernel: "k"}})
	failing := line(t, report.Event{Kind: report.CheckDone, Case: egressCase.ID(), Check: &report.Check{Name: "a", Verdict: report.Fail}})
	for _, test := range []struct {
		name   string
		fault  fault.Fault
		script string
		code   int
		labs   int // each runs the case; whether the contract's runs again too is a matter of when the fault shows
		says   string
	}{
		{"after a fail", fault.LabDies, head + first + started(t, egressCase, "a") + failing + "sleep 60\n", 1, 1, "went away"},
		{"a fail by a wrong clock", fault.LabClockSlow, head + first + started(t, egressCase, "a") + failing + "sleep 60\n", 3, 2, "clock is wrong"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "step")
			if err := os.WriteFile(file, []byte(scriptHead+test.script), 0o755); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			p := progress.New(&said, progress.Style{Verbose: true}, time.Now())
			r, err := Run(t.Context(), Options{
				Version: "test", Cases: []catalogue.Case{contractCase, egressCase}, KVM: lab.Decision{KVM: lab.Emulated, Reason: "a test"},
				Tools: Tools{Self: file}, Lab: lab.Options{Cache: cache}, Labs: 1, Report: t.TempDir(), Folder: t.TempDir(), Fault: test.fault,
			}, p, nil)
			p.Close()
			if err != nil || r.ExitCode != test.code {
				t.Fatalf("%d, %v: %s; %q\n%s", r.ExitCode, err, r.Sentence(), r.Problems, said.String())
			}
			again := strings.Contains(said.String(), "a new one takes its place")
			if len(r.Labs) != test.labs || r.Labs[0].Failed == "" || again != (test.labs > 1) {
				t.Errorf("expected %d labs, got %+v\n%s", test.labs, r.Labs, said.String())
			}
			for _, l := range r.Labs {
				if !slices.Contains(l.Cases, egressCase.ID()) {
					t.Errorf("the lab %q had the cases %q", l.Name, l.Cases)
				}
			}
			if why := strings.Join(append(slices.Clone(r.Problems), r.Cases[len(r.Cases)-1].Problems...), "\n"); !strings.Contains(why, test.says) {
				t.Errorf("the report says %q", why)
			}
		})
	}
}

func TestSpreadKeepsEveryCaseAndPutsTheContractFirst(t *testing.T) {
	public := egressCase
	public.Name, public.Weight = "public", 2
	all := []catalogue.Case{contractCase, public, egressCase}
	for n := 1; n <= len(all); n++ {
		var got []string
		for _, mine := range spread(all, n) {
			for i, c := range mine {
				if c.Scenario == "contract" && i != 0 {
					t.Errorf("with %d labs, the contract is number %d of its lab", n, i+1)
				}
				got = append(got, c.ID())
			}
			if len(mine) == 0 {
				t.Errorf("with %d labs, one has nothing to do", n)
			}
		}
		want := []string{contractCase.ID(), public.ID(), egressCase.ID()}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("with %d labs, the cases are %q", n, got)
		}
	}
}
