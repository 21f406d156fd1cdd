package run

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"dagger/parity/internal/adapter"
)

// adapterFile writes the contract's adapter, with a part replaced, into a file.
func adapterFile(t *testing.T, old, put string) string {
	t.Helper()
	text, err := os.ReadFile("../adapter/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "foreign.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, put, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// found returns the tools for a subject, and changes to the options.
func found(t *testing.T, change func(*ToolOptions)) (Tools, error) {
	t.Helper()
	siblings(t)
	o := ToolOptions{Cache: t.TempDir(), StandIn: true, Subject: "/bin/sh"}
	change(&o)
	return FindTools(t.Context(), o)
}

func TestFindToolsReadsTheAdapter(t *testing.T) {
	file := adapterFile(t, "      message: {json: message}\n", "")
	folder := t.TempDir()
	tools, err := found(t, func(o *ToolOptions) {
		o.Adapter, o.SubjectPath, o.BuiltinSource = file, []string{folder, "/"}, "vm"
	})
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := HashFile(file)
	a := tools.Subject.Adapter
	if a == nil || a.Name != "foreign.yaml" || a.For != "contract" || a.SHA256 != sum ||
		!reflect.DeepEqual(a.Deviations, []string{"up: the CLI has no field for why it failed: the end of standard error stands for it"}) {
		t.Errorf("the head has %+v", a)
	}
	if read, err := adapter.Parse([]byte(tools.Cases.Adapter)); err != nil || len(read.Deviations()) != 1 {
		t.Errorf("the cases have another adapter: %v", err)
	}
	if tools.Cases.Builtin != "vm" || !reflect.DeepEqual(tools.Cases.Path, []string{folder, "/"}) {
		t.Errorf("the cases have %q and %q", tools.Cases.Builtin, tools.Cases.Path)
	}
	if problems := tools.changed(); len(problems) > 0 {
		t.Error(problems)
	}
	if tools, err := found(t, func(*ToolOptions) {}); err != nil || tools.Subject.Adapter != nil || tools.Cases.Adapter != "" {
		t.Errorf("without an adapter: %+v, %v", tools.Subject, err)
	}
}

// The report names one adapter: one that was replaced during the run is a problem of the run.
func TestAnAdapterThatWasReplacedIsAProblem(t *testing.T) {
	file := adapterFile(t, "", "")
	tools, err := found(t, func(o *ToolOptions) { o.Adapter = file })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(adapterFile(t, "{exit: 75}", "{exit: 1}"), file); err != nil {
		t.Fatal(err)
	}
	problems := tools.changed()
	if len(problems) != 1 || !strings.Contains(problems[0], "the adapter "+file+" was replaced during the run") || !strings.Contains(problems[0], tools.Subject.Adapter.SHA256) {
		t.Errorf("%q", problems)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if problems := tools.changed(); len(problems) != 1 || !strings.Contains(problems[0], "cannot be read any more") {
		t.Errorf("%q", problems)
	}
}

func TestFindToolsRefusesWhatItIsToldOfTheSubject(t *testing.T) {
	good, bad := adapterFile(t, "", ""), adapterFile(t, "name: contract", "nmae: contract")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	colon := filepath.Join(t.TempDir(), "a:b")
	if err := os.Mkdir(colon, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*ToolOptions)
		want   []string
	}{
		"an adapter of nobody": {func(o *ToolOptions) { o.Subject, o.Adapter = "", good }, []string{"--adapter", good, "--subject"}},
		"no such adapter":      {func(o *ToolOptions) { o.Adapter = "/nonexistent/a.yaml" }, []string{"--adapter", "/nonexistent/a.yaml", "docs/adapters.md"}},
		"a folder":             {func(o *ToolOptions) { o.Adapter = filepath.Dir(good) }, []string{"--adapter", filepath.Dir(good)}},
		"a bad adapter":        {func(o *ToolOptions) { o.Adapter = bad }, []string{"--adapter: " + bad + ":3:1: ", `unknown key "nmae"`, "parity adapter check"}},
		"no such folder":       {func(o *ToolOptions) { o.SubjectPath = []string{"/nonexistent"} }, []string{`--subject-path "/nonexistent"`, "existing folder of programs"}},
		"an empty one":         {func(o *ToolOptions) { o.SubjectPath = []string{""} }, []string{`--subject-path ""`, "existing folder of programs"}},
		"the second of two":    {func(o *ToolOptions) { o.SubjectPath = []string{"/", file} }, []string{`--subject-path "` + file, "existing folder of programs"}},
		"a colon":              {func(o *ToolOptions) { o.SubjectPath = []string{colon} }, []string{`--subject-path "` + colon, "without a colon"}},
	} {
		_, err := found(t, test.change)
		for _, want := range test.want {
			if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}
