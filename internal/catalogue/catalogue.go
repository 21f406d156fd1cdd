// Package catalogue is the list of all cases and of the checks of each: what `parity list` prints, and what a run's report is
// held against. It is data; the cases themselves are in internal/cases.
package catalogue

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Case is one case and the checks it must make, in the order in which they are evaluated.
type Case struct {
	Scenario string
	Provider string
	Name     string
	Promise  string // one sentence
	Checks   []Check
	Weight   int // how long it takes next to the other cases; for spreading cases over labs

	Contract Standing // the contract's checks that it stands on; see Missing
}

// Check is one named check; each is a sentence that is true or not.
type Check struct {
	Phase    string // created, restarted, recreated, or empty
	Name     string
	Sentence string
	Shared   bool // it is one and the same check in every case that has it

	Stands Standing // the earlier checks of its phase without which it can say nothing
	Alone  bool     // that it failed is evidence by itself, also after a check that it stands on broke
}

// ID is scenario/provider/name; a case of Parity has no provider.
func (c Case) ID() string {
	if c.Provider == "" {
		return c.Scenario + "/" + c.Name
	}
	return c.Scenario + "/" + c.Provider + "/" + c.Name
}

// The phases of a workspace's life, in their order.
const (
	Created   = "created"
	Restarted = "restarted"
	Recreated = "recreated"
)

// The providers, and the name that selects both.
const (
	Builtin  = "builtin"
	External = "external"
	Both     = "both"
)

// providers are the providers in the order of the catalogue.
var providers = []string{Builtin, External}

// Parity is the scenario of the cases that compare what two providers' cases saw. They run nothing themselves. Such a case is named
// by the scenario that it compares, and its checks by that scenario's cases.
const Parity = "parity"

// All is the name that selects every scenario.
const All = "all"

// contractScenario is the scenario that every selection holds: each case stands on some of its
// checks.
const contractScenario = "contract"

// Catalogue is every case, in the order in which they are listed and reported.
type Catalogue []Case

// New is the catalogue. The contract's checks come from the package that makes them.
func New(contract []Check) Catalogue {
	var all Catalogue
	whose := map[string]string{Builtin: "with its own driver", External: "with an external runtime"}
	for _, p := range providers {
		all = append(all, Case{
			Scenario: contractScenario, Provider: p, Name: "cli", Weight: 2, Checks: contract,
			Promise: "The subject's command line keeps its contract, " + whose[p] + ".",
		})
	}
	for _, p := range providers {
		all = append(all, Case{
			Scenario: "egress", Provider: p, Name: "public", Weight: 3, Contract: onContract, Checks: egressChecks(p, false),
			Promise: "A workspace without a network policy reaches a public address, before and after a restart and a recreation.",
		}, Case{
			Scenario: "egress", Provider: p, Name: "deny", Weight: 4, Contract: onContract, Checks: egressChecks(p, true),
			Promise: "A workspace whose egress is denied cannot open a TCP connection, before and after a restart and a recreation.",
		})
	}
	for _, p := range providers {
		for _, one := range []struct{ name, promise string }{
			{ImageRegistry, "An image that only a registry has arrives in the guest whole, and so does its next version."},
			{ImageDocker, "An image that only the Docker Engine has arrives in the guest whole, and so does its next version."},
			{ImageFeature, "What a Dockerfile and a Dev Container Feature make of an image arrives in the guest whole, and so does its next version."},
		} {
			all = append(all, Case{
				Scenario: "image-parity", Provider: p, Name: one.name, Weight: 5, Contract: onContract, Checks: imageParityChecks(p, one.name), Promise: one.promise,
			})
		}
	}
	all = append(all, Case{
		Scenario: "remote-agent", Provider: External, Name: "delivery", Weight: 5, Contract: onContract, Checks: remoteAgentChecks(),
		Promise: "A remote agent downloads a runtime once, verifies it, and reuses it when its source is gone.",
	})
	return append(all, Comparisons(all)...)
}

