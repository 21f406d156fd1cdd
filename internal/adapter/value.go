package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value says where a result is. Exactly one of JSON, Stdout, Stderr, File and Text is set.
type Value struct {
	JSON    string   // a path of keys and indexes with dots between, in the JSON on standard output
	Stdout  *Pattern // its group, on standard output
	Stderr  *Pattern // its group, on standard error
	File    string   // the template of a file's name, with Pattern
	Pattern *Pattern // its group, in File
	Text    string   // a template: the CLI does not say it
}

// The kinds of values.
const (
	kindJSON   = "json"
	kindStdout = "stdout"
	kindStderr = "stderr"
	kindFile   = "file"
	kindText   = "text"
)

func (v *Value) targets() map[string]target {
	return map[string]target{
		kindJSON: textTo(&v.JSON), kindStdout: patternTo(&v.Stdout, 1), kindStderr: patternTo(&v.Stderr, 1),
		kindFile: textTo(&v.File), "pattern": patternTo(&v.Pattern, 1), kindText: textTo(&v.Text),
	}
}

func (v *Value) parse(n *yaml.Node) error {
	if err := fields(n, v.targets()); err != nil {
		return err
	}
	return v.check(n, "folder", "home", "id")
}

// check checks that exactly one place is named, and what its templates name.
func (v *Value) check(n *yaml.Node, words ...string) error {
	named := 0
	for _, is := range []bool{v.JSON != "", v.Stdout != nil, v.Stderr != nil, v.File != "", v.Text != ""} {
		if is {
			named++
		}
	}
	switch {
	case named != 1:
		return errorAt(n, "expected exactly one of json, stdout, stderr, file (with pattern) and text; seen %d", named)
	case (v.File != "") != (v.Pattern != nil):
		return errorAt(n, "file and pattern go together")
	}
	for i := 1; i < len(n.Content); i += 2 {
		check := func(*yaml.Node, ...string) error { return nil }
		switch n.Content[i-1].Value {
		case kindFile, kindText:
			check = checkTemplate
		case kindStdout, kindStderr, "pattern":
			check = checkPattern
		}
		if err := check(n.Content[i], words...); err != nil {
			return err
		}
	}
	return nil
}

func (v *Value) kind() string {
	switch {
	case v.JSON != "":
		return kindJSON
	case v.Stdout != nil:
		return kindStdout
	case v.Stderr != nil:
		return kindStderr
	case v.File != "":
		return kindFile
	case v.Text != "":
		return kindText
	}
	return ""
}

func parseResult(n *yaml.Node, names []string) (map[string]Value, error) {
	result, of := map[string]Value{}, map[string]target{}
	for _, name := range names {
		of[name] = func(n *yaml.Node) error {
			var v Value
			err := v.parse(n)
			result[name] = v
			return err
		}
	}
	return result, fields(n, of)
}

// Output is what a command of the CLI printed, and what fills the templates of its values.
type Output struct {
	Stdout, Stderr []byte
	Values         map[string]string
}

// Read returns a value. That it is not there is no error: it is empty then. An error says that
// standard output is not the JSON that was expected, or that a file could not be read.
func (v Value) Read(o Output) (string, error) {
	switch v.kind() {
	case kindJSON:
		doc, err := decode(o.Stdout)
		if err != nil {
			return "", err
		}
		return text(lookUp(doc, v.JSON)), nil
	case kindStdout:
		return v.Stdout.first(o.Stdout, o.Values)
	case kindStderr:
		return v.Stderr.first(o.Stderr, o.Values)
	case kindFile:
		text, err := os.ReadFile(Fill(v.File, o.Values))
		if err != nil {
			return "", err
		}
		return v.Pattern.first(text, o.Values)
	}
	return Fill(v.Text, o.Values), nil
}

// first returns the group of a pattern's first match in a text; empty if there is none.
func (p *Pattern) first(text []byte, values map[string]string) (string, error) {
	filled, err := fillPattern(p, values)
	if err != nil {
		return "", err
	}
	if m := filled.FindSubmatch(text); m != nil {
		return string(m[1]), nil
	}
	return "", nil
}

