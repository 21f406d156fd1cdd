package adapter

import (
	"os"
	"strings"
	"testing"
)

// The page has an adapter that can be used, and names every key that there is.
func TestThePageIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/adapters.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	_, example, _ := strings.Cut(text, "```yaml\n")
	example, rest, found := strings.Cut(example, "```")
	if !found {
		t.Fatal("docs/adapters.md has no example")
	}
	a, err := Parse([]byte(example))
	if err != nil {
		t.Fatalf("the example in docs/adapters.md: %v", err)
	}
	var deviations []string
	for _, d := range a.Deviations() {
		deviations = append(deviations, d.Text)
	}
	if got := strings.Join(deviations, "\n"); got != "up: only the last line of standard output is read" {
		t.Errorf("the example deviates in:\n%s", got)
	}
	// The errors about unknown keys list those that there are.
	keys := func(text string) []string {
		t.Helper()
		_, err := Parse([]byte(text))
		if err == nil {
			t.Fatalf("%q is no mistake", text)
		}
		_, list, found := strings.Cut(err.Error(), "known are ")
		if !found {
			t.Fatalf("%q: %v", text, err)
		}
		return strings.Split(list, ", ")
	}
	all := keys("x: 1")
	for _, verb := range Verbs() {
		all = append(all, keys("commands: {"+string(verb)+": {x: 1}}")...)
	}
	for _, v := range verbs {
		for _, words := range [][]string{v.results, v.allowed.when} {
			all = append(all, words...)
		}
		for _, word := range append(v.allowed.words, v.allowed.each...) {
			all = append(all, "{"+word+"}")
		}
	}
	all = append(all, keys("builtin: {x: 1}")...)
	for _, key := range all {
		if !strings.Contains(rest, "`"+key+"`") {
			t.Errorf("docs/adapters.md does not explain `%s`", key)
		}
	}
	if lines := strings.Count(text, "\n"); lines > 120 {
		t.Errorf("docs/adapters.md is no page any more: it has %d lines", lines)
	}
}
