package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeAdapter writes the contract's adapter, with parts replaced, into a file.
func writeAdapter(t *testing.T, pairs ...string) string {
	t.Helper()
	text, err := os.ReadFile("../adapter/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// An adapter that can be used exits with 0, whatever it deviates in; what it makes is shown.
func TestAdapterCheckShowsWhatAnAdapterMakes(t *testing.T) {
	res := parity(t, nil, "adapter", "check", writeAdapter(t))
	if res.code != 0 || res.stderr != "" {
		t.Errorf("code %d, stderr %q", res.code, res.stderr)
	}
	for _, want := range []string{
		"contract: the command line of docs/contract.md\n",
		"\nup              workspace up --ide none --id ID --provider PROVIDER --recreate --devcontainer DEVCONTAINER --provider-option KEY=VALUE DIR\n",
		"\nssh             workspace ssh ID --command COMMAND\n",
		"\nenvironment     DEVSY_HOME={folder}\n",
		"\n0 deviations\n",
	} {
		if !strings.Contains(res.stdout, want) {
			t.Errorf("no %q in\n%s", want, res.stdout)
		}
	}
	res = parity(t, nil, "adapter", "check", writeAdapter(t, "{exit: 75}", "{exit: 1}",
		`[provider, delete, "{name}", --ignore-not-found]`, "[]", "      message: {json: message}\n", ""))
	for _, want := range []string{
		"\nprovider-delete (the CLI has no such command)\n",
		"\n3 deviations\n  provider-delete: the CLI has no such command, and nothing is run\n  up: the CLI has no field for why it failed",
		"\n  status: exit code 1, which stands for any failure, is read as: there is no such thing\n",
	} {
		if res.code != 0 || !strings.Contains(res.stdout, want) {
			t.Errorf("code %d, no %q in\n%s", res.code, want, res.stdout)
		}
	}
}

// One that cannot be used exits with 2, as does a run with it, before anything is run.
func TestAdapterCheckNamesTheMistake(t *testing.T) {
	bad := writeAdapter(t, `"{id}", --stdio]`, `"{uid}", --stdio]`)
	text, _ := os.ReadFile(bad)
	if !strings.HasSuffix(string(text), "\n") || strings.Count(string(text), "\n") < 60 {
		t.Fatalf("the contract's adapter is another one:\n%s", text)
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"adapter", "check", bad}, []string{bad + ":63:27: unknown placeholder {uid}; known here are: id"}},
		{[]string{"contract", "--standin", "--subject", "/bin/true", "--adapter", bad}, []string{"--adapter", bad + ":63:27:", "parity adapter check"}},
		{[]string{"contract", "--standin", "--adapter", bad}, []string{"--adapter", bad, "--subject"}},
		{[]string{"adapter", "check", "/nonexistent/a.yaml"}, []string{"/nonexistent/a.yaml"}},
		{[]string{"adapter", "check", filepath.Dir(bad)}, []string{filepath.Dir(bad)}},
		{[]string{"adapter", "check"}, []string{"accepts 1 arg"}},
		{[]string{"adapter", "check", bad, bad}, []string{"accepts 1 arg"}},
		{[]string{"adapter", "chekc", bad}, []string{`unknown command "chekc"`}},
		{[]string{"egress", "--standin", "--adapter="}, []string{`--adapter "": the value is empty`}},
		{[]string{"egress", "--standin", "--builtin-source="}, []string{`--builtin-source "": the value is empty`}},
		{[]string{"egress", "--standin", "--subject-path="}, []string{`--subject-path ""`, "existing folder of programs"}},
		{[]string{"egress", "--standin", "--subject-path", "/nonexistent"}, []string{`--subject-path "/nonexistent"`, "existing folder of programs"}},
	} {
		res := parity(t, nil, test.args...)
		for _, want := range test.want {
			if res.code != 2 || res.stdout != "" || !strings.Contains(res.stderr, want) {
				t.Errorf("parity %q: code %d, stdout %q, stderr %q; want code 2 and %q", test.args, res.code, res.stdout, res.stderr, want)
			}
		}
	}
}
