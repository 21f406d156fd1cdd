package adapter

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestFillAndArgs(t *testing.T) {
	values := map[string]string{"id": "{dir}", "dir": "/w/{id}", "provider": "p"}
	for template, want := range map[string]string{
		"{id}":               "{dir}", // a value is not filled in again
		"--dir={dir}{id}":    "--dir=/w/{id}{dir}",
		"{{id}}":             "{{dir}}",
		"{nobody} {} {3} {A": "{nobody} {} {3} {A",
		`{"id":"{id}"}`:      `{"id":"{dir}"}`,
	} {
		if got := Fill(template, values); got != want {
			t.Errorf("%s: %q, want %q", template, got, want)
		}
	}
	up := Contract().Commands[Up].Run
	base := []string{"workspace", "up", "--ide", "none", "--id", "{dir}", "--provider", "p"}
	for _, test := range []struct {
		add     map[string]string
		options []string
		want    []string
	}{
		{nil, nil, []string{"/w/{id}"}},
		{map[string]string{"recreate": "true", "devcontainer": ""}, nil, []string{"--recreate", "/w/{id}"}},
		{map[string]string{"devcontainer": "{dir}.json"}, []string{"A={id}", "B="},
			[]string{"--devcontainer", "{dir}.json", "--provider-option", "A={id}", "--provider-option", "B=", "/w/{id}"}},
	} {
		all := map[string]string{}
		for _, m := range []map[string]string{values, test.add} {
			for k, v := range m {
				all[k] = v
			}
		}
		want := append(slices.Clone(base), test.want...)
		if got := Args(up, all, map[string][]string{"option": test.options}); !reflect.DeepEqual(got, want) {
			t.Errorf("seen     %q\nexpected %q", got, want)
		}
	}
	a := parsed(t, `{each: option, run: [--provider-option, "{option}"]}`, `{if: recreate, run: [{each: option, run: [{if: devcontainer, run: ["{option}+{devcontainer}"]}]}]}`)
	got := Args(a.Commands[Up].Run, map[string]string{"id": "i", "recreate": "y", "devcontainer": "d", "dir": "w"}, map[string][]string{"option": {"1", "2"}})
	if want := []string{"1+d", "2+d", "w"}; !reflect.DeepEqual(got[len(got)-3:], want) {
		t.Errorf("one in another: %q, want %q at the end", got, want)
	}
}

// result returns what the adapter of an up with one field reads.
func result(t *testing.T, value string, o Output) (string, error) {
	t.Helper()
	c := parsed(t, "user: {json: remoteUser}", "user: "+value, "      outcome: {json: outcome}\n      message: {json: message}\n      container: {json: containerId}\n", "",
		"      folder: {json: remoteWorkspaceFolder}\n", "").Commands[Up]
	read, err := c.Results(o)
	return read[User], err
}

