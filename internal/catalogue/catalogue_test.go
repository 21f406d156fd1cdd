package catalogue

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func catalogue() Catalogue {
	return New([]Check{{"", "ssh/exit-code", "An exit code passes through."}, {"", "status/missing", "A missing workspace is 75."}})
}

func ids(cases []Case) []string {
	var ids []string
	for _, c := range cases {
		ids = append(ids, c.ID())
	}
	return ids
}

// plan is the case's checks as one text: a line for each phase in its order.
func plan(t *testing.T, id string) string {
	t.Helper()
	c, ok := catalogue().ByID(id)
	if !ok {
		t.Fatalf("the catalogue has no case %s", id)
	}
	var b strings.Builder
	phase := "?"
	for _, check := range c.Checks {
		if check.Phase != phase {
			phase = check.Phase
			b.WriteString("\n" + phase + ":")
		}
		b.WriteString(" " + check.Name)
	}
	return b.String()
}

func TestEgressChecksInOrder(t *testing.T) {
	for id, want := range map[string]string{
		"egress/builtin/public": `
: fixture/link fixture/endpoint fixture/image
created: workspace/up identity/state policy ssh probe identity/disk host-probe public identity/same-boot
restarted: workspace/stop workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk host-probe public identity/same-boot
recreated: workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk host-probe public identity/same-boot
: receipts`,
		"egress/builtin/deny": `
: fixture/link fixture/endpoint fixture/image workspace/control
created: workspace/up identity/state policy ssh probe identity/disk endpoint-before host-probe-before control-probe-before ssh-before probe-runs ssh-after control-probe-after host-probe-after endpoint-after no-leak deny identity/same-boot
restarted: workspace/stop workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk endpoint-before host-probe-before control-probe-before ssh-before probe-runs ssh-after control-probe-after host-probe-after endpoint-after no-leak deny identity/same-boot
recreated: workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk endpoint-before host-probe-before control-probe-before ssh-before probe-runs ssh-after control-probe-after host-probe-after endpoint-after no-leak deny identity/same-boot
: receipts`,
	} {
		if got := plan(t, id); got != want {
			t.Errorf("the checks of %s are%s\nwant%s", id, got, want)
		}
	}
}

func TestNamesAreUniqueAndEachHasASentence(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range catalogue() {
		if seen[c.ID()] {
			t.Errorf("%s is there twice", c.ID())
		}
		seen[c.ID()] = true
		if !strings.HasSuffix(c.Promise, ".") || c.Weight <= 0 || len(c.Checks) == 0 {
			t.Errorf("%s has the promise %q, the weight %d and %d checks", c.ID(), c.Promise, c.Weight, len(c.Checks))
		}
		for _, check := range c.Checks {
			key := c.ID() + " " + check.Phase + " " + check.Name
			if seen[key] {
				t.Errorf("%s is there twice", key)
			}
			seen[key] = true
			if !strings.HasSuffix(check.Sentence, ".") {
				t.Errorf("%s has the sentence %q", key, check.Sentence)
			}
		}
	}
}

func TestSelect(t *testing.T) {
	egress := []string{"contract/builtin/cli", "egress/builtin/public", "egress/builtin/deny"}
	for scenario, want := range map[string][]string{"egress": egress, "all": egress, "contract": egress[:1]} {
		got, err := catalogue().Select(scenario, []string{"builtin"})
		if err != nil || !reflect.DeepEqual(ids(got), want) {
			t.Errorf("selecting %s gives %q and %v, want %q", scenario, ids(got), err, want)
		}
	}
}

func TestSelectRefusesUnknownNamesAndListsTheKnown(t *testing.T) {
	for _, test := range []struct {
		scenario  string
		providers []string
		want      string
		notYet    bool
	}{
		{"egres", []string{"builtin"}, `unknown scenario "egres"; known are all, contract, egress`, false},
		{"", []string{"builtin"}, `unknown scenario ""; known are all, contract, egress`, false},
		{"egress", []string{"builtin", "docker"}, `unknown provider "docker"; known are builtin, external`, false},
		{"egress", nil, `no provider is named; known are builtin, external`, false},
		{"egress", []string{"builtin", "external"}, `the provider external is known, but it is not there yet; use builtin`, true},
	} {
		got, err := catalogue().Select(test.scenario, test.providers)
		if err == nil || err.Error() != test.want || errors.Is(err, ErrNotYet) != test.notYet || got != nil {
			t.Errorf("selecting %q for %q gives %q and the error %v, want %q", test.scenario, test.providers, ids(got), err, test.want)
		}
	}
}

func TestByIDOfAnUnknownCase(t *testing.T) {
	if c, ok := catalogue().ByID("egress/builtin"); ok {
		t.Errorf("half an id finds %s", c.ID())
	}
}
