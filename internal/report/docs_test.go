package report

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// sections are the sections of docs/report.md by their headings.
func sections(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../../docs/report.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(data), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		sections[heading] = text
	}
	return sections
}

func TestEveryFieldIsDocumentedAndEveryDocumentedFieldExists(t *testing.T) {
	docs := sections(t)
	visited := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.PkgPath() != reflect.TypeFor[Report]().PkgPath() || visited[typ] {
			return
		}
		visited[typ] = true
		var fields []string
		for _, f := range reflect.VisibleFields(typ) {
			if !f.Anonymous { // of what is embedded, the fields stand in its place
				field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				fields = append(fields, field)
			}
			visit(f.Type)
		}
		var documented []string
		for line := range strings.Lines(docs[typ.Name()]) {
			if rest, ok := strings.CutPrefix(line, "| `"); ok {
				field, _, _ := strings.Cut(rest, "`")
				documented = append(documented, field)
			}
		}
		if !reflect.DeepEqual(fields, documented) {
			t.Errorf("%s has the fields\n  %q, and docs/report.md lists\n  %q", typ.Name(), fields, documented)
		}
	}
	visit(reflect.TypeFor[Report]())
	visit(reflect.TypeFor[Event]())
	visit(reflect.TypeFor[PerformanceReport]())
	if len(visited) < 10 {
		t.Errorf("only %d types were found: %v", len(visited), visited)
	}
}

func TestVerdictsAndKindsAreDocumented(t *testing.T) {
	docs := sections(t)
	for _, v := range []Verdict{Pass, Fail, Inconclusive, NotReached} {
		if !strings.Contains(docs["Verdicts"], "| `"+string(v)+"` |") {
			t.Errorf("docs/report.md does not explain the verdict %q", v)
		}
	}
	for _, k := range []EventKind{Started, CaseStarted, CheckStarted, CheckDone, Note, CommandDone, CaseDone} {
		if !strings.Contains(docs["Event"], "`"+string(k)+"`") {
			t.Errorf("docs/report.md does not name the event kind %q", k)
		}
	}
}

func TestTheDocumentedExampleIsAReport(t *testing.T) {
	_, example, _ := strings.Cut(sections(t)["Example"], "```json\n")
	example, _, _ = strings.Cut(example, "```")
	var r Report
	dec := json.NewDecoder(strings.NewReader(example))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		t.Fatalf("the example in docs/report.md: %v", err)
	}
	if id := r.Head.RunID; len(id) != 8 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		t.Errorf("the example's run is called %q, and no run is: internal/run makes 8 letters and digits of base32", id)
	}
	if again := Conclude(r); !reflect.DeepEqual(again, r) {
		t.Errorf("the example's schema, verdict or exit code do not follow from its cases: it is %q with %d, and %q with %d follows",
			r.Verdict, r.ExitCode, again.Verdict, again.ExitCode)
	}
}