func TestEachKindOfValue(t *testing.T) {
	home := t.TempDir()
	file := "other: {user: no}\nw.1: {user: dev}\nwx1: {user: no}\n"
	if err := os.WriteFile(filepath.Join(home, "w.1.yaml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Output{
		Stdout: []byte(`{"a":{"user":"dev","n":12345678901234567890,"b":true,"f":1.50,"none":null,"list":[{"user":"first"},"second"]}}`),
		Stderr: []byte("space w.1 is open for dev\nspace w.2 is open for root\n"),
		Values: map[string]string{"home": home, "folder": "/f", "id": "w.1"},
	}
	for value, want := range map[string]string{
		"{json: a.user}":                      "dev",
		"{json: a.n}":                         "12345678901234567890",
		"{json: a.b}":                         "true",
		"{json: a.f}":                         "1.50",
		"{json: a.none}":                      "",
		"{json: a}":                           "", // no scalar
		"{json: a.user.more}":                 "",
		"{json: a.list.0.user}":               "first",
		"{json: a.list.1}":                    "second",
		"{json: a.list.2}":                    "",
		"{json: a.list.-1}":                   "",
		"{json: a.list.user}":                 "",
		`{stdout: '"user":"(\w+)"'}`:          "dev",
		`{stderr: 'is open for (\w+)'}`:       "dev",
		`{stderr: 'space w.2 .* for (\w+)'}`:  "root",
		`{stderr: 'space {id} .* for (\w+)'}`: "dev",
		`{stderr: 'nothing (.*)'}`:            "",
		`{stderr: '\x{73}pac(e)'}`:            "e", // braces of the expression's own
		`{text: "{id}+{folder}"}`:             "w.1+/f",
		`{file: "{home}/{id}.yaml", pattern: '(?m)^{id}: .user: (\w+)'}`: "dev", // the id's dot is a dot
	} {
		if got, err := result(t, value, o); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", value, got, err, want)
		}
	}
	for value, want := range map[string]string{
		`{file: "{home}/absent", pattern: "(x)"}`: "user: open " + home + "/absent",
	} {
		if _, err := result(t, value, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
	for _, stdout := range []string{"", "up\n{}", "{} {}", "{}\nnow up"} {
		if _, err := result(t, "{json: a}", Output{Stdout: []byte(stdout)}); err == nil || !strings.Contains(err.Error(), "user: standard output is not one JSON document") {
			t.Errorf("%q: %v", stdout, err)
		}
	}
}

func TestLastLine(t *testing.T) {
	const logs = `{"log":"one"}` + "\n" + `{"log":"two"}` + "\n"
	missing := "    missing: {exit: 75}\n"
	status := parsed(t, missing, missing+"    output: last-line\n").Commands[Status]
	for _, stdout := range []string{`{"state":"up"}`, `{"state":"up"}` + "\n", logs + `{"state":"up"}` + "\r\n \n"} {
		if got, err := status.Results(Output{Stdout: []byte(stdout)}); err != nil || got[State] != "up" {
			t.Errorf("%q: %v, %v", stdout, got, err)
		}
	}
	if _, err := status.Results(Output{Stdout: []byte(`{"state":"up"}` + "\nBye!\n")}); err == nil {
		t.Error("a text after the result is read over")
	}
	whole := parsed(t, missing, missing+"    output: whole\n").Commands[Status]
	if _, err := whole.Results(Output{Stdout: []byte(logs)}); err == nil {
		t.Error("two lines are one document")
	}
	list := parsed(t, "  delete:\n", "    output: last-line\n    entries: {json: result.spaces}\n  delete:\n").Commands[List]
	got, err := list.List(Output{Stdout: []byte(logs + `{"result":{"spaces":[{"id":"a","uid":7,"provider":{"name":"p"}},{"id":"b"}]}}`)})
	want := []map[string]string{{"id": "a", "uid": "7", "provider": "p"}, {"id": "b", "uid": "", "provider": ""}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for stdout, want := range map[string]string{
		`{"result":{}}`: "expected a JSON array, seen <nil>", `{"result":{"spaces":null}}`: "expected a JSON array, seen <nil>",
		`[]`: "seen <nil>", `{"result":{"spaces":{}}}`: "seen map", "none": "not one JSON document",
	} {
		if _, err := list.List(Output{Stdout: []byte(stdout)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", stdout, err, want)
		}
	}
}

func TestEntriesOfLines(t *testing.T) {
	a := parsed(t, "  delete:\n", `    entries: {lines: '(?m)^(?P<id>[a-z]+) +(?P<provider>[a-z]+) +(?P<uid>[0-9]+)$'}`+"\n  delete:\n",
		"    result:\n      id: {json: id}\n      uid: {json: uid}\n      provider: {json: provider.name}\n", "")
	got, err := a.Commands[List].List(Output{Stdout: []byte("NAME PROVIDER UID\na p 1\nbb  q   22\n\n2 spaces\n")})
	want := []map[string]string{{"id": "a", "provider": "p", "uid": "1"}, {"id": "bb", "provider": "q", "uid": "22"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := a.Commands[List].List(Output{Stdout: []byte("NAME PROVIDER UID\n")}); err != nil || len(got) > 0 {
		t.Errorf("no entry: %v, %v", got, err)
	}
}

// The CLI's own words come last: what the command in the guest printed before is not the exit code.
func TestExitCodeOfTheGuest(t *testing.T) {
	const ssh = `[workspace, ssh, "{id}", --command, "{command}"]`
	for stderr, want := range map[string]int{
		"remote command ended with 23\n":                                23,
		"remote command ended with 0\n\nremote command ended with 23\n": 23,
		"err\nremote command ended with 255":                            255,
		"the connection was lost":                                       -1,
		"remote command ended with 99999999999999999999":                -1,
	} {
		c := parsed(t, ssh, ssh+"\n    exit: {stderr: 'remote command ended with ([0-9]+)'}").Commands[SSH]
		code, ok := c.ExitCode(Output{Stderr: []byte(stderr), Stdout: []byte("remote command ended with 7")})
		if ok != (want >= 0) || ok && code != want {
			t.Errorf("%q: %d, %t, want %d", stderr, code, ok, want)
		}
	}
	if _, ok := Contract().Commands[SSH].ExitCode(Output{Stderr: []byte("remote command ended with 7")}); ok {
		t.Error("the contract has no such text")
	}
}

func TestEnding(t *testing.T) {
	const missing = "missing: {exit: 75}"
	e := parsed(t, missing, `missing: {exit: [4, 5], stderr: "no such space", stdout: '"code":4'}`).Commands[Status].Missing
	for _, test := range []struct {
		code           int
		stdout, stderr string
		want           bool
	}{
		{4, `{"code":4}`, "there is no such space", true},
		{5, `{"code":4}`, "no such space", true},
		{9, `{"code":4}`, "no such space", false},
		{4, `{"code":9}`, "no such space", false},
		{4, `{"code":4}`, "no such source", false},
		{0, `{"code":4}`, "no such space", false},
	} {
		if got := e.Is(test.code, []byte(test.stdout), []byte(test.stderr)); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
	if (*Ending)(nil).Is(4, nil, nil) {
		t.Error("no ending is one")
	}
}

// Each way to read a result otherwise than the contract has it is a deviation, and another spelling
// is none.
func TestDeviations(t *testing.T) {
	const (
		missing = "    missing: {exit: 75}\n"
		failed  = "failed: {exit: 1}"
		ssh     = `[workspace, ssh, "{id}", --command, "{command}"]`
		state   = "state: {json: state}"
	)
	for _, test := range []struct {
		name, old, put, want string
	}{
		{"another command", `[workspace, stop, "{id}"]`, `[space, halt, "{id}", --now]`, ""},
		{"another field", "user: {json: remoteUser}", "user: {json: result.login}", ""},
		{"another exit code", missing, "    missing: {exit: 4}\n", ""},
		{"another word", missing, missing + "    states: {up: Running, down: Stopped}\n", ""},
		{"another place of the entries", "  delete:\n", "    entries: {json: spaces}\n  delete:\n", ""},
		{"another word of the outcome", failed, failed + "\n    outcomes: {true: success, false: error}", ""},
		{"no folder, which may be empty", "      folder: {json: remoteWorkspaceFolder}\n", "", ""},
		{"no such command", `[provider, add, "{source}", --name, "{name}", {each: option, run: [-o, "{option}"]}]`, "[]", "provider-add: the CLI has no such command, and nothing is run"},
		{"the last line", missing, missing + "    output: last-line\n", "status: only the last line of standard output is read"},
		{"the guest's exit code", ssh, ssh + "\n    exit: {stderr: 'code ([0-9]+)'}", "ssh: the exit code of the command in the guest is read from a text on standard error"},
		{"missing by a text", missing, "    missing: {exit: 75, stderr: no such}\n", "status: that there is no such thing is read from a text"},
		{"missing by exit code 1", missing, "    missing: {exit: [4, 1]}\n", "status: exit code 1, which stands for any failure, is read as: there is no such thing"},
		{"missing by the code of a crash", missing, "    missing: {exit: 2}\n", "status: exit code 2, which stands for bad usage, or a crash, is read as: there is no such thing"},
		{"missing by the code of a signal", missing, "    missing: {exit: 139}\n", "status: exit code 139, which stands for a crash, is read as: there is no such thing"},
		{"missing by a shell's code", missing, "    missing: {exit: 127}\n", "status: exit code 127, which stands for a program that cannot be run, is read as: there is no such thing"},
		{"missing by several codes", missing, "    missing: {exit: [75, 76]}\n", "status: any of 2 exit codes is read as: there is no such thing"},
		{"failed by several codes", failed, "failed: {exit: [1, 9]}", "up: any of 2 exit codes is read as a failure that the CLI explains"},
		{"one field for two results", "container: {json: containerId}", "container: {json: remoteUser}", "up: container, user are read from the one field remoteUser"},
		{"no outcome", "      outcome: {json: outcome}\n", "", "up: the CLI prints no outcome: its exit code alone says it"},
		{"no message", "      message: {json: message}\n", "", "up: the CLI has no field for why it failed: the end of standard error stands for it"},
		{"any failure", "    " + failed + "\n", "", "up: any exit code but 0 is read as a failure that the CLI explains"},
		{"failed by a text", failed, "failed: {exit: 1, stderr: x}", "up: that it failed is read from a text"},
		{"no container", "      container: {json: containerId}\n", "", "up: the CLI does not say the container"},
		{"no uid", "      context: {json: context}\n", "", "status: the CLI does not say the context"},
		{"a text on standard output", state, "state: {stdout: '(.*)'}", "status: state is read from a text on standard output"},
		{"a text on standard error", state, "state: {stderr: '(.*)'}", "status: state is read from a text on standard error"},
		{"a file", state, "state: {file: '{home}/{id}', pattern: '(.*)'}", "status: state is read from the file {home}/{id}"},
		{"the adapter itself", state, "state: {text: Running}", `status: state is read from the adapter, which has "Running" for it`},
		{"one state for two words", missing, missing + "    states: {up: Running, broken: Running}\n", "status: broken, up are all read as Running"},
		{"one outcome for two words", failed, failed + "\n    outcomes: {ok: success, warn: success}", "up: ok, warn are all read as success"},
	} {
		var got []string
		for _, d := range parsed(t, test.old, test.put).Deviations() {
			got = append(got, d.String())
		}
		if strings.Join(got, "\n") != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	lines := parsed(t, "  delete:\n", "    entries: {lines: '(?P<id>.*) (?P<uid>.*)'}\n  delete:\n",
		"    result:\n      id: {json: id}\n      uid: {json: uid}\n      provider: {json: provider.name}\n", "", failed, "failed: {exit: 4}", missing, "    missing: {exit: [3, 4]}\n")
	want := []Deviation{
		{Status, "missing", "status: exit code 4, with which up fails too, is read as: there is no such thing"},
		{List, "entries", "list: the entries are read from lines of text"},
		{List, Provider, "list: the CLI does not say the provider"},
	}
	if got := lines.Deviations(); !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
