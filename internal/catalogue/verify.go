package catalogue

import (
	"fmt"
	"slices"

	"dagger/parity/internal/report"
)

// Verify holds a run's report against the cases that were selected for it and gives each fault in a sentence: a case that is
// missing, not selected or there twice; a result of another run; a check that is missing, not planned, there twice or out of
// order; a verdict that is unknown or does not follow from what it is made of. It gives nothing when the report is sound,
// whatever its verdicts. Call it before report.Conclude, and put what it gives into the report's Problems.
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
			problems = append(problems, verifyCase(plan, c)...)
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

func verifyCase(plan Case, c report.Case) []string {
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
	if follows := c.Judge(); c.Verdict != follows {
		add("its verdict is %q, and %q follows from its %s and %s",
			c.Verdict, follows, report.Count(len(c.Checks), "check"), report.Count(len(c.Problems), "problem"))
	}
	return problems
}
