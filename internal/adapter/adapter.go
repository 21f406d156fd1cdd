// Package adapter reads adapters. An adapter is a YAML file that says how one workspace CLI spells
// the commands that Parity runs, and where that CLI says its results. The contract
// (docs/contract.md) is the adapter that Parity uses if it is given none.
//
// The package runs nothing: it makes arguments, and reads results from what a command printed.
package adapter

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Schema is the value of the key adapter. It changes if a key changes its meaning or goes away.
const Schema = "v1"

// Verb names a command that Parity runs.
type Verb string

// The verbs. An adapter has a command for each.
const (
	ProviderAdd    Verb = "provider-add"
	ProviderDelete Verb = "provider-delete"
	Up             Verb = "up"
	Stop           Verb = "stop"
	Status         Verb = "status"
	List           Verb = "list"
	Delete         Verb = "delete"
	SSH            Verb = "ssh"
	Stdio          Verb = "stdio"
)

// The fields of results that Parity reads.
const (
	Outcome   = "outcome"   // of up: "success" or "error"
	Message   = "message"   // of up: why it failed
	Container = "container" // of up: the machine's id
	User      = "user"      // of up: whom to log in as
	Folder    = "folder"    // of up: the workspace's folder in the guest
	ID        = "id"        // of status and list
	Context   = "context"   // of status
	Provider  = "provider"  // of status and list
	State     = "state"     // of status
	UID       = "uid"       // of list
)

// Adapter says how a workspace CLI is spoken to. Parse returns one that is complete.
type Adapter struct {
	Name        string            // of the CLI
	About       string            // which version it is for; may be empty
	Environment map[string]string // variables and the templates of their values
	Builtin     Source            // how the built-in provider is added
	External    Source            // how an external provider is made if the user gives none
	Sandbox     Sandbox           // how MicroSandbox's name of a workspace is found
	Deny        map[string]string // the provider's options that deny egress
	Agent       string            // the file name under which the CLI looks for its agent
	Patience    float64           // multiplies the deadlines; 1 if the file does not say it
	Commands    map[Verb]Command  // by verb; all are there
}

// Source says where a provider comes from. Exactly one field is set, or none.
type Source struct {
	Name   string // the SOURCE of the command provider-add
	Driver string // "custom": a provider.yaml by which the CLI calls `parity driver` for each step
}

// Sandbox says how MicroSandbox's name of a workspace is found: by a template over {uid} and {id},
// or by a command of the CLI and a value in what it prints.
type Sandbox struct {
	Value
	Run []Arg
}

// Command is one command of the CLI.
type Command struct {
	Run     []Arg            // the arguments after the program; empty if the CLI has no such command
	Missing *Ending          // of status, delete and provider-delete: there is no such thing; nil: never
	Failed  *Ending          // of up: it failed and says why; nil means any exit code but 0
	Exit    *Value           // of ssh: where the guest command's exit code is; nil: it is the CLI's own
	Last    bool             // only the last line of standard output counts
	Entries *Entries         // of list: where the entries are; nil: standard output is a JSON array
	Result  map[string]Value // by field

	States   map[string]string // of status: the CLI's word for a state to Parity's; empty: they are the same
	Outcomes map[string]string // of up: likewise for the outcome
}

// Ending is a way in which a command ends.
type Ending struct {
	Exit   []int    // one of these exit codes
	Stderr *Pattern // and a text on standard error; nil: any
	Stdout *Pattern // and a text on standard output; nil: any
}

//go:embed contract.yaml
var contract []byte

// Contract returns the adapter of the contract.
func Contract() *Adapter {
	a, err := Parse(contract)
	if err != nil {
		panic(err) // it is this program's own, and a test reads it
	}
	return a
}

// maxSize is the size in bytes above which a file is no adapter.
const maxSize = 1 << 20

// readFile returns the text of an adapter's file, which must be a regular one of at most 1 MiB.
func readFile(file string) ([]byte, error) {
	info, err := os.Stat(file) // before it is opened: opening a named pipe would wait
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file (%s): give the adapter as a file", file, info.Mode())
	case info.Size() > maxSize:
		return nil, fmt.Errorf("%s has %d bytes: an adapter has at most %d", file, info.Size(), maxSize)
	}
	return os.ReadFile(file)
}

// Load reads an adapter from a file, and returns the file's text too. The error of one that is wrong
// has the file's name, the line and the column.
func Load(file string) (text []byte, a *Adapter, err error) {
	if text, err = readFile(file); err != nil {
		return nil, nil, err
	}
	a, err = Parse(text)
	if at, ok := errors.AsType[*Error](err); ok {
		return nil, nil, fmt.Errorf("%s:%w", file, at)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return text, a, nil
}

// Error is a mistake in an adapter, and its place.
type Error struct {
	Line, Column int
	Text         string
}

// Error returns "LINE:COLUMN: what is wrong".
func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Text) }

// errorAt returns a mistake at a node.
func errorAt(n *yaml.Node, format string, args ...any) error {
	return &Error{n.Line, n.Column, fmt.Sprintf(format, args...)}
}

