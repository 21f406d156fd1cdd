// Package parity compares what the same case saw of two providers. Both pass and their observations are equal, save the differences that
// the catalogue names: that is parity.
package parity

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// Compare makes the checks of a parity case, one for each pair of cases, and gives all differences, side by side. The cases are those of
// the run; runID goes into the result.
func Compare(plan catalogue.Case, runID string, cases []report.Case) (report.Case, []report.Difference) {
	result := report.Case{ID: plan.ID(), RunID: runID, Started: time.Now()}
	var all []report.Difference
	for _, check := range plan.Checks {
		k := report.Check{Name: check.Name, Expected: check.Sentence}
		builtin, okB := find(cases, plan.Name, catalogue.Builtin, check.Name)
		external, okE := find(cases, plan.Name, catalogue.External, check.Name)
		switch {
		case !okB || !okE:
			k.Verdict, k.Seen, k.Next = report.Inconclusive, "one of the two cases has no result", "see why the case did not run"
		case builtin.Verdict != report.Pass || external.Verdict != report.Pass:
			k.Verdict = report.NotReached // what broke there says more than a comparison could
		default:
			differences := differ(plan.Name, check.Name, builtin, external)
			all = append(all, differences...)
			k.Verdict, k.Seen = judge(differences, len(builtin.Observations))
			if k.Verdict != report.Pass {
				k.Next = "if the difference is meant to be, name it in internal/catalogue with its reason"
			}
		}
		result.Checks = append(result.Checks, k)
	}
	result.Elapsed = time.Since(result.Started)
	result.Verdict = result.Judge()
	return result, all
}

func find(cases []report.Case, scenario, provider, name string) (report.Case, bool) {
	id := catalogue.Case{Scenario: scenario, Provider: provider, Name: name}.ID()
	i := slices.IndexFunc(cases, func(c report.Case) bool { return c.ID == id })
	if i < 0 {
		return report.Case{}, false
	}
	return cases[i], true
}

// differ lists where the observations of two cases differ: one that only one of them made is a difference too.
func differ(scenario, name string, builtin, external report.Case) []report.Difference {
	type key struct{ phase, name string }
	values := func(c report.Case) (order []key, of map[key]string) {
		of = map[key]string{}
		for _, o := range c.Observations {
			k := key{o.Phase, o.Name}
			if _, seen := of[k]; !seen {
				order = append(order, k)
				of[k] = o.Value
			} else {
				of[k] += ", " + o.Value
			}
		}
		return order, of
	}
	order, ofBuiltin := values(builtin)
	more, ofExternal := values(external)
	for _, k := range more {
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
	}
	var differences []report.Difference
	for _, k := range order {
		b, okB := ofBuiltin[k]
		e, okE := ofExternal[k]
		if okB && okE && b == e {
			continue
		}
		differences = append(differences, report.Difference{
			Case: scenario + "/" + name, Phase: k.phase, Observation: k.name, Builtin: orNothing(b, okB), External: orNothing(e, okE),
			Named: catalogue.NamedDifference(scenario, name, k.phase, k.name),
		})
	}
	return differences
}

func orNothing(value string, seen bool) string {
	if !seen {
		return "nothing was recorded"
	}
	return value
}

// judge judges the differences of a pair that has so many observations.
func judge(differences []report.Difference, observations int) (report.Verdict, string) {
	if observations == 0 {
		return report.Inconclusive, "the cases recorded no observation: nothing was compared"
	}
	var unnamed, named []string
	for _, d := range differences {
		if d.Named == "" {
			unnamed = append(unnamed, d.String())
		} else {
			named = append(named, d.String())
		}
	}
	if len(unnamed) > 0 {
		return report.Fail, strings.Join(unnamed, "; ")
	}
	seen := report.Count(observations, "observation") + ", all equal"
	if len(named) > 0 {
		seen = fmt.Sprintf("%s, equal save what the catalogue names: %s", report.Count(observations, "observation"), strings.Join(named, "; "))
	}
	return report.Pass, seen
}
