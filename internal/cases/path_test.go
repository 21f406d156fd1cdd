package cases

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dagger/parity/internal/adapter"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// commands makes a folder of programs that say where they are.
func commands(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+filepath.Join(dir, name)+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// bench makes a Bench for the built-in provider.
func bench(t *testing.T, e Env, around Surroundings) *Bench {
	t.Helper()
	r := NewRecorder(t.Context(), catalogue.Case{Scenario: "s", Provider: catalogue.Builtin, Name: "n"}, "run", func(report.Event) {})
	b, err := NewBench(e, catalogue.Builtin, r, t.TempDir(), around, &Cleanup{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What happens to be installed on this machine does not reach the subject: it finds msb, POSIX
// utilities, what its case has, and what the user adds, in that order.
func TestTheSubjectsPathIsTheCasesOwn(t *testing.T) {
	machine := commands(t, "docker", "kubectl", "sed")
	engine, added, msb := commands(t, "docker"), commands(t, "kubectl", "docker"), commands(t, "msb")
	t.Setenv("PATH", machine+":"+os.Getenv("PATH"))
	for _, test := range []struct {
		name   string
		around Surroundings
		added  []string
		want   map[string]string // by program; "" for none
	}{
		{"no engine", Surroundings{}, nil, map[string]string{"docker": "", "kubectl": "", "msb": msb, "sh": "any", "sed": "any"}},
		{"an engine", Surroundings{Path: []string{engine}}, nil, map[string]string{"docker": engine, "kubectl": ""}},
		{"a folder of the user's", Surroundings{}, []string{added}, map[string]string{"docker": added, "kubectl": added}},
		{"both", Surroundings{Path: []string{engine}}, []string{added}, map[string]string{"docker": engine, "kubectl": added}},
	} {
		b := bench(t, Env{Tools: Tools{MSB: filepath.Join(msb, "msb"), Subject: []string{"/bin/sh"}, Path: test.added}}, test.around)
		i := slices.IndexFunc(b.Subject.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "PATH=") })
		path := b.Subject.Environ()[i]
		if strings.Contains(path, machine) {
			t.Errorf("%s: %s has the machine's own %s", test.name, path, machine)
		}
		for program, want := range test.want {
			c := exec.Command("/bin/sh", "-c", "command -v "+program)
			c.Env = []string{path}
			out, _ := c.Output()
			got := strings.TrimSuffix(string(out), "\n")
			if want == "any" && got != "" || want != "any" && want != "" && got == filepath.Join(want, program) || want == "" && got == "" {
				continue
			}
			t.Errorf("%s: %s is %q, want %q", test.name, program, got, want)
		}
	}
}

// Each of the utilities runs in that PATH as it does in this machine's.
func TestBasicsRun(t *testing.T) {
	b := bench(t, Env{Tools: Tools{MSB: "/m/msb", Subject: []string{"/bin/sh"}}}, Surroundings{})
	c := exec.Command("/bin/sh", "-c", "printf 'b\na\n' | sort | sed s/a/A/ | head -n 1 | tr A-Z a-z | base64 && mkdir -p x/y && ls x | wc -l && rm -r x")
	c.Env, c.Dir = []string{"PATH=" + b.Subject.Home.Path}, t.TempDir()
	if out, err := c.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("YQo=")) {
		t.Errorf("%v: %s", err, out)
	}
}

// The SOURCE of the built-in provider is the user's, else the adapter's, else the contract's; an
// adapter that names none says what to do.
func TestBuiltinSource(t *testing.T) {
	text, err := os.ReadFile("../adapter/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(text), "builtin: {name: microsandbox}", "", 1)
	other := strings.Replace(string(text), "{name: microsandbox}", "{name: vm}", 1)
	for _, test := range []struct{ adapter, given, want string }{
		{"", "", "microsandbox"}, {"", "own", "own"}, {other, "", "vm"}, {other, "own", "own"}, {without, "own", "own"},
	} {
		if got, err := (Env{Tools: Tools{Adapter: test.adapter, Builtin: test.given}}).builtin(t.TempDir()); err != nil || got != test.want {
			t.Errorf("%q, %v, want %q", got, err, test.want)
		}
	}
	_, err = Env{Tools: Tools{Adapter: without}}.builtin(t.TempDir())
	for _, want := range []string{"the adapter " + adapter.Contract().Name, "builtin", "--builtin-source"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
