package adapter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// changed returns the contract's adapter with an exact part of its text replaced.
func changed(t *testing.T, pairs ...string) string {
	t.Helper()
	text := string(contract)
	for i := 0; i < len(pairs); i += 2 {
		if strings.Count(text, pairs[i]) != 1 {
			t.Fatalf("%q is there %d times", pairs[i], strings.Count(text, pairs[i]))
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// parsed returns the contract's adapter with changes, which can be used.
func parsed(t *testing.T, pairs ...string) *Adapter {
	t.Helper()
	a, err := Parse([]byte(changed(t, pairs...)))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Each mistake is named with its place and with the words that its author needs. at is the text at
// the place; it is in what is put in, or after it.
func TestMistakesAreNamedWithTheirPlace(t *testing.T) {
	const (
		missing = "    missing: {exit: 75}\n"
		failed  = "failed: {exit: 1}"
		user    = "user: {json: remoteUser}"
		stdio   = `[workspace, ssh, "{id}", --stdio]`
		devc    = `{if: devcontainer, run: [--devcontainer, "{devcontainer}"]}`
		env     = `DEVSY_CONFIG: ""`
		sandbox = `{text: "devsy-{uid}"}`
		state   = "state: {json: state}\n"
		listed  = "provider: {json: provider.name}\n"
	)
	for _, test := range []struct {
		name, old, put, at, want string
	}{
		{"an unknown key", "about: the command", "abuot: the command", "abuot", `unknown key "abuot"; known are about, adapter, agent, builtin, commands, deny, environment, external, name, patience, sandbox`},
		{"an unknown key of a command", "    run: [workspace, stop", "    runs: [workspace, stop", "runs", `unknown key "runs"; known are run`},
		{"a key of another verb", "    run: [workspace, stop", "    result: {}\n    run: [workspace, stop", "result: {}", `unknown key "result"; known are run`},
		{"a key twice", "name: contract", "name: contract\nname: other", "name: other", `the key "name" is there twice`},
		{"a variable twice", env, env + "\n  DEVSY_CONFIG: x", "DEVSY_CONFIG: x", `"DEVSY_CONFIG" is there twice`},
		{"a merge key", "builtin: {name: microsandbox}", "builtin: {<<: {}, name: microsandbox}", "<<", `unknown key "<<"; known are driver, name`},
		{"another schema", "adapter: v1", "adapter: v2", "adapter: v2", `adapter: expected v1, the schema that this version of Parity reads; seen "v2"`},
		{"no name", "name: contract\n", "", "adapter: v1", "name: expected the CLI's name, seen none"},
		{"no sandbox", "sandbox: " + sandbox + "\n", "", "adapter: v1", `such as {text: "devsy-{uid}"}; seen none`},
		{"a sandbox in two ways", sandbox, `{text: "x-{uid}", run: [a]}`, `{text: "x-{uid}", run: [a]}`, "expected {text: TEMPLATE}, or run with one of json and stdout"},
		{"a sandbox of all", sandbox, `{text: devsy}`, `{text: devsy}`, "expected {uid} or {id} in it"},
		{"a sandbox by a uid that is not shown", "      uid: {json: uid}\n", "", sandbox, "commands.list has no uid"},
		{"an unknown placeholder", stdio, `[ssh, "{id}", "{uid}"]`, `"{uid}"`, "unknown placeholder {uid}; known here are: id"},
		{"a placeholder where there is none", "[workspace, list, --result-format, json]", `["{id}"]`, `"{id}"`, "unknown placeholder {id}; known here are: none"},
		{"a placeholder of each outside of it", "[workspace, stop, \"{id}\"]", `[stop, "{option}", "{id}"]`, `"{option}"`, "unknown placeholder {option}"},
		{"a placeholder in the environment", env, `DEVSY_CONFIG: "{id}"`, `"{id}"`, "unknown placeholder {id}; known here are: folder, home"},
		{"a placeholder in a pattern", user, `user: {stdout: "user of {uid} is (.*)"}`, `"user of {uid}`, "unknown placeholder {uid}; known here are: folder, home, id"},
		{"a placeholder in an ending", missing, "    missing: {exit: 3, stderr: \"no {id}\"}\n", `"no {id}"`, "unknown placeholder {id}; known here are: none"},
		{"an unknown condition", devc, `{if: spec, run: [x]}`, "{if: spec", `if: unknown condition "spec"; known here are: recreate, devcontainer`},
		{"a condition where there is none", "[workspace, stop, \"{id}\"]", `["{id}", {if: force, run: [-f]}]`, "{if: force, run: [-f]}", `unknown condition "force"; known here are: none`},
		{"an unknown list", devc, `{each: mount, run: [x]}`, "{each: mount", `each: unknown list "mount"; known here are: option`},
		{"if and each", devc, `{if: recreate, each: option, run: [x]}`, "{if: recreate, each", "expected one of if and each, and run"},
		{"neither", devc, `{run: [x]}`, "{run: [x]}", "expected one of if and each, and run"},
		{"a condition of nothing", devc, `{if: recreate}`, "{if: recreate}", "run: expected arguments, seen none"},
		{"a line for an argument", stdio, "workspace ssh --stdio", "workspace ssh --stdio", "expected a list of arguments, one an entry"},
		{"an empty argument", stdio, "[\"{id}\", ~]", "~]", "expected a text"},
		{"an argument without its value", `[workspace, ssh, "{id}", --command, "{command}"]`, `[ssh, "{id}"]`, `run: [ssh, "{id}"]`, "run: expected {command} among the arguments of ssh, seen none"},
		{"a missing verb", "  stdio:\n    run: " + stdio, "", "adapter: v1", "commands: expected stdio; give `run: []` if the CLI has no such command"},
		{"no run", "    run: " + stdio, "    {}", "{}", "expected run, the arguments of stdio"},
		{"a command that must be", stdio, "[]", "run: []", "run: expected the arguments of stdio, seen none: without it nothing can be tested"},
		{"a bad regular expression", user, `user: {stdout: "user (.*"}`, `"user (.*"`, "not a regular expression of Go's regexp package: error parsing regexp: missing closing )"},
		{"a pattern without a group", user, `user: {stderr: "user .*"}`, `"user .*"`, "expected a pattern with one group in parentheses, which is the value; seen 0"},
		{"a pattern with two", user, `user: {stderr: "(a)(b)"}`, `"(a)(b)"`, "one group in parentheses, which is the value; seen 2"},
		{"two places", user, `user: {json: a, text: b}`, "{json: a", "expected exactly one of json, stdout, stderr, file (with pattern) and text; seen 2"},
		{"no place", user, `user: {}`, "{}", "file (with pattern) and text; seen 0"},
		{"a file without a pattern", user, `user: {file: "{home}/x"}`, `{file: "{home}/x"}`, "file and pattern go together"},
		{"a pattern without a file", user, `user: {json: a, pattern: "(x)"}`, "{json: a", "file and pattern go together"},
		{"a file elsewhere", user, `user: {file: "{dir}/x", pattern: "(x)"}`, `"{dir}/x"`, "unknown placeholder {dir}; known here are: folder, home, id"},
		{"a result that there is not", user, user + "\n      host: {json: host}", "host: {json: host}", `unknown key "host"; known are container, folder, message, outcome, user`},
		{"no user", "      " + user + "\n", "", "run:\n      - workspace", "result: expected user of up, seen none"},
		{"no state", "      " + state, "", "run: [workspace, status", "result: expected state of status, seen none"},
		{"a state that there is not", missing, missing + "    states: {up: Runing}\n", "Runing", `expected one of Running, Stopped, for the CLI's word "up"; seen "Runing"`},
		{"states as a list", missing, missing + "    states: [up]\n", "[up]", "expected a mapping of names and texts"},
		{"an outcome that there is not", failed, failed + "\n    outcomes: {true: ok}", "ok}", "expected one of success, error"},
		{"exit code 0", failed, "failed: {exit: 0}", "0}", `exit: expected an exit code of 1 to 255, or a list of them; seen "0"`},
		{"exit code 256 in a list", failed, "failed: {exit: [1, 256]}", "256]}", `of 1 to 255, or a list of them; seen "256"`},
		{"an exit code in words", failed, "failed: {exit: one}", "one}", `seen "one"`},
		{"no exit code", failed, `failed: {stderr: "x"}`, `{stderr: "x"}`, "exit: expected the exit code, seen none"},
		{"a guest's exit code from JSON", `[workspace, ssh, "{id}", --command, "{command}"]`, "[\"{id}\", \"{command}\"]\n    exit: {json: code}", `run: ["{id}", "{command}"]`, "exit: expected stderr or stdout, a pattern with one group"},
		{"output", missing, missing + "    output: last\n", "last\n", `output: expected whole or last-line, seen "last"`},
		{"entries in two ways", "  delete:\n", "    entries: {json: a, lines: \"(?P<id>x)\"}\n  delete:\n", "{json: a, lines", "expected one of json, the path to an array, and lines, a pattern"},
		{"entries without ids", "  delete:\n", "    entries: {lines: \"(x)\"}\n  delete:\n", `{lines: "(x)"}`, "lines: expected a group (?P<id>...)"},
		{"a builtin provider in two ways", "builtin: {name: microsandbox}", "builtin: {name: a, driver: b}", "{name: a, driver: b}", "expected one of name, the SOURCE of provider-add, and driver"},
		{"patience 0", "agent: devsy", "patience: 0\nagent: devsy", "0\nagent", `patience: expected a number from 0.01 to 1000, by which deadlines are multiplied; seen "0"`},
		{"patience without end", "agent: devsy", "patience: .inf\nagent: devsy", ".inf", `patience: expected a number from 0.01 to 1000`},
		{"no number for patience", "agent: devsy", "patience: .nan\nagent: devsy", ".nan", `patience: expected a number from 0.01 to 1000`},
		{"a variable of the case", env, "HOME: /root", "HOME: /root", "HOME is the case's own: an adapter cannot set it"},
		{"PATH", env, "PATH: /usr/bin", "PATH: /usr/bin", "PATH is the case's own"},
		{"the engine", env, "DOCKER_HOST: unix:///x", "DOCKER_HOST: unix", "DOCKER_HOST is the case's own"},
		{"no variable", env, "\"A=B\": x", "\"A=B\": x", `"A=B" is no name of a variable`},
		{"nothing", "name: contract", "name:", "\nabout", "expected a text"},
		{"a list for a mapping", "deny: {MICROSANDBOX_BLOCK_EGRESS: \"true\"}", "deny: [x]", "[x]", "expected a mapping of names and texts"},
		{"a text for a mapping", "builtin: {name: microsandbox}", "builtin: microsandbox", "microsandbox", "expected a mapping with driver, name"},
		{"an alias in itself", devc, "&a {if: recreate, run: [*a]}", "*a]", "the alias stands for what it is in"},
		{"two documents", "agent: devsy", "---\nagent: devsy", "---\n", "expected one YAML document"},
		{"a mistake behind an alias", listed, listed + "  x-stop: &s [\"{uid}\"]\n", "x-stop", `unknown key "x-stop"; known are delete, list, provider-add, provider-delete, ssh, status, stdio, stop, up`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := changed(t, test.old, test.put)
			_, err := Parse([]byte(text))
			var at *Error
			if err == nil || !errors.As(err, &at) {
				t.Fatalf("%v, want an *Error", err)
			}
			// The place is looked for from where the text was changed.
			from := max(strings.Index(string(contract), test.old), 0)
			if strings.HasPrefix(text, test.at) {
				from = 0
			}
			rest := text[from:]
			before, _, found := strings.Cut(rest, test.at)
			if !found { // or before that
				from, before = 0, strings.SplitN(text, test.at, 2)[0]
			}
			up := text[:from] + before
			want := fmt.Sprintf("%d:%d: ", strings.Count(up, "\n")+1, len(up)-strings.LastIndexByte(up, '\n'))
			if !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("seen     %v\nexpected %s... %s", err, want, test.want)
			}
		})
	}
}

func TestFilesThatAreNoAdapter(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"empty":    {"", "1:1: the file is empty; docs/adapters.md has an example"},
		"comments": {"# nothing\n", "1:1: the file is empty"},
		"null":     {"~\n", "1:1: the file is empty"},
		"a text":   {"devsy\n", "1:1: expected a mapping with about, adapter,"},
		"a list":   {"- a\n", "1:1: expected a mapping with"},
		"JSON":     {`{"adapter": "v1"}`, "1:1: name: expected the CLI's name"},
		"no YAML":  {"a: [\nb: }\n", ": not YAML: yaml: line"},
		"tabs":     {"a:\n\tb: c\n", ": not YAML: yaml: line 2"},
	} {
		file := filepath.Join(t.TempDir(), "foreign.yaml")
		if err := os.WriteFile(file, []byte(test.text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, _, err := Load(file)
		if err == nil || !strings.HasPrefix(err.Error(), file+":") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s and %q", name, err, file, test.want)
		}
	}
	if _, _, err := Load("/nonexistent/x.yaml"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "/nonexistent/x.yaml") {
		t.Error(err)
	}
}

// What is no regular file is refused, and not waited for.
func TestAnAdapterIsARegularFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, make([]byte, maxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{pipe: "is no regular file", filepath.Dir(pipe): "is no regular file", big: "an adapter has at most"} {
		if _, _, err := Load(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%v, want %s and %q", err, file, want)
		}
	}
}

// What an alias stands for is read in its place, and not more of it than an adapter can need.
func TestAliases(t *testing.T) {
	a := parsed(t,
		"name: contract", "name: &n contract", "about: the command line of docs/contract.md", "about: *n",
		`[workspace, stop, "{id}"]`, `[*w, stop, &id "{id}"]`,
		"      - workspace\n      - up", "      - &w workspace\n      - up",
		`[workspace, ssh, "{id}", --stdio]`, "[*w, ssh, *id, --stdio]",
		"missing: {exit: 75}", "missing: &m {exit: 75}", "  stdio:", "  stdio: ")
	if a.About != "contract" {
		t.Errorf("about is %q", a.About)
	}
	got := Args(a.Commands[Stdio].Run, map[string]string{"id": "x"}, nil)
	if want := []string{"workspace", "ssh", "x", "--stdio"}; !reflect.DeepEqual(got, want) {
		t.Errorf("stdio is %q, want %q", got, want)
	}
	lines := []string{"a0: &a0 [x,x,x,x,x,x,x,x,x,x]"}
	for i := 1; i < 9; i++ {
		lines = append(lines, fmt.Sprintf("a%d: &a%d [%s]", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10)))
	}
	if _, err := Parse([]byte(strings.Join(lines, "\n"))); err == nil || !strings.Contains(err.Error(), "too much") {
		t.Errorf("aliases that grow without end: %v", err)
	}
}

// The contract's adapter can be used, names every verb, and deviates from itself in nothing.
func TestContract(t *testing.T) {
	a := Contract()
	if len(a.Commands) != len(Verbs()) || a.Patience != 1 || a.Agent != "devsy-linux-amd64" || a.Builtin.Name != "microsandbox" {
		t.Errorf("%+v", a)
	}
	if got := a.Deviations(); len(got) > 0 {
		t.Errorf("the contract deviates from itself: %v", got)
	}
	if a := parsed(t, "agent: devsy-linux-amd64\n", ""); a.Agent != "contract-linux-amd64" {
		t.Errorf("the agent of an adapter that does not name it is %q", a.Agent)
	}
}
