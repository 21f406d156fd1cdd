package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Word returns the check's verdict as a reader is to see it: a pass by a deviation is called so.
func (c Check) Word() string {
	if c.Verdict == Pass && len(c.Deviations) > 0 {
		return "pass by deviation"
	}
	return string(c.Verdict)
}

// Known says whether v is one of the four verdicts.
func (v Verdict) Known() bool {
	return v == Pass || v == Fail || v == Inconclusive || v == NotReached
}

// ExitCode is a run's exit code: 0 for pass, 1 for fail, 3 for everything else.
func (v Verdict) ExitCode() int {
	switch v {
	case Pass:
		return 0
	case Fail:
		return 1
	default:
		return 3
	}
}

// together is the verdict of a whole with these parts: one fail makes it fail, else one that is not a pass makes it
// inconclusive. Nothing proves nothing, so no parts are inconclusive too.
func together(parts []Verdict) Verdict {
	whole := Inconclusive
	for _, v := range parts {
		if v == Fail {
			return Fail
		}
	}
	if len(parts) > 0 && !slices.ContainsFunc(parts, func(v Verdict) bool { return v != Pass }) {
		whole = Pass
	}
	return whole
}

// spoiled is v, but a pass with problems is inconclusive.
func spoiled(v Verdict, problems []string) Verdict {
	if v == Pass && len(problems) > 0 {
		return Inconclusive
	}
	return v
}

// Judge is the verdict that follows from the case's checks and problems, whatever its Verdict says.
func (c Case) Judge() Verdict {
	parts := make([]Verdict, len(c.Checks))
	for i, check := range c.Checks {
		parts[i] = check.Verdict
	}
	return spoiled(together(parts), c.Problems)
}

// Judge is the verdict that follows from the run's cases and problems. A case counts with the worse of the verdict that it
// claims and the one that follows from its checks.
func (r Report) Judge() Verdict {
	var parts []Verdict
	for _, c := range r.Cases {
		parts = append(parts, c.Verdict, c.Judge())
	}
	return spoiled(together(parts), r.Problems)
}

// Conclude gives the report in its final form: cases in the order of Selected, free text cleaned (see Clean), and Schema,
// Warning, Verdict and ExitCode set. It changes nothing of what it is given. Whatever finds problems must come before it.
func Conclude(r Report) Report {
	r.Selected = append([]string{}, r.Selected...) // an empty list in JSON, never null
	r.Cases = append([]Case{}, r.Cases...)
	for i := range r.Cases {
		c := &r.Cases[i]
		c.Problems = cleaned(c.Problems)
		c.Checks = append([]Check{}, c.Checks...)
		for j := range c.Checks {
			check := &c.Checks[j]
			check.Expected, check.Seen, check.Next = Clean(check.Expected), Clean(check.Seen), Clean(check.Next)
		}
	}
	place := func(c Case) int {
		if i := slices.Index(r.Selected, c.ID); i >= 0 {
			return i
		}
		return len(r.Selected)
	}
	slices.SortStableFunc(r.Cases, func(a, b Case) int { return cmp.Compare(place(a), place(b)) })
	r.Problems = cleaned(r.Problems)

	r.Schema = Schema
	r.Warning = r.Head.warning()
	r.Verdict = r.Judge()
	r.ExitCode = r.Verdict.ExitCode()
	return r
}

// warning says why a run with this head proves less than it seems to.
func (h Head) warning() string {
	var reasons []string
	if h.MicroSandbox.StandIn {
		reasons = append(reasons, "STAND-IN: a stand-in took the place of MicroSandbox, no microVM ran; this run proves nothing of MicroSandbox")
	}
	if h.Fault != "" {
		reasons = append(reasons, "FAULT "+h.Fault+": parts of Parity were told to misbehave; this run shows what catches that, and proves nothing else")
	}
	return strings.Join(reasons, ". ")
}

// FullName is the check's name with its phase before it, as in "restarted policy".
func (c Check) FullName() string {
	if c.Phase == "" {
		return c.Name
	}
	return c.Phase + " " + c.Name
}

// Broke says whether the check was evaluated and did not pass.
func (c Check) Broke() bool { return c.Verdict != Pass && c.Verdict != NotReached }

// Sentence says the verdict of a concluded report in one line, and for a run that did not pass, where it broke.
func (r Report) Sentence() string {
	switch r.Verdict {
	case Pass:
		checks, deviating := 0, 0
		for _, c := range r.Cases {
			checks += len(c.Checks)
			for _, check := range c.Checks {
				if len(check.Deviations) > 0 {
					deviating++
				}
			}
		}
		said := fmt.Sprintf("PASS: %s, %s", Count(len(r.Cases), "case"), Count(checks, "check"))
		if deviating > 0 {
			said += fmt.Sprintf(", %d of them by a deviation of the adapter", deviating)
		}
		return said + "."
	case Fail:
		var broken []string
		for _, c := range r.Cases {
			if i := slices.IndexFunc(c.Checks, func(k Check) bool { return k.Verdict == Fail }); i >= 0 {
				broken = append(broken, fmt.Sprintf("%s broke its promise at %s", c.ID, c.Checks[i].FullName()))
			} else if c.Verdict == Fail {
				broken = append(broken, c.ID+" says that it failed and names no check")
			}
		}
		return "FAIL: " + strings.Join(broken, "; ")
	default:
		return "INCONCLUSIVE: the test could not tell: " + strings.Join(r.doubts(), "; ")
	}
}

// doubts are the first reasons why an inconclusive run could not tell, one for the run and one for each case.
func (r Report) doubts() []string {
	var doubts []string
	if len(r.Problems) > 0 {
		doubts = append(doubts, firstLine(r.Problems[0]))
	}
	for _, c := range r.Cases {
		if c.Verdict == Pass && c.Judge() == Pass {
			continue
		}
		doubt := c.ID
		if i := slices.IndexFunc(c.Checks, Check.Broke); i >= 0 {
			doubt += " at " + c.Checks[i].FullName()
			if seen := firstLine(c.Checks[i].Seen); seen != "" {
				doubt += " (" + seen + ")"
			}
		} else if len(c.Problems) > 0 {
			doubt += " (" + firstLine(c.Problems[0]) + ")"
		} else {
			doubt += " was not carried out"
		}
		doubts = append(doubts, doubt)
	}
	if len(doubts) == 0 {
		doubts = append(doubts, "no case ran")
	}
	return doubts
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// Count says how many there are, with the noun in its singular or its plural.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "x") {
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Elapsed writes a duration as a reader wants it: tenths of a second below ten seconds, else whole seconds.
func Elapsed(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}
