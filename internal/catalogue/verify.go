package catalogue

import (
	"fmt"
	"slices"

	"dagger/parity/internal/report"
)

// Verify holds a run's report against the cases that were selected for it and gives each fault in a
// sentence: a case that is missing, not selected or there twice; a result of another run; a check
// that is missing, not planned, there twice or out of order; a check that was made though what it
// stands on broke, or not made though nothing did; a verdict that is unknown or does not follow
// from what it is made of. It gives nothing when the report is sound, whatever its verdicts. Call
// it before report.Conclude, and put what it gives into the report's Problems.
func Verify(selected []Case, r report.Report) []string {
	var problems []string
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	if len(selected) == 0 {
		add("no case was selected: a run of nothing proves nothing")
	}
	if r.Head.RunID == "" {
		add("the report's head has no run ID: its cases cannot be told from an older run's")
	}
	ids := make([]string, len(selected))
	for i, c := range selected {
		ids[i] = c.ID()
	}
	if !slices.Equal(ids, r.Selected) {
		add("the report was asked for the cases %q, and the run for %q", r.Selected, ids)
	}
	for _, plan := range selected {
		var ran []report.Case
		for _, c := range r.Cases {
			if c.ID == plan.ID() {
				ran = append(ran, c)
			}
		}
		if len(ran) != 1 {
			add("case %s was selected once and is in the report %d times", plan.ID(), len(ran))
		}
		for _, c := range ran {
			problems = append(problems, verifyCase(plan, c, r.Cases)...)
		}
	}
	for _, c := range r.Cases {
		if !slices.Contains(ids, c.ID) {
			add("case %s is in the report and was not selected", c.ID)
		}
		if c.RunID != r.Head.RunID {
			add("case %s has the run ID %q, and this run has %q: it is another run's result", c.ID, c.RunID, r.Head.RunID)
		}
	}
	return problems
}

func verifyCase(plan Case, c report.Case, all []report.Case) []string {
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, "case "+c.ID+": "+fmt.Sprintf(format, args...))
	}
	if len(plan.Checks) == 0 {
		add("the catalogue plans no check for it")
	}
	planned := make([]string, len(plan.Checks))
	for i, check := range plan.Checks {
		planned[i] = report.Check{Phase: check.Phase, Name: check.Name}.FullName()
	}
	times := map[string]int{}
	var order []string // the planned checks as they came, each once
	for _, check := range c.Checks {
		name := check.FullName()
		times[name]++
		if !check.Verdict.Known() {
			add("check %s has the unknown verdict %q", name, check.Verdict)
		}
		if !slices.Contains(planned, name) {
			add("check %s was not planned", name)
		} else if times[name] == 1 {
			order = append(order, name)
		}
	}
	for _, name := range planned {
		if times[name] != 1 {
			add("check %s was planned once and is in the report %d times", name, times[name])
		}
	}
	if len(order) == len(planned) {
		for i, name := range order {
			if name != planned[i] {
				add("check %s came where %s was planned", name, planned[i])
				break
			}
		}
	}
	switch sound := slices.Equal(order, planned); {
	case sound && plan.Scenario == Parity:
		problems = append(problems, verifyComparison(plan, c, all)...)
	case sound:
		problems = append(problems, verifyStanding(plan, c)...)
	}
	if follows := c.Judge(); c.Verdict != follows {
		add("its verdict is %q, and %q follows from its %s and %s",
			c.Verdict, follows, report.Count(len(c.Checks), "check"), report.Count(len(c.Problems), "problem"))
	}
	return problems
}

// verifyStanding holds a case whose checks are the planned ones, each once and in order, against
// what they stand on.
func verifyStanding(plan Case, c report.Case) []string {
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, "case "+c.ID+": "+fmt.Sprintf(format, args...))
	}
	checks := slices.DeleteFunc(slices.Clone(c.Checks), func(k report.Check) bool {
		return !slices.ContainsFunc(plan.Checks, func(p Check) bool { return p.Phase == k.Phase && p.Name == k.Name })
	})
	for i := range min(len(checks), len(plan.Checks)) {
		lost := ""
		for _, on := range plan.StandsOn(i) {
			switch {
			case on < 0:
				add("the catalogue has check %s stand on one that is none before it", checks[i].FullName())
			case checks[on].Verdict != report.Pass && lost == "":
				lost = checks[on].FullName()
			}
		}
		switch made := checks[i].Verdict != report.NotReached; {
		case made && lost != "" && !(plan.Checks[i].Alone && checks[i].Verdict == report.Fail):
			add("check %s was made, and it stands on %s, which did not pass", checks[i].FullName(), lost)
		case !made && lost == "" && len(c.Problems) == 0:
			add("check %s was not reached, and all that it stands on passed", checks[i].FullName())
		}
	}
	return problems
}

// verifyComparison holds a case that compares others against those: a comparison is not reached
// only if one of the two did not pass.
func verifyComparison(plan Case, c report.Case, all []report.Case) (problems []string) {
	for _, check := range c.Checks {
		broke := slices.ContainsFunc(all, func(o report.Case) bool {
			ids := []string{Case{Scenario: plan.Name, Provider: Builtin, Name: check.Name}.ID(), Case{Scenario: plan.Name, Provider: External, Name: check.Name}.ID()}
			return slices.Contains(ids, o.ID) && o.Verdict != report.Pass
		})
		if check.Verdict == report.NotReached && !broke {
			problems = append(problems, fmt.Sprintf("case %s: check %s was not reached, and both cases that it compares passed", c.ID, check.FullName()))
		}
	}
	return problems
}
