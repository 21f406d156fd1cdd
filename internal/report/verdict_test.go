package report

import (
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestCaseVerdictFollowsFromItsChecks(t *testing.T) {
	for _, test := range []struct {
		checks   []Verdict
		problems []string
		want     Verdict
	}{
		{nil, nil, Inconclusive},
		{[]Verdict{Pass, Pass}, nil, Pass},
		{[]Verdict{Pass, Pass}, []string{"clean-up failed"}, Inconclusive},
		{[]Verdict{Pass, Inconclusive, NotReached}, nil, Inconclusive},
		{[]Verdict{Pass, NotReached}, nil, Inconclusive},
		{[]Verdict{Inconclusive, Fail, NotReached}, nil, Fail},
		{[]Verdict{Pass, Fail}, []string{"clean-up failed"}, Fail},
		{[]Verdict{Pass, ""}, nil, Inconclusive},
		{[]Verdict{Pass, "skipped"}, nil, Inconclusive},
	} {
		c := Case{Verdict: Pass, Problems: test.problems}
		for _, v := range test.checks {
			c.Checks = append(c.Checks, Check{Verdict: v})
		}
		if got := c.Judge(); got != test.want {
			t.Errorf("a case with the checks %q and the problems %q is %q, want %q", test.checks, test.problems, got, test.want)
		}
	}
}

func TestRunVerdictAndExitCode(t *testing.T) {
	proven := []Check{{Name: "policy", Verdict: Pass}}
	for _, test := range []struct {
		what     string
		cases    []Case
		problems []string
		want     Verdict
		code     int
	}{
		{"no case", nil, nil, Inconclusive, 3},
		{"all passed", []Case{{Verdict: Pass, Checks: proven}}, nil, Pass, 0},
		{"all passed with a problem", []Case{{Verdict: Pass, Checks: proven}}, []string{"a lab died"}, Inconclusive, 3},
		{"one inconclusive", []Case{{Verdict: Pass, Checks: proven}, {Verdict: Inconclusive, Checks: proven}}, nil, Inconclusive, 3},
		{"a fail beside an inconclusive", []Case{{Verdict: Inconclusive}, {Verdict: Fail}}, []string{"a lab died"}, Fail, 1},
		{"a pass without checks", []Case{{Verdict: Pass}}, nil, Inconclusive, 3},
		{"a pass with a failed check", []Case{{Verdict: Pass, Checks: []Check{{Verdict: Fail}}}}, nil, Fail, 1},
		{"a fail whose checks passed", []Case{{Verdict: Fail, Checks: proven}}, nil, Fail, 1},
	} {
		r := Conclude(Report{Cases: test.cases, Problems: test.problems})
		if r.Verdict != test.want || r.ExitCode != test.code {
			t.Errorf("%s: verdict %q and exit code %d, want %q and %d", test.what, r.Verdict, r.ExitCode, test.want, test.code)
		}
	}
}

func TestConcludeOrdersAndLeavesItsInputAlone(t *testing.T) {
	before, given := raw(), raw()
	for _, r := range []*Report{&before, &given} {
		r.Cases[0].Checks[4].Seen = "\x07"
		r.Cases[0].Problems = []string{"\x07"}
		r.Problems = []string{"\x07"}
	}
	r := Conclude(given)
	var ids []string
	for _, c := range r.Cases {
		ids = append(ids, c.ID)
	}
	if !reflect.DeepEqual(ids, r.Selected) {
		t.Errorf("the cases are in the order %q, want that of the selection %q", ids, r.Selected)
	}
	for _, got := range []string{r.Cases[2].Checks[4].Seen, r.Cases[2].Problems[0], r.Problems[0]} {
		if got != `\x07` {
			t.Errorf("a bell is reported as %q, want an escape", got)
		}
	}
	if !reflect.DeepEqual(given, before) {
		t.Error("Conclude changed the report that it was given")
	}
	if again := Conclude(r); !reflect.DeepEqual(again, r) {
		t.Error("concluding a concluded report changed it")
	}
}

func TestSentence(t *testing.T) {
	died := raw()
	died.Cases, died.Problems = nil, []string{"lab 1 ended with code 137\nits last words: x"}
	lost := passed()
	lost.Cases[1].Checks[0].Verdict, lost.Cases[1].Verdict = NotReached, Inconclusive
	for _, test := range []struct {
		r    Report
		want string
	}{
		{passed(), "PASS: 3 cases, 11 checks."},
		{raw(), "FAIL: egress/builtin/deny broke its promise at recreated deny"},
		{Report{Cases: raw().Cases[2:]}, "INCONCLUSIVE: the test could not tell: egress/builtin/public at created control-probe-before (time-out)"},
		{died, "INCONCLUSIVE: the test could not tell: lab 1 ended with code 137"},
		{lost, "INCONCLUSIVE: the test could not tell: contract/builtin/cli was not carried out"},
		{Report{}, "INCONCLUSIVE: the test could not tell: no case ran"},
	} {
		if got := Conclude(test.r).Sentence(); got != test.want {
			t.Errorf("the sentence is\n  %s\nwant\n  %s", got, test.want)
		}
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\tand\r\nlines\n": "plain\tand\nlines\n",
		"\x1b[2J\x00\r":         `\x1b[2J\x00\x0d`,
		"\xff caf\u00e9 \ufffd": "\\xff caf\u00e9 \ufffd",
		"a\u202eb":              `a\u202eb`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) is %q, want %q", in, got, want)
		}
	}
	long := "first" + strings.Repeat("\u00e9", 50_000) + "last"
	got := Clean(long)
	if len(got) > 4<<10 || !strings.HasPrefix(got, "first") || !strings.HasSuffix(got, "last") ||
		!strings.Contains(got, "bytes left out") || !utf8.ValidString(got) {
		t.Errorf("a text of %d bytes became one of %d bytes: %.80q...", len(long), len(got), got)
	}
	if Clean(got) != got {
		t.Error("cleaning a long text twice cuts it twice")
	}
}

func TestElapsed(t *testing.T) {
	for in, want := range map[time.Duration]string{
		1240 * time.Millisecond: "1.2s", 83400 * time.Millisecond: "1m23s", 0: "0.0s",
	} {
		if got := Elapsed(in); got != want {
			t.Errorf("%v is written %q, want %q", in, got, want)
		}
	}
}
