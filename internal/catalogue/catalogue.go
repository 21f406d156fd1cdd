// Package catalogue is the list of all cases and of the checks of each: what `parity list` prints, and what a run's report is
// held against. It is data; the cases themselves are in internal/cases.
package catalogue

import (
	"errors"
	"fmt"
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
}

// Check is one named check; each is a sentence that is true or not.
type Check struct {
	Phase    string // created, restarted, recreated, or empty
	Name     string
	Sentence string
}

// ID is scenario/provider/name.
func (c Case) ID() string { return c.Scenario + "/" + c.Provider + "/" + c.Name }

// The phases of a workspace's life, in their order.
const (
	Created   = "created"
	Restarted = "restarted"
	Recreated = "recreated"
)

// The providers.
const (
	Builtin  = "builtin"
	External = "external"
)

// All is the name that selects every scenario.
const All = "all"

// contractScenario is the scenario that every selection holds: nothing can be said of a subject whose command line does not
// keep its contract.
const contractScenario = "contract"

// ErrNotYet is the error of Select for a provider that is known and has no cases yet.
var ErrNotYet = errors.New("it is not there yet; use builtin")

// Catalogue is every case, in the order in which they are listed and reported.
type Catalogue []Case

// New is the catalogue. The contract's checks come from the package that makes them.
func New(contract []Check) Catalogue {
	return Catalogue{
		{
			Scenario: contractScenario, Provider: Builtin, Name: "cli", Weight: 2, Checks: contract,
			Promise: "The subject's command line keeps its contract.",
		},
		{
			Scenario: "egress", Provider: Builtin, Name: "public", Weight: 3, Checks: egressChecks(false),
			Promise: "A workspace without a network policy reaches a public address, before and after a restart and a recreation.",
		},
		{
			Scenario: "egress", Provider: Builtin, Name: "deny", Weight: 4, Checks: egressChecks(true),
			Promise: "A workspace whose egress is denied cannot open a TCP connection, before and after a restart and a recreation.",
		},
	}
}

// Select gives the cases of one scenario, or of all with the name All, for the given providers, in catalogue order. The
// contract's cases come with every scenario. A name that is not known is an error that lists the known ones; a provider
// without cases is an error that wraps ErrNotYet.
func (c Catalogue) Select(scenario string, providers []string) ([]Case, error) {
	known := []string{All}
	for _, one := range c {
		if !slices.Contains(known, one.Scenario) {
			known = append(known, one.Scenario)
		}
	}
	if !slices.Contains(known, scenario) {
		return nil, fmt.Errorf("unknown scenario %q; known are %s", scenario, strings.Join(known, ", "))
	}
	if len(providers) == 0 {
		return nil, fmt.Errorf("no provider is named; known are %s, %s", Builtin, External)
	}
	for _, provider := range providers {
		switch provider {
		case Builtin:
		case External:
			return nil, fmt.Errorf("the provider %s is known, but %w", External, ErrNotYet)
		default:
			return nil, fmt.Errorf("unknown provider %q; known are %s, %s", provider, Builtin, External)
		}
	}
	var selected []Case
	for _, one := range c {
		wanted := scenario == All || one.Scenario == scenario || one.Scenario == contractScenario
		if wanted && slices.Contains(providers, one.Provider) {
			selected = append(selected, one)
		}
	}
	return selected, nil
}

// ByID finds a case by scenario/provider/name.
func (c Catalogue) ByID(id string) (Case, bool) {
	i := slices.IndexFunc(c, func(one Case) bool { return one.ID() == id })
	if i < 0 {
		return Case{}, false
	}
	return c[i], true
}
