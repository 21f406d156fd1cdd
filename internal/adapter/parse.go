package adapter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document reads the one YAML document of a file. In what it returns, what an alias stands for is
// in its place, with the line and the column that it has where it is written.
func document(text []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	err := d.Decode(&doc)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("not YAML: %w", err) // the library names the line
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, &Error{1, 1, "the file is empty; docs/adapters.md has an example"}
	}
	switch err := d.Decode(&more); {
	case err == nil:
		return nil, errorAt(&more, "expected one YAML document, seen another one here")
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	left := nodeLimit
	return writtenOut(doc.Content[0], map[*yaml.Node]bool{}, &left)
}

// nodeLimit bounds what aliases make of a file. The largest adapter has some hundred nodes.
const nodeLimit = 20000

// writtenOut returns a copy of a node without aliases. around are the nodes that it is in.
func writtenOut(n *yaml.Node, around map[*yaml.Node]bool, left *int) (*yaml.Node, error) {
	at := n
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if *left--; around[n] || *left < 0 {
		return nil, errorAt(at, "the alias stands for what it is in, or for too much")
	}
	around[n] = true
	defer delete(around, n)
	c := *n
	c.Content = nil
	for _, one := range n.Content {
		child, err := writtenOut(one, around, left)
		if err != nil {
			return nil, err
		}
		c.Content = append(c.Content, child)
	}
	return &c, nil
}

// target takes the value of a key.
type target func(*yaml.Node) error

// fields hands each value of a mapping to its key's target. A key that has none, or that is there
// twice, is an error.
func fields(n *yaml.Node, of map[string]target) error {
	if n.Kind != yaml.MappingNode {
		return errorAt(n, "expected a mapping with %s", list(of))
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		to, ok := of[key.Value]
		switch {
		case !ok:
			return errorAt(key, "unknown key %q; known are %s", key.Value, list(of))
		case seen[key.Value]:
			return errorAt(key, "the key %q is there twice", key.Value)
		}
		seen[key.Value] = true
		if err := to(value); err != nil {
			return err
		}
	}
	return nil
}

func list(of map[string]target) string {
	return strings.Join(slices.Sorted(maps.Keys(of)), ", ")
}

// textTo takes a scalar as it is written.
func textTo(into *string) target {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return errorAt(n, "expected a text")
		}
		*into = n.Value
		return nil
	}
}

// textsTo takes a mapping of texts.
func textsTo(into *map[string]string) target {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.MappingNode {
			return errorAt(n, "expected a mapping of names and texts")
		}
		*into = map[string]string{}
		for i := 0; i < len(n.Content); i += 2 {
			var value string
			if err := textTo(&value)(n.Content[i+1]); err != nil {
				return err
			}
			name := n.Content[i].Value
			if _, there := (*into)[name]; there {
				return errorAt(n.Content[i], "the key %q is there twice", name)
			}
			(*into)[name] = value
		}
		return nil
	}
}

// wordsTo takes a mapping of the CLI's words to these words of Parity's.
func wordsTo(into *map[string]string, words ...string) target {
	return func(n *yaml.Node) error {
		if err := textsTo(into)(n); err != nil {
			return err
		}
		for i := 1; i < len(n.Content); i += 2 {
			if n.Content[i-1].Value == "" {
				return errorAt(n.Content[i-1], "expected the CLI's word, seen none: a result that is empty is not there")
			}
			if !slices.Contains(words, n.Content[i].Value) {
				return errorAt(n.Content[i], "expected one of %s, for the CLI's word %q; seen %q", strings.Join(words, ", "), n.Content[i-1].Value, n.Content[i].Value)
			}
		}
		return nil
	}
}

// Pattern is a regular expression.
type Pattern struct{ *regexp.Regexp }

func (p *Pattern) matches(text []byte) bool { return p == nil || p.Match(text) }

// group returns the index of a group by its name; -1 if there is none.
func (p *Pattern) group(name string) int {
	if p == nil {
		return -1
	}
	return p.SubexpIndex(name)
}

// plainPatternTo takes a regular expression with any number of groups, and without placeholders.
func plainPatternTo(into **Pattern) target {
	return func(n *yaml.Node) error {
		if err := patternTo(into, 0)(n); err != nil {
			return err
		}
		return checkPattern(n)
	}
}

// escaped are the braces in a regular expression that are none of a placeholder's.
var escaped = regexp.MustCompile(`\\[xpP]\{[^}]*\}`)

// checkPattern checks that a regular expression names only these placeholders.
func checkPattern(n *yaml.Node, words ...string) error {
	plain := *n
	plain.Value = escaped.ReplaceAllString(n.Value, "")
	return checkTemplate(&plain, words...)
}