// Comparisons gives the cases that compare the providers of those given, for each scenario that has both.
func Comparisons(cases []Case) []Case {
	var list []Case
	for _, c := range cases {
		other := Case{Scenario: c.Scenario, Provider: External, Name: c.Name}
		paired := slices.ContainsFunc(cases, func(o Case) bool { return o.ID() == other.ID() })
		if c.Provider != Builtin || !paired || c.Scenario == contractScenario {
			continue
		}
		check := Check{Name: c.Name, Sentence: fmt.Sprintf("Both providers' cases %s passed, and saw the same.", c.Name)}
		i := slices.IndexFunc(list, func(o Case) bool { return o.Name == c.Scenario })
		if i < 0 {
			list = append(list, Case{Scenario: Parity, Name: c.Scenario, Promise: "The two providers keep the promises of " + c.Scenario + " alike."})
			i = len(list) - 1
		}
		list[i].Checks = append(list[i].Checks, check)
	}
	return list
}

// namedDifferences are the differences between the providers that are meant to be: scenario, case, phase, observation and why.
var namedDifferences [][5]string

// NamedDifference gives the reason for which an observation of a case may differ between the providers; empty when it may not.
func NamedDifference(scenario, name, phase, observation string) string {
	for _, d := range namedDifferences {
		if d[0] == scenario && d[1] == name && d[2] == phase && d[3] == observation {
			return d[4]
		}
	}
	return ""
}

// Select gives the cases of one scenario, or of all with the name All, for the given providers, in catalogue order. With a scenario
// comes the contract's case of its first provider, and with both providers the case that compares them. A name that is not known is
// an error that lists the known ones.
func (c Catalogue) Select(scenario string, given []string) ([]Case, error) {
	known := []string{All}
	for _, one := range c {
		if !slices.Contains(known, one.Scenario) && one.Scenario != Parity {
			known = append(known, one.Scenario)
		}
	}
	if !slices.Contains(known, scenario) {
		return nil, fmt.Errorf("unknown scenario %q; known are %s", scenario, strings.Join(known, ", "))
	}
	wanted := map[string]bool{}
	for _, provider := range given {
		switch provider {
		case Builtin, External:
			wanted[provider] = true
		case Both:
			wanted[Builtin], wanted[External] = true, true
		default:
			return nil, fmt.Errorf("unknown provider %q; known are %s, %s", provider, strings.Join(providers, ", "), Both)
		}
	}
	if len(wanted) == 0 {
		return nil, fmt.Errorf("no provider is named; known are %s, %s", strings.Join(providers, ", "), Both)
	}
	asked := func(one Case) bool { return (scenario == All || one.Scenario == scenario) && wanted[one.Provider] }
	first := slices.IndexFunc(c, asked)
	if first < 0 {
		other := c[slices.IndexFunc(c, func(one Case) bool { return one.Scenario == scenario })].Provider
		return nil, fmt.Errorf("%s has no case of the provider %s: give the provider %s, or none", scenario, strings.Join(given, ", "), other)
	}
	var selected []Case
	for _, one := range c {
		if asked(one) || one.Scenario == contractScenario && one.Provider == c[first].Provider {
			selected = append(selected, one)
		}
	}
	return append(selected, Comparisons(selected)...), nil
}

// Only keeps those of the selected cases whose id matches the pattern (package path), and the
// contract's, on which they stand. A pattern that is none, or that matches no case, is an error
// that lists the ids.
func Only(selected []Case, pattern string) ([]Case, error) {
	var kept []Case
	var known []string
	matched := false
	for _, c := range selected {
		if c.Scenario == Parity {
			continue
		}
		known = append(known, c.ID())
		match, err := path.Match(pattern, c.ID())
		if err != nil {
			return nil, fmt.Errorf("%q is no pattern: %w; such as */builtin/*, where * is any text without a slash", pattern, err)
		}
		if matched = matched || match; match || c.Scenario == contractScenario {
			kept = append(kept, c)
		}
	}
	if !matched {
		return nil, fmt.Errorf("no case matches %q, where * is any text without a slash; they are %s", pattern, strings.Join(known, ", "))
	}
	return append(kept, Comparisons(kept)...), nil
}

// ByID finds a case by scenario/provider/name.
func (c Catalogue) ByID(id string) (Case, bool) {
	i := slices.IndexFunc(c, func(one Case) bool { return one.ID() == id })
	if i < 0 {
		return Case{}, false
	}
	return c[i], true
}
