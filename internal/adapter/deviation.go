package adapter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Deviation is a place where an adapter reads a result that the CLI does not say as the contract
// has it. Such a mapping can hide a defect: a check that stands on it is no plain pass.
type Deviation struct {
	Verb  Verb
	Field string // a field of the result, or one of run, exit, missing, failed, output, entries, shared
	Text  string // a sentence
}

// String returns the deviation's sentence.
func (d Deviation) String() string { return d.Text }

// Deviations returns what the adapter reads otherwise than the contract has it, by verb. Another
// spelling of a command, a field or a state is none.
func (a *Adapter) Deviations() (list []Deviation) {
	for _, v := range verbs {
		c := a.Commands[v.verb]
		add := func(field, format string, args ...any) {
			list = append(list, Deviation{v.verb, field, fmt.Sprintf("%s: ", v.verb) + fmt.Sprintf(format, args...)})
		}
		if len(c.Run) == 0 {
			add("run", "the CLI has no such command, and nothing is run")
		}
		if c.Last {
			add("output", "only the last line of standard output is read")
		}
		if c.Exit != nil {
			add("exit", "the exit code of the command in the guest is read from %s", c.Exit.where())
		}
		if m := c.Missing; m != nil {
			failed := a.failing(m.Exit)
			switch {
			case m.Stderr != nil || m.Stdout != nil:
				add("missing", "that there is no such thing is read from a text")
			case slices.ContainsFunc(m.Exit, ambiguous):
				code := m.Exit[slices.IndexFunc(m.Exit, ambiguous)]
				add("missing", "exit code %d, which stands for %s, is read as: there is no such thing", code, stands(code))
			case failed != 0:
				add("missing", "exit code %d, with which up fails too, is read as: there is no such thing", failed)
			case len(m.Exit) > 1:
				add("missing", "any of %d exit codes is read as: there is no such thing", len(m.Exit))
			}
		}
		if v.verb == Up {
			a.deviationsOfUp(c, add)
			several(c.Outcomes, func(to, words string) { add(Outcome, "%s are all read as %s", words, to) })
		}
		several(c.States, func(to, words string) { add(State, "%s are all read as %s", words, to) })
		shared(c.Result, func(path, names string) { add("shared", "%s are read from the one field %s", names, path) })
		if c.Entries.lines() != nil {
			add("entries", "the entries are read from lines of text")
		}
		for _, name := range slices.Sorted(maps.Keys(c.Result)) {
			if value := c.Result[name]; value.kind() != kindJSON {
				add(name, "%s is read from %s", name, value.where())
			}
		}
		for _, name := range v.results {
			_, read := c.Result[name]
			// That of up's outcome and message is said above, and a folder may be empty.
			if name != Outcome && name != Message && name != Folder && !read && c.Entries.lines().group(name) < 0 {
				add(name, "the CLI does not say the %s", name)
			}
		}
	}
	return list
}

// stands says which other failures an exit code stands for: with programs in general, with those of a
// language, or with a shell. It is empty for a code that a program must have chosen.
func stands(code int) string {
	switch {
	case code == 1:
		return "any failure"
	case code == 2:
		return "bad usage, or a crash"
	case code == 101, code > 128:
		return "a crash"
	case code >= 126:
		return "a program that cannot be run"
	}
	return ""
}

func ambiguous(code int) bool { return stands(code) != "" }

// shared tells of each place in the JSON from which several fields are read.
func shared(result map[string]Value, tell func(path, names string)) {
	by := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(result)) {
		if path := result[name].JSON; path != "" {
			by[path] = append(by[path], name)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(by)) {
		if len(by[path]) > 1 {
			tell(path, strings.Join(by[path], ", "))
		}
	}
}

// failing returns the first of the exit codes with which up fails too; 0 if there is none.
func (a *Adapter) failing(codes []int) int {
	if failed := a.Commands[Up].Failed; failed != nil {
		for _, code := range codes {
			if slices.Contains(failed.Exit, code) {
				return code
			}
		}
	}
	return 0
}

// several tells of each word of Parity's for which the CLI has more than one.
func several(words map[string]string, tell func(to, words string)) {
	by := map[string][]string{}
	for _, word := range slices.Sorted(maps.Keys(words)) {
		by[words[word]] = append(by[words[word]], word)
	}
	for _, to := range slices.Sorted(maps.Keys(by)) {
		if len(by[to]) > 1 {
			tell(to, strings.Join(by[to], ", "))
		}
	}
}

func (a *Adapter) deviationsOfUp(c Command, add func(field, format string, args ...any)) {
	if _, ok := c.Result[Outcome]; !ok {
		add(Outcome, "the CLI prints no outcome: its exit code alone says it")
	}
	if _, ok := c.Result[Message]; !ok {
		add(Message, "the CLI has no field for why it failed: the end of standard error stands for it")
	}
	if c.Failed == nil {
		add("failed", "any exit code but 0 is read as a failure that the CLI explains")
	} else if c.Failed.Stderr != nil || c.Failed.Stdout != nil {
		add("failed", "that it failed is read from a text")
	} else if len(c.Failed.Exit) > 1 {
		add("failed", "any of %d exit codes is read as a failure that the CLI explains", len(c.Failed.Exit))
	}
}

// where says where a value is read.
func (v Value) where() string {
	switch v.kind() {
	case kindStdout:
		return "a text on standard output"
	case kindStderr:
		return "a text on standard error"
	case kindFile:
		return "the file " + v.File
	case kindText:
		return fmt.Sprintf("the adapter, which has %q for it", v.Text)
	}
	return "the JSON on standard output"
}