// patternTo takes a regular expression with so many groups; with 0, any number.
func patternTo(into **Pattern, groups int) target {
	return func(n *yaml.Node) error {
		var text string
		if err := textTo(&text)(n); err != nil {
			return err
		}
		re, err := regexp.Compile(text)
		switch {
		case err != nil:
			return errorAt(n, "not a regular expression of Go's regexp package: %v", err)
		case groups > 0 && re.NumSubexp() != groups:
			return errorAt(n, "expected a pattern with one group in parentheses, which is the value; seen %d", re.NumSubexp())
		}
		*into = &Pattern{re}
		return nil
	}
}

// allowed is what the templates of a command may name.
type allowed struct {
	words []string // placeholders, without braces
	when  []string // of an argument's if
	each  []string // of an argument's each; also its placeholder
}

// Arg is an argument, or arguments that are there on a condition or once for each of several
// values.
type Arg struct {
	Text string // a template
	If   string // Run is there if this is set
	Each string // Run is there for each of these
	Run  []Arg
}

func parseArgs(n *yaml.Node, a allowed) (args []Arg, err error) {
	if n.Kind != yaml.SequenceNode {
		return nil, errorAt(n, "expected a list of arguments, one an entry")
	}
	for _, one := range n.Content {
		arg, err := parseArg(one, a)
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return args, nil
}

func parseArg(n *yaml.Node, a allowed) (arg Arg, err error) {
	if n.Kind == yaml.ScalarNode {
		if err := textTo(&arg.Text)(n); err != nil {
			return arg, err // nothing after the dash
		}
		return arg, checkTemplate(n, a.words...)
	}
	// Whatever is in run may name what each goes through, wherever each stands in the mapping.
	inner := a
	inner.words = append(slices.Clone(a.words), a.each...)
	err = fields(n, map[string]target{
		"if": textTo(&arg.If), "each": textTo(&arg.Each),
		"run": func(n *yaml.Node) (err error) {
			arg.Run, err = parseArgs(n, inner)
			return err
		},
	})
	switch {
	case err != nil:
		return arg, err
	case (arg.If == "") == (arg.Each == ""):
		return arg, errorAt(n, "expected one of if and each, and run")
	case arg.If != "" && !slices.Contains(a.when, arg.If):
		return arg, errorAt(n, "if: unknown condition %q; known here are: %s", arg.If, none(a.when))
	case arg.Each != "" && !slices.Contains(a.each, arg.Each):
		return arg, errorAt(n, "each: unknown list %q; known here are: %s", arg.Each, none(a.each))
	case len(arg.Run) == 0:
		return arg, errorAt(n, "run: expected arguments, seen none")
	}
	return arg, nil
}

func none(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// placeholder is a word in braces. Other braces are text.
var placeholder = regexp.MustCompile(`\{([a-z-]+)\}`)

// checkTemplate checks that a template names only these placeholders.
func checkTemplate(n *yaml.Node, words ...string) error {
	if n.Kind != yaml.ScalarNode {
		return errorAt(n, "expected a text")
	}
	for _, m := range placeholder.FindAllStringSubmatch(n.Value, -1) {
		if !slices.Contains(words, m[1]) {
			return errorAt(n, "unknown placeholder {%s}; known here are: %s", m[1], none(words))
		}
	}
	return nil
}

// Fill returns a template with its placeholders filled in. One that has no value stays as it is.
func Fill(template string, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(template, func(word string) string {
		if value, ok := values[strings.Trim(word, "{}")]; ok {
			return value
		}
		return word
	})
}

// named tells whether a placeholder is in arguments.
func named(args []Arg, word string) bool {
	return slices.ContainsFunc(args, func(a Arg) bool {
		return strings.Contains(a.Text, "{"+word+"}") || named(a.Run, word)
	})
}

// Args returns the arguments of a command: values fills its placeholders and says by names in it
// which conditions hold (a value that is not empty), lists has the values of each.
func Args(args []Arg, values map[string]string, lists map[string][]string) (argv []string) {
	for _, a := range args {
		switch {
		case a.Each != "":
			for _, one := range lists[a.Each] {
				inner := map[string]string{}
				maps.Copy(inner, values)
				inner[a.Each] = one
				argv = append(argv, Args(a.Run, inner, lists)...)
			}
		case a.If == "":
			argv = append(argv, Fill(a.Text, values))
		case values[a.If] != "":
			argv = append(argv, Args(a.Run, values, lists)...)
		}
	}
	return argv
}