// Parse reads an adapter and checks the whole of it. An error that is about a place is an *Error.
func Parse(text []byte) (*Adapter, error) {
	root, err := document(text)
	if err != nil {
		return nil, err
	}
	a := &Adapter{Patience: 1, Commands: map[Verb]Command{}}
	var schema string
	var sandbox *yaml.Node
	err = fields(root, map[string]target{
		"adapter": textTo(&schema), "name": textTo(&a.Name), "about": textTo(&a.About),
		"environment": a.environment, "builtin": a.Builtin.parse, "external": a.External.parse,
		"sandbox": func(n *yaml.Node) error { sandbox = n; return a.Sandbox.parse(n) }, "deny": textsTo(&a.Deny), "agent": textTo(&a.Agent),
		"patience": a.patience, "commands": a.commands,
	})
	switch {
	case err != nil:
		return nil, err
	case schema != Schema:
		return nil, errorAt(root, "adapter: expected %s, the schema that this version of Parity reads; seen %q", Schema, schema)
	case a.Name == "":
		return nil, errorAt(root, "name: expected the CLI's name, seen none")
	case a.Sandbox.kind() == "":
		return nil, errorAt(root, `sandbox: expected how MicroSandbox's name of a workspace is found, such as {text: "devsy-{uid}"}; seen none`)
	}
	for _, v := range verbs {
		if _, ok := a.Commands[v.verb]; !ok {
			return nil, errorAt(root, "commands: expected %s; give `run: []` if the CLI has no such command", v.verb)
		}
	}
	if _, shown := a.Commands[List].Result[UID]; !shown && a.Sandbox.names(UID) && a.Commands[List].Entries.lines().group(UID) < 0 {
		return nil, errorAt(sandbox, "sandbox: it names {uid}, and commands.list has no uid in its result")
	}
	a.Agent = cmp.Or(a.Agent, a.Name+"-linux-amd64")
	return a, nil
}

func (a *Adapter) environment(n *yaml.Node) error {
	if err := textsTo(&a.Environment)(n); err != nil {
		return err
	}
	for i := 0; i < len(n.Content); i += 2 {
		name := n.Content[i]
		if name.Value == "" || strings.ContainsAny(name.Value, "= ") {
			return errorAt(name, "%q is no name of a variable", name.Value)
		}
		if slices.Contains(owned, name.Value) {
			return errorAt(name, "%s is the case's own: an adapter cannot set it", name.Value)
		}
		if err := checkTemplate(n.Content[i+1], "folder", "home"); err != nil {
			return err
		}
	}
	return nil
}

