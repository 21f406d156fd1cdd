package step

import (
	"slices"
	"strings"
	"testing"

	"dagger/parity/internal/cases/contract"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// What a case and a check stand on is there: a name that is none would let a case run that cannot
// be judged, or a check never be made.
func TestWhatTheCatalogueStandsOnIsThere(t *testing.T) {
	var names []string
	for _, check := range contract.Checks() {
		names = append(names, check.Name)
	}
	for _, c := range Catalogue() {
		for _, name := range c.Contract {
			if !slices.Contains(names, name) {
				t.Errorf("%s stands on %q, which is no check of the contract", c.ID(), name)
			}
		}
		if c.Scenario != catalogue.Parity && c.IsContract() != (len(c.Contract) == 0) {
			t.Errorf("%s stands on %q of the contract", c.ID(), c.Contract)
		}
		for i := range c.Checks {
			if slices.Contains(c.StandsOn(i), -1) {
				t.Errorf("%s: the check %s stands on one of %q that is none before it", c.ID(), c.Checks[i].Name, c.Checks[i].Stands)
			}
		}
	}
}

// A case is left out for a check of its contract that it stands on, which it names, and for no
// other.
func TestACaseThatCannotBeRunSaysWhichCheckItStandsOn(t *testing.T) {
	contracts, err := planned([]string{"contract/builtin/cli", "contract/external/cli"})
	if err != nil {
		t.Fatal(err)
	}
	for name, ends := range map[string]bool{
		"provider add: adds a provider":                        true,
		"workspace up: JSON on success":                        true,
		"workspace list: shows the workspace":                  true,
		"workspace list: JSON array":                           false, // what stands on it is
		"workspace ssh: exit code 23 passes through --command": false,
		"workspace up: starts a stopped workspace":             false,
		"workspace delete: removes it":                         false,
	} {
		result := report.Case{ID: "contract/builtin/cli"}
		for _, check := range contract.Checks() {
			verdict := report.Pass
			if check.Name == name {
				verdict = report.Fail
			}
			result.Checks = append(result.Checks, report.Check{Name: check.Name, Verdict: verdict})
		}
		broken := map[string]report.Case{result.ID: result}
		for _, c := range Catalogue() {
			if c.Scenario == catalogue.Parity {
				continue
			}
			why := missing(c, contracts, broken)
			if want := ends && c.Provider == catalogue.Builtin && !c.IsContract(); (why != "") != want || want && !strings.Contains(why, name) {
				t.Errorf("%s, when %q broke: %q", c.ID(), name, why)
			}
		}
	}
}
