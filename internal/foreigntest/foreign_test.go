package foreigntest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/report"
	"dagger/parity/internal/run"
)

const adapterFile = "testdata/foreign.yaml"

// programs is the folder with the built programs.
var programs string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "parity-foreign-")
	if err == nil {
		defer os.RemoveAll(dir)
		programs = dir
		err = labtest.Build(dir, "dagger/parity/cmd/...", "dagger/parity/internal/foreigntest/foreign")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// size is the size of the CLI's file: an agent is as large as that.
const size = 101 << 20

// foreign returns the foreign CLI without some of its traits, beside the agent for its guests. The
// file is sparse.
func foreign(t *testing.T, without ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"foreign", "parity-agent"} {
		content, err := os.ReadFile(filepath.Join(programs, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "foreign")
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Seek(size, io.SeekStart)
	if err == nil {
		_, err = f.WriteString("\nforeign-without:" + strings.Join(without, ",") + "\n")
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// ended is how a run of parity ended.
type ended struct {
	code   int
	said   string // on both outputs
	report report.Report
	dir    string
}

// parity runs a scenario with the CLI on the stand-in.
func parity(t *testing.T, cli, adapterFile string, args ...string) ended {
	t.Helper()
	e := ended{dir: filepath.Join(t.TempDir(), "report")}
	c := exec.Command(filepath.Join(programs, "parity"), append(args, "--standin", "--subject", cli, "--adapter", adapterFile, "--report", e.dir)...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	_ = c.Run()
	if c.ProcessState == nil {
		t.Fatal("parity could not be run")
	}
	e.code, e.said = c.ProcessState.ExitCode(), said.String()
	var err error
	if e.report, err = report.Read(e.dir); err != nil {
		t.Fatalf("%v\n%s", err, e.said)
	}
	return e
}

// verdict returns the verdict of a check, and what it saw.
func (e ended) verdict(name string) (report.Verdict, string) {
	for _, c := range e.report.Cases {
		for _, check := range c.Checks {
			if check.Name == name {
				return check.Verdict, check.Seen
			}
		}
	}
	return "", "no such check"
}

// deviations are what the adapter has to be said of.
var deviations = []string{
	"up: only the last line of standard output is read",
	"up: the CLI prints no outcome: its exit code alone says it",
	"up: the CLI has no field for why it failed: the end of standard error stands for it",
	"status: only the last line of standard output is read",
	"list: only the last line of standard output is read",
	"ssh: the exit code of the command in the guest is read from a text on standard error",
}

// The CLI has all its traits here. If a row fails, run it without some of them, which are named in
// foreign/traits.go, to see which assumption has come back: foreign(t, "again", "state").
func TestAForeignCLIGetsItsVerdict(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
	}{
		{"contract", []string{"contract", "--provider", "both"}},
		{"egress", []string{"egress", "--provider", "both"}},
		{"image-parity/registry", []string{"image-parity", "--only", "image-parity/*/registry"}},
		{"remote-agent", []string{"remote-agent"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := parity(t, foreign(t), adapterFile, test.args...)
			if e.code != 0 || e.report.Verdict != report.Pass || len(e.report.Problems) > 0 {
				t.Errorf("exit code %d and the verdict %s; expected 0 and pass\n%s", e.code, e.report.Verdict, e.said)
			}
			sum, err := run.HashFile(adapterFile)
			want := &report.Adapter{Name: "foreign.yaml", For: "foreign", SHA256: sum, Deviations: deviations}
			if got := e.report.Head.Subject.Adapter; err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("the head has the adapter %+v, expected %+v", got, want)
			}
			for _, d := range deviations {
				if !strings.Contains(e.said, d) {
					t.Errorf("the terminal does not show the deviation %q", d)
				}
			}
			for _, c := range e.report.Cases {
				if strings.HasPrefix(c.ID, "parity/") { // it runs nothing
					continue
				}
				transcript, err := os.ReadFile(filepath.Join(e.dir, report.TranscriptFile(c.ID)))
				if err != nil || !bytes.Contains(transcript, []byte("/foreign space open ")) || bytes.Contains(transcript, []byte(" workspace up ")) {
					t.Errorf("the transcript of %s: %v\n%.2000s", c.ID, err, transcript)
				}
			}
		})
	}
}

// An adapter that says it wrong is found out by the check that stands on it.
func TestAWrongAdapterIsFoundOut(t *testing.T) {
	text, err := os.ReadFile(adapterFile)
	if err != nil {
		t.Fatal(err)
	}
	cli := foreign(t, "slow")
	for _, test := range []struct {
		name, old, put string
		check, seen    string
	}{
		{"SSH as root", "user: {json: space.login}", "user: {text: root}", "workspace ssh: --stdio is clean (an SSH banner is the first byte, 1 MiB binary round trip)", "SSH"},
		{"all of the output", "    output: last-line\n    result:\n      id: {json: space.handle}", "    result:\n      id: {json: space.handle}", "workspace status: Running after up", "a JSON object"},
		{"no states", "    states: {up: Running, down: Stopped}\n", "", "workspace status: Running after up", "the state up"},
		{"states the wrong way round", "{up: Running, down: Stopped}", "{up: Stopped, down: Running}", "workspace status: Running after up", "the state Stopped"},
		{"the CLI's own exit code", "    exit: {stderr: 'remote command ended with ([0-9]+)'}\n", "", "workspace ssh: exit code 23 passes through --command", "exit code 1: "},
		{"another exit code for what is missing", "    missing: {exit: 4}\n    output", "    missing: {exit: 3}\n    output", "workspace status: a missing workspace exits 75", "4"},
		{"another exit code for a failure", "failed: {exit: 9}", "failed: {exit: 1}", "workspace up: error JSON and exit 1 for an image that cannot be found", "exit code 9"},
		{"entries elsewhere", "entries: {json: spaces}", "entries: {json: items}", "workspace list: JSON array", "expected a JSON array, seen <nil>"},
		{"a verb that is not there", "[space, halt", "[space, stop", "workspace stop: the state is Stopped", "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if strings.Count(string(text), test.old) != 1 {
				t.Fatalf("the adapter has not exactly one %q", test.old)
			}
			file := filepath.Join(t.TempDir(), "wrong.yaml")
			if err := os.WriteFile(file, []byte(strings.Replace(string(text), test.old, test.put, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			e := parity(t, cli, file, "contract", "--provider", "builtin")
			verdict, seen := e.verdict(test.check)
			if e.code != 1 || verdict != report.Fail || !strings.Contains(seen, test.seen) {
				t.Errorf("exit code %d, the check %q is %q and saw %q; expected a fail that shows %q\n%s", e.code, test.check, verdict, seen, test.seen, e.said)
			}
		})
	}
}

// The adapter is what the tests above take it for.
func TestTheForeignAdapter(t *testing.T) {
	_, a, err := adapter.Load(adapterFile)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range a.Deviations() {
		got = append(got, d.Text)
	}
	if !slices.Equal(got, deviations) {
		t.Errorf("the deviations are %q", got)
	}
}
