package report

import (
	"bytes"
	"fmt"
	"strings"
)

// writeSummary writes the report as GitHub-flavoured Markdown: verdict, head, a table of the cases, the
// broken checks, and in folded lists where the time went and all checks. Text that others wrote stands
// in code blocks, where it cannot turn into markup.
func writeSummary(w *bytes.Buffer, r Report) {
	if r.Warning != "" {
		fmt.Fprintf(w, "> **%s**\n\n", cell(r.Warning))
	}
	fmt.Fprintf(w, "# Parity: %s\n\n%s\n\n", r.Verdict, cell(r.Sentence()))
	var head strings.Builder
	for _, line := range headLines(r) {
		fmt.Fprintf(&head, "%-14s%s\n", line.label, line.text)
	}
	block(w, head.String())

	if len(r.Problems) > 0 {
		fmt.Fprint(w, "## Problems of the run\n\n")
		block(w, strings.Join(r.Problems, "\n")+"\n")
	}
	fmt.Fprint(w, "## Cases\n\n| Case | Verdict | Passed | Broke | Not reached | Time |\n|---|---|--:|--:|--:|--:|\n")
	checks := 0
	var broken bytes.Buffer
	for _, c := range r.Cases {
		passed, broke := 0, 0
		var text strings.Builder
		for _, check := range c.Checks {
			if check.Verdict == Pass {
				passed++
			} else if check.Broke() {
				broke++
				fmt.Fprintf(&text, "%s: %s\n%s", check.Verdict, check.FullName(), Details(check, "  "))
			}
		}
		for _, problem := range c.Problems {
			fmt.Fprintf(&text, "problem: %s\n", problem)
		}
		if text.Len() > 0 {
			fmt.Fprintf(&broken, "### %s\n\n", cell(c.ID))
			block(&broken, text.String())
		}
		checks += len(c.Checks)
		fmt.Fprintf(w, "| %s | **%s** | %d | %d | %d | %s |\n",
			cell(c.ID), c.Verdict, passed, broke, len(c.Checks)-passed-broke, Elapsed(c.Elapsed))
	}
	if p := performanceOf(r); p != nil {
		var measured []string
		for _, c := range p.Cases {
			measured = append(measured, c.ID+": "+c.Performance.String())
		}
		fmt.Fprintf(w, "\nMeasured once on this machine, with no claim of a speed-up (%s): %s\n", PerformanceFile, cell(strings.Join(measured, "; ")))
	}
	if len(r.Differences) > 0 {
		fmt.Fprint(w, "\n## Where the providers differ\n\n| Case | Phase | Observation | builtin | external | Meant to be |\n|---|---|---|---|---|---|\n")
		for _, d := range r.Differences {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", cell(d.Case), cell(d.Phase), cell(d.Observation), cell(d.Builtin), cell(d.External), cell(orNo(d.Named)))
		}
	}
	if broken.Len() > 0 {
		fmt.Fprintf(w, "\n## What broke\n\n%s", broken.String())
	}
	writeTimes(w, r.Cases)
	fmt.Fprintf(w, "\n<details><summary>All %s</summary>\n\n", Count(checks, "check"))
	fmt.Fprint(w, "| Case | Phase | Check | Verdict | Time |\n|---|---|---|---|--:|\n")
	for _, c := range r.Cases {
		for _, check := range c.Checks {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n",
				cell(c.ID), cell(check.Phase), cell(check.Name), check.Word(), Elapsed(check.Elapsed))
		}
	}
	fmt.Fprint(w, "\n</details>\n")
}

func orNo(reason string) string {
	if reason == "" {
		return "no"
	}
	return reason
}

// block writes text as a code block whose fence is longer than any in the text.
func block(w *bytes.Buffer, text string) {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	fmt.Fprintf(w, "%stext\n%s%s\n\n", fence, text, fence)
}

// cell makes text safe inside one line of Markdown.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ", "`", "\\`", "*", `\*`).Replace(s)
}