// decode reads one JSON document, in which numbers stay as they are written.
func decode(stdout []byte) (doc any, err error) {
	d := json.NewDecoder(bytes.NewReader(stdout))
	d.UseNumber()
	if err = d.Decode(&doc); err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows it")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("standard output is not one JSON document: %w", err)
	}
	return doc, nil
}

// fillPattern returns a pattern whose placeholders are filled in, each as a literal text.
func fillPattern(p *Pattern, values map[string]string) (*Pattern, error) {
	quoted := map[string]string{}
	for k, v := range values {
		quoted[k] = regexp.QuoteMeta(v)
	}
	re, err := regexp.Compile(Fill(p.String(), quoted))
	return &Pattern{re}, err
}

// lookUp returns the value at a path of keys and indexes; nil if there is none.
func lookUp(doc any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch in := doc.(type) {
		case map[string]any:
			doc = in[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			doc = in[i]
		default:
			return nil
		}
	}
	return doc
}

// text returns a scalar as text; of anything else, nothing.
func text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	}
	return ""
}

// Results returns the fields of a command's result that the adapter has. An error says which one
// could not be read.
func (c Command) Results(o Output) (map[string]string, error) {
	o.Stdout = c.output(o.Stdout)
	read := map[string]string{}
	for name, v := range c.Result {
		text, err := v.Read(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		read[name] = text
	}
	return read, nil
}

// output returns the part of standard output that counts.
func (c Command) output(stdout []byte) []byte {
	if !c.Last {
		return stdout
	}
	trimmed := bytes.TrimRight(stdout, " \t\r\n")
	return trimmed[bytes.LastIndexByte(trimmed, '\n')+1:]
}

// Entries says where the entries of a list are.
type Entries struct {
	JSON  string   // a path to an array
	Lines *Pattern // one entry a line, with groups whose names are fields
}

func (e *Entries) parse(n *yaml.Node) error {
	err := fields(n, map[string]target{"json": textTo(&e.JSON), "lines": plainPatternTo(&e.Lines)})
	switch {
	case err != nil:
		return err
	case (e.JSON == "") == (e.Lines == nil):
		return errorAt(n, "expected one of json, the path to an array, and lines, a pattern")
	case e.Lines != nil && (e.Lines.SubexpIndex(ID) < 0):
		return errorAt(n, "lines: expected a group (?P<%s>...), and %s and %s if the CLI shows them", ID, UID, Provider)
	}
	return nil
}

func (e *Entries) lines() *Pattern {
	if e == nil {
		return nil
	}
	return e.Lines
}

// List returns the entries of a list, each with its fields.
func (c Command) List(o Output) (entries []map[string]string, err error) {
	o.Stdout = c.output(o.Stdout)
	if lines := c.Entries.lines(); lines != nil {
		for _, m := range lines.FindAllSubmatch(o.Stdout, -1) {
			entry := map[string]string{}
			for i, name := range lines.SubexpNames() {
				if name != "" {
					entry[name] = string(m[i])
				}
			}
			entries = append(entries, entry)
		}
		return entries, nil
	}
	doc, err := decode(o.Stdout)
	if err != nil {
		return nil, err
	}
	if c.Entries != nil {
		doc = lookUp(doc, c.Entries.JSON)
	}
	array, ok := doc.([]any)
	if !ok {
		return nil, fmt.Errorf("expected a JSON array, seen %T", doc)
	}
	for _, one := range array {
		text, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		entry, err := Command{Result: c.Result}.Results(Output{Stdout: text, Stderr: o.Stderr, Values: o.Values})
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// ExitCode returns the exit code of the guest's command, where the CLI says it in a text: in the
// last one that matches, as the command in the guest may have printed one before. ok is false if
// the adapter reads none, or if the text is not there.
func (c Command) ExitCode(o Output) (code int, ok bool) {
	if c.Exit == nil {
		return 0, false
	}
	pattern, in := c.Exit.Stderr, o.Stderr
	if pattern == nil {
		pattern, in = c.Exit.Stdout, o.Stdout
	}
	all := pattern.FindAllSubmatch(in, -1)
	if len(all) == 0 {
		return 0, false
	}
	code, err := strconv.Atoi(string(all[len(all)-1][1]))
	return code, err == nil
}
