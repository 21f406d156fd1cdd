package catalogue

import (
	"reflect"
	"strings"
	"testing"
)

func catalogue() Catalogue {
	return New([]Check{
		{Name: "ssh/exit-code", Sentence: "An exit code passes through."}, {Name: "status/missing", Sentence: "A missing workspace is 75."},
	})
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
: fixture/link fixture/endpoint fixture/ways fixture/image provider
created: workspace/up identity/state policy ssh probe identity/disk host-probe public sweep identity/same-boot
restarted: workspace/stop workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk host-probe public sweep identity/same-boot
recreated: workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk host-probe public sweep identity/same-boot
: receipts`,
		"egress/builtin/deny": `
: fixture/link fixture/endpoint fixture/ways fixture/image provider workspace/control
created: workspace/up identity/state policy ssh probe identity/disk endpoint-before host-probe-before control-probe-before ssh-before probe-runs ssh-after control-probe-after host-probe-after endpoint-after no-leak deny sweep identity/same-boot
restarted: workspace/stop workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk endpoint-before host-probe-before control-probe-before ssh-before probe-runs ssh-after control-probe-after host-probe-after endpoint-after no-leak deny sweep identity/same-boot
recreated: workspace/up identity/state identity/created-at policy ssh probe identity/boot-id identity/disk endpoint-before host-probe-before control-probe-before ssh-before probe-runs ssh-after control-probe-after host-probe-after endpoint-after no-leak deny sweep identity/same-boot
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
		if !strings.HasSuffix(c.Promise, ".") || (c.Weight <= 0) != (c.Scenario == Parity) || len(c.Checks) == 0 {
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
	for _, test := range []struct {
		scenario, provider string
		want               string
	}{
		{"egress", "builtin", "contract/builtin/cli egress/builtin/public egress/builtin/deny"},
		{"egress", "external", "contract/external/cli egress/external/public egress/external/deny"},
		{"egress", "both", "contract/builtin/cli egress/builtin/public egress/builtin/deny egress/external/public egress/external/deny parity/egress"},
		{"contract", "builtin", "contract/builtin/cli"},
		{"contract", "both", "contract/builtin/cli contract/external/cli"},
		{"all", "builtin", "contract/builtin/cli egress/builtin/public egress/builtin/deny" +
			" image-parity/builtin/registry image-parity/builtin/docker image-parity/builtin/feature"},
		{"all", "both", "contract/builtin/cli contract/external/cli" +
			" egress/builtin/public egress/builtin/deny egress/external/public egress/external/deny" +
			" image-parity/builtin/registry image-parity/builtin/docker image-parity/builtin/feature" +
			" image-parity/external/registry image-parity/external/docker image-parity/external/feature remote-agent/external/delivery parity/egress parity/image-parity"},
		{"remote-agent", "both", "contract/external/cli remote-agent/external/delivery"},
	} {
		got, err := catalogue().Select(test.scenario, []string{test.provider})
		if err != nil || strings.Join(ids(got), " ") != test.want {
			t.Errorf("selecting %s for %s gives %q and %v, want %q", test.scenario, test.provider, ids(got), err, test.want)
		}
	}
	both, _ := catalogue().Select("egress", []string{"both"})
	if each, err := catalogue().Select("egress", []string{"external", "builtin"}); err != nil || !reflect.DeepEqual(ids(each), ids(both)) {
		t.Errorf("naming each provider gives %q and %v, want %q", ids(each), err, ids(both))
	}
	if last := both[len(both)-1]; len(last.Checks) != 2 || last.Checks[0].Name != "public" || last.Checks[1].Name != "deny" {
		t.Errorf("%s has the checks %+v", last.ID(), last.Checks)
	}
}

func TestOnly(t *testing.T) {
	selected, err := catalogue().Select("egress", []string{"both"})
	if err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{
		"egress/*/deny":        "contract/builtin/cli egress/builtin/deny egress/external/deny parity/egress",
		"egress/external/deny": "contract/builtin/cli egress/external/deny",
		"contract/*/cli":       "contract/builtin/cli",
	} {
		if got, err := Only(selected, pattern); err != nil || strings.Join(ids(got), " ") != want {
			t.Errorf("only %s gives %q and %v, want %q", pattern, ids(got), err, want)
		}
	}
	for pattern, want := range map[string]string{
		"egress/*/den":  `no case matches "egress/*/den", where * is any text without a slash; they are contract/builtin/cli, egress/builtin/public`,
		"parity/egress": "no case matches",
		"[":             `"[" is no pattern`,
	} {
		if got, err := Only(selected, pattern); got != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("only %s gives %q and %v, want %q", pattern, ids(got), err, want)
		}
	}
}

func TestSelectRefusesUnknownNamesAndListsTheKnown(t *testing.T) {
	for _, test := range []struct {
		scenario  string
		providers []string
		want      string
	}{
		{"egres", []string{"builtin"}, `unknown scenario "egres"; known are all, contract, egress, image-parity, remote-agent`},
		{"", []string{"builtin"}, `unknown scenario ""; known are all, contract, egress, image-parity, remote-agent`},
		{"parity", []string{"both"}, `unknown scenario "parity"; known are all, contract, egress, image-parity, remote-agent`},
		{"egress", []string{"builtin", "docker"}, `unknown provider "docker"; known are builtin, external, both`},
		{"egress", []string{""}, `unknown provider ""; known are builtin, external, both`},
		{"remote-agent", []string{"builtin"}, `remote-agent has no case of the provider builtin: give the provider external, or none`},
		{"egress", nil, `no provider is named; known are builtin, external, both`},
	} {
		got, err := catalogue().Select(test.scenario, test.providers)
		if err == nil || err.Error() != test.want || got != nil {
			t.Errorf("selecting %q for %q gives %q and the error %v, want %q", test.scenario, test.providers, ids(got), err, test.want)
		}
	}
}

func TestByIDOfAnUnknownCase(t *testing.T) {
	if c, ok := catalogue().ByID("egress/builtin"); ok {
		t.Errorf("half an id finds %s", c.ID())
	}
}
