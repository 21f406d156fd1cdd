package catalogue

import (
	"fmt"
	"slices"

	"dagger/parity/internal/report"
)

// Standing says what a check or a case stands on: names of others without which it can say nothing.
// nil is every one before it.
type Standing []string

// On is a Standing on the named ones; without a name, on none.
func On(names ...string) Standing { return append(Standing{}, names...) }

// StandsOn gives the places in the plan of the checks that check i stands on. A name that no
// earlier check of its phase has gives -1. A check also stands on what these stand on.
func (c Case) StandsOn(i int) []int {
	var places []int
	if c.Checks[i].Stands == nil {
		for j := range i {
			places = append(places, j)
		}
		return places
	}
	for _, name := range c.Checks[i].Stands {
		places = append(places, slices.IndexFunc(c.Checks[:i], func(o Check) bool { return o.Name == name && o.Phase == c.Checks[i].Phase }))
	}
	return places
}

// onContract are the contract's checks that every case of the other scenarios stands on: without
// one of these nothing can be said of any phase of a workspace. All else of the contract is about
// things that a case looks at itself, or does not use.
var onContract = On(
	"provider add: adds a provider",
	"workspace up: JSON on success",
	"workspace list: shows the workspace",
	"workspace ssh: --stdio is clean (an SSH banner is the first byte, 1 MiB binary round trip)",
)

// IsContract tells whether a case is the contract's.
func (c Case) IsContract() bool { return c.Scenario == contractScenario }

// Missing gives the name of a contract's check that the case stands on and that did not pass, for
// the contract's case with the plan and what became of it; empty when the case can be run. A case
// stands on its own provider's contract, and where the selected cases do not have that, on any.
func (c Case) Missing(selected []Case, plan Case, result report.Case) string {
	own := slices.ContainsFunc(selected, func(o Case) bool { return o.IsContract() && o.Provider == c.Provider })
	if c.IsContract() || own && plan.Provider != c.Provider {
		return ""
	}
	for _, check := range result.Checks {
		if check.Verdict != report.Pass && (c.Contract == nil || slices.Contains(c.Contract, check.Name)) {
			return check.Name
		}
	}
	return ""
}

// NotWithout says why a case cannot be run, for a check of the contract's case with the id.
func NotWithout(contract, check string) string {
	return fmt.Sprintf("it stands on the check %q of %s, which did not pass", check, contract)
}
