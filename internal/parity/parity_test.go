package parity_test

import (
	"strings"
	"testing"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/parity"
	"dagger/parity/internal/report"
)

func ran(id string, verdict report.Verdict, observations ...string) report.Case {
	c := report.Case{ID: id, Verdict: verdict}
	for _, o := range observations {
		f := strings.Split(o, ":")
		c.Observations = append(c.Observations, report.Observation{Phase: f[0], Name: f[1], Value: f[2]})
	}
	return c
}

func TestCompare(t *testing.T) {
	plan := catalogue.Case{Scenario: catalogue.Parity, Name: "egress", Checks: []catalogue.Check{{Name: "deny", Sentence: "The same."}}}
	const b, e = "egress/builtin/deny", "egress/external/deny"
	same := []string{"created:probe:refused", "restarted:probe:refused"}
	for _, test := range []struct {
		name        string
		cases       []report.Case
		want        report.Verdict // of the check
		whole       report.Verdict // of the case
		seen        string
		differences int
	}{
		{"equal", []report.Case{ran(b, report.Pass, same...), ran(e, report.Pass, same...)}, report.Pass, report.Pass, "2 observations, all equal", 0},
		{"another value", []report.Case{ran(b, report.Pass, same...), ran(e, report.Pass, "created:probe:refused", "restarted:probe:reset")},
			report.Fail, report.Fail, `restarted probe: builtin "refused", external "reset"`, 1},
		{"one is missing", []report.Case{ran(b, report.Pass, same...), ran(e, report.Pass, same[0])}, report.Fail, report.Fail, "nothing was recorded", 1},
		{"one more", []report.Case{ran(b, report.Pass, same[0]), ran(e, report.Pass, same...)}, report.Fail, report.Fail, "nothing was recorded", 1},
		{"one failed", []report.Case{ran(b, report.Pass, same...), ran(e, report.Fail)}, report.NotReached, report.Inconclusive, "", 0},
		{"one did not run", []report.Case{ran(b, report.Pass, same...)}, report.Inconclusive, report.Inconclusive, "no result", 0},
		{"nothing observed", []report.Case{ran(b, report.Pass), ran(e, report.Pass)}, report.Inconclusive, report.Inconclusive, "nothing was compared", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, differences := parity.Compare(plan, "run", test.cases)
			if got.ID != "parity/egress" || got.RunID != "run" || len(got.Checks) != 1 {
				t.Fatalf("%+v", got)
			}
			if k := got.Checks[0]; k.Verdict != test.want || got.Verdict != test.whole || !strings.Contains(k.Seen, test.seen) || len(differences) != test.differences {
				t.Errorf("%+v, the case %s, differences %+v", k, got.Verdict, differences)
			}
		})
	}
}