// owned are the variables by which a case keeps itself apart from the machine and from other cases,
// and those that lead to what it makes.
var owned = []string{"PATH", "HOME", "TMPDIR", "MSB_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
	"XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "SSL_CERT_FILE", "PARITY_FAULT"}

func (a *Adapter) patience(n *yaml.Node) error {
	if err := n.Decode(&a.Patience); err != nil || !(a.Patience >= 0.01) || a.Patience > 1000 {
		return errorAt(n, "patience: expected a number from 0.01 to 1000, by which deadlines are multiplied; seen %q", n.Value)
	}
	return nil
}

func (s *Source) parse(n *yaml.Node) error {
	if err := fields(n, map[string]target{"name": textTo(&s.Name), "driver": textTo(&s.Driver)}); err != nil {
		return err
	}
	if (s.Name == "") == (s.Driver == "") || s.Driver != "" && s.Driver != "custom" {
		return errorAt(n, "expected one of name, the SOURCE of provider-add, and driver: custom, by which the CLI calls `parity driver`")
	}
	return nil
}

func (s *Sandbox) parse(n *yaml.Node) error {
	of := s.Value.targets()
	of["run"] = func(n *yaml.Node) (err error) {
		s.Run, err = parseArgs(n, allowed{words: []string{"id", "uid"}})
		return err
	}
	if err := fields(n, of); err != nil {
		return err
	}
	kind := s.kind()
	if (kind == kindText) != (len(s.Run) == 0) {
		return errorAt(n, "expected {text: TEMPLATE}, or run with one of json and stdout")
	}
	if err := s.check(n, ID, UID); err != nil {
		return err
	}
	if !s.names(ID) && !s.names(UID) {
		return errorAt(n, "expected {uid} or {id} in it: each workspace has a sandbox of its own")
	}
	return nil
}

// names tells whether a placeholder is in what leads to the name.
func (s *Sandbox) names(word string) bool {
	return named(append([]Arg{{Text: s.Text}}, s.Run...), word)
}

// verbs are the commands, with what their templates and results may name.
var verbs = []struct {
	verb    Verb
	allowed allowed
	results []string
	needs   []string // of the results
	must    []string // of the placeholders
}{
	{ProviderAdd, allowed{words: []string{"source", "name"}, each: []string{"option"}}, nil, nil, []string{"source", "name"}},
	{ProviderDelete, allowed{words: []string{"name"}}, nil, nil, []string{"name"}},
	{Up, allowed{words: []string{"id", "provider", "dir", "devcontainer"}, when: []string{"recreate", "devcontainer"}, each: []string{"option"}},
		[]string{Outcome, Message, Container, User, Folder}, []string{User}, []string{"dir"}},
	{Stop, allowed{words: []string{"id"}}, nil, nil, []string{"id"}},
	{Status, allowed{words: []string{"id"}}, []string{ID, Context, Provider, State}, []string{State}, []string{"id"}},
	{List, allowed{}, []string{ID, UID, Provider}, []string{ID}, nil},
	{Delete, allowed{words: []string{"id"}, when: []string{"force"}}, nil, nil, []string{"id"}},
	{SSH, allowed{words: []string{"id", "command"}}, nil, nil, []string{"id", "command"}},
	{Stdio, allowed{words: []string{"id"}}, nil, nil, []string{"id"}},
}

func (a *Adapter) commands(n *yaml.Node) error {
	of := map[string]target{}
	for _, v := range verbs {
		of[string(v.verb)] = func(n *yaml.Node) error {
			c, err := parseCommand(n, v.verb, v.allowed, v.results, v.needs)
			a.Commands[v.verb] = c
			for _, word := range v.must {
				if err == nil && len(c.Run) > 0 && !named(c.Run, word) {
					err = errorAt(n, "run: expected {%s} among the arguments of %s, seen none", word, v.verb)
				}
			}
			return err
		}
	}
	return fields(n, of)
}

func parseCommand(n *yaml.Node, verb Verb, a allowed, results, needs []string) (c Command, err error) {
	ran := false
	of := map[string]target{"run": func(n *yaml.Node) (err error) {
		ran = true
		c.Run, err = parseArgs(n, a)
		return err
	}}
	ending := func(into **Ending) target {
		return func(n *yaml.Node) error {
			*into = &Ending{}
			return (*into).parse(n)
		}
	}
	switch verb {
	case Status, Delete, ProviderDelete:
		of["missing"] = ending(&c.Missing)
	case Up:
		of["failed"] = ending(&c.Failed)
	case SSH:
		of["exit"] = func(n *yaml.Node) error {
			c.Exit = &Value{}
			return c.Exit.parse(n)
		}
	case List:
		of["entries"] = func(n *yaml.Node) error {
			c.Entries = &Entries{}
			return c.Entries.parse(n)
		}
	}
	if results != nil {
		of["output"] = func(n *yaml.Node) error {
			if c.Last = n.Value == "last-line"; !c.Last && n.Value != "whole" {
				return errorAt(n, "output: expected whole or last-line, seen %q", n.Value)
			}
			return nil
		}
		of["result"] = func(n *yaml.Node) (err error) {
			c.Result, err = parseResult(n, results)
			return err
		}
	}
	switch verb {
	case Status:
		of["states"] = wordsTo(&c.States, "Running", "Stopped")
	case Up:
		of["outcomes"] = wordsTo(&c.Outcomes, "success", "error")
	}
	if err := fields(n, of); err != nil {
		return c, err
	}
	if !ran {
		return c, errorAt(n, "expected run, the arguments of %s; give `run: []` if the CLI has no such command", verb)
	}
	for _, name := range needs {
		if _, ok := c.Result[name]; !ok && c.Entries.lines() == nil && len(c.Run) > 0 {
			return c, errorAt(n, "result: expected %s of %s, seen none", name, verb)
		}
	}
	switch {
	case len(c.Run) == 0 && !slices.Contains([]Verb{ProviderAdd, ProviderDelete}, verb):
		return c, errorAt(n, "run: expected the arguments of %s, seen none: without it nothing can be tested", verb)
	case c.Exit != nil && c.Exit.kind() != kindStderr && c.Exit.kind() != kindStdout:
		return c, errorAt(n, "exit: expected stderr or stdout, a pattern with one group")
	}
	return c, nil
}

func (e *Ending) parse(n *yaml.Node) error {
	err := fields(n, map[string]target{
		"exit": func(n *yaml.Node) error {
			nodes := []*yaml.Node{n}
			if n.Kind == yaml.SequenceNode {
				nodes = n.Content
			}
			for _, one := range nodes {
				var code int
				if err := one.Decode(&code); err != nil || code < 1 || code > 255 {
					return errorAt(one, "exit: expected an exit code of 1 to 255, or a list of them; seen %q", one.Value)
				}
				e.Exit = append(e.Exit, code)
			}
			return nil
		},
		"stderr": plainPatternTo(&e.Stderr), "stdout": plainPatternTo(&e.Stdout),
	})
	if err == nil && len(e.Exit) == 0 {
		err = errorAt(n, "exit: expected the exit code, seen none")
	}
	return err
}

// Is tells whether a command that exited with a code, and printed this, ended in this way.
func (e *Ending) Is(code int, stdout, stderr []byte) bool {
	return e != nil && slices.Contains(e.Exit, code) && e.Stderr.matches(stderr) && e.Stdout.matches(stdout)
}

// Verbs returns the verbs, in the order in which the contract's checks first run them.
func Verbs() (list []Verb) {
	for _, v := range verbs {
		list = append(list, v.verb)
	}
	return list
}
