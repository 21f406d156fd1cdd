package subject_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// dialect is a CLI, a shell script, that is spoken to by the contract's adapter with changes.
func dialect(t *testing.T, script string, pairs ...string) subject.CLI {
	t.Helper()
	text, err := os.ReadFile("../adapter/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if strings.Count(string(text), pairs[i]) != 1 {
			t.Fatalf("%q is not there once", pairs[i])
		}
		text = []byte(strings.Replace(string(text), pairs[i], pairs[i+1], 1))
	}
	a, err := adapter.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cli.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return subject.CLI{Argv: []string{"/bin/sh", path}, Adapter: a, Home: home(t)}
}

// What up says in other words is what the contract's would be.
func TestUpInOtherWords(t *testing.T) {
	const failed, message = "failed: {exit: 1}", "      message: {json: message}\n"
	words := []string{failed, "failed: {exit: 9}\n    outcomes: {\"true\": success, \"false\": error}"}
	for _, test := range []struct {
		name, script string
		pairs        []string
		user, said   string // the user, or what the error says
		failed       bool   // it is an UpError
	}{
		{"success", `echo '{"outcome":true,"containerId":"c","remoteUser":"u"}'`, words, "u", "", false},
		{"failure", `echo '{"outcome":false,"message":"no room"}'; echo why >&2; exit 9`, words, "", "no room", true},
		{"the exit code of another failure", `echo '{"outcome":false,"message":"no room"}'; exit 1`, words, "", "breaks the command-line contract", false},
		{"success with a failure's exit code", `echo '{"outcome":true,"containerId":"c","remoteUser":"u"}'; exit 9`, words, "", "breaks the command-line contract", false},
		{"an outcome that has no word", `echo '{"outcome":"ok","containerId":"c","remoteUser":"u"}'`, words, "", "breaks the command-line contract", false},
		{"no user", `echo '{"outcome":true,"containerId":"c"}'`, words, "", "containerId and remoteUser", false},
		{"the reason is on standard error", `echo '{"outcome":"error"}'; echo first >&2; echo 'the disk is full' >&2; exit 1`, []string{message, ""}, "", "the disk is full", true},
		{"no reason anywhere", `echo '{"outcome":"error"}'; exit 1`, []string{message, ""}, "", "it said nothing on standard error", true},
		{"no outcome, and it failed", `echo 'no image' >&2; exit 1`, []string{message, "", "      outcome: {json: outcome}\n", ""}, "", "no image", true},
		{"no outcome, and it did not", `echo '{"containerId":"c","remoteUser":"u"}'`, []string{message, "", "      outcome: {json: outcome}\n", ""}, "u", "", false},
	} {
		res, err := dialect(t, test.script, test.pairs...).Up(bounded(t), subject.UpOptions{ID: "w", Provider: "p", Dir: t.TempDir()})
		var up *subject.UpError
		if test.said == "" && (err != nil || res.RemoteUser != test.user || res.Outcome != "success") {
			t.Errorf("%s: %+v, %v", test.name, res, err)
		}
		if test.said != "" && (err == nil || !strings.Contains(err.Error(), test.said) || errors.As(err, &up) != test.failed) {
			t.Errorf("%s: %v, want %q", test.name, err, test.said)
		}
	}
}

// The exit code of the guest's command comes from where the adapter has it, and only if the CLI
// failed.
func TestExitCodeInAText(t *testing.T) {
	const ssh = `[workspace, ssh, "{id}", --command, "{command}"]`
	for script, want := range map[string]int{
		`echo 'ended with 23' >&2; exit 1`:    23,
		`echo 'ended with 23' >&2`:            0,
		`echo 'the line is dead' >&2; exit 7`: 7,
	} {
		_, err := dialect(t, script, ssh, ssh+"\n    exit: {stderr: 'ended with ([0-9]+)'}").SSH(bounded(t), "w", "exit 23", nil)
		code, _ := proc.ExitCode(err)
		if code != want || (err == nil) != (want == 0) {
			t.Errorf("%s: %v, want exit code %d", script, err, want)
		}
	}
}

// MicroSandbox's name of a workspace can be what a command of the CLI says.
func TestSandboxByACommand(t *testing.T) {
	const sandbox = `{text: "devsy-{uid}"}`
	byCommand := `{run: [vm, "{id}", "{uid}"], json: vm.name}`
	w := subject.Workspace{ID: "w", UID: "7"}
	name, err := dialect(t, `echo "{\"vm\":{\"name\":\"box-$2-$3\"}}"`, sandbox, byCommand).Sandbox(bounded(t), w)
	if err != nil || name != "box-w-7" {
		t.Errorf("%q, %v", name, err)
	}
	for script, want := range map[string]string{
		`echo '{}'`:                    "it is not there",
		`echo box`:                     "not one JSON document",
		`echo 'no such vm'>&2; exit 3`: "no such vm",
	} {
		if name, err := dialect(t, script, sandbox, byCommand).Sandbox(bounded(t), w); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "vm w 7") {
			t.Errorf("%s: %q, %v, want %q", script, name, err, want)
		}
	}
}

// Each command is recorded with all that a reader of the transcript needs, and without secrets.
func TestCommandsAreRecorded(t *testing.T) {
	c := dialect(t, `echo out; echo 'Authorization: Bearer s3cr3t' >&2; exit 3`)
	var seen []report.Command
	c.Record = func(r report.Command) { seen = append(seen, r) }
	_ = c.Stop(bounded(t), "w")
	if len(seen) != 1 {
		t.Fatalf("%d commands were recorded", len(seen))
	}
	r := seen[0]
	if strings.Join(r.Argv[2:], " ") != "workspace stop w" || r.ExitCode != 3 || r.Ended != "" || r.Stdout != "out\n" ||
		r.Stderr != "Authorization: Bearer REDACTED\n" || r.Started.IsZero() || r.Elapsed <= 0 {
		t.Errorf("%+v", r)
	}
}
