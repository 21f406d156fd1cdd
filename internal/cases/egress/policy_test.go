package egress

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
)

// box is what msb inspect says, in the shape of MicroSandbox 0.7.2, with the given network policies.
func box(t *testing.T, stored, active string) msb.Sandbox {
	t.Helper()
	config := func(policy string) string {
		if policy == "null" {
			return "null"
		}
		if policy != "" {
			policy = `,"policy":` + policy
		}
		return `{"network":{"enabled":true,"ports":[],"strict":false` + policy + `}}`
	}
	var s msb.Sandbox
	text := `{"name":"x","status":"Running","config":` + config(stored) + `,"active_config":` + config(active) + `,"pending_changes":[]}`
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func denyWith(rules string) string {
	return `{"default_egress":"deny","default_ingress":"allow","rules":[` + rules + `]}`
}

func rule(action, direction, destination string) string {
	return `{"action":"` + action + `","destination":` + destination + `,"direction":"` + direction + `","ports":[],"protocols":[]}`
}

// limited is a rule for all public addresses with a limit, in the shape of MicroSandbox 0.7.2.
func limited(protocols string, start, end int) string {
	return fmt.Sprintf(`{"action":"allow","destination":{"group":"public"},"direction":"egress","ports":[{"end":%d,"start":%d}],"protocols":%s}`,
		end, start, protocols)
}

func TestJudgePolicy(t *testing.T) {
	deny, allow := denyWith(""), `{"default_egress":"allow","default_ingress":"allow","rules":[]}`
	for _, test := range []struct {
		name           string
		stored, active string
		public, denied report.Verdict
	}{
		{"the default: no key", "", "", report.Pass, report.Fail},
		{"deny", deny, deny, report.Fail, report.Pass},
		{"stored and not active", deny, "", report.Fail, report.Fail},
		{"active and not stored", "", deny, report.Fail, report.Fail},
		{"no active configuration", deny, "null", report.Fail, report.Fail},
		{"allow, spelled out", allow, allow, report.Inconclusive, report.Fail},
		{"an unknown default", `{"default_egress":"ask"}`, `{"default_egress":"ask"}`, report.Inconclusive, report.Inconclusive},
		{"a rule for the endpoint", denyWith(rule("allow", "egress", `{"cidr":"203.0.113.10/32"}`)), "=", report.Inconclusive, report.Fail},
		{"a rule for its network", denyWith(rule("allow", "egress", `{"cidr":"203.0.113.0/24"}`)), "=", report.Inconclusive, report.Fail},
		{"a rule for all public", denyWith(rule("allow", "egress", `{"group":"public"}`)), "=", report.Inconclusive, report.Fail},
		{"a rule for anything", denyWith(rule("allow", "egress", `"any"`)), "=", report.Inconclusive, report.Fail},
		{"a rule both ways", denyWith(rule("allow", "any", `"any"`)), "=", report.Inconclusive, report.Fail},
		{"a rule for its port", denyWith(limited(`["tcp"]`, 80, 90)), "=", report.Inconclusive, report.Fail},
		{"a rule for other ports", denyWith(limited(`["tcp"]`, 443, 443)), "=", report.Inconclusive, report.Fail},
		{"a rule for UDP", denyWith(limited(`["udp"]`, 1, 65535)), "=", report.Inconclusive, report.Fail},
		{"a rule for UDP and TCP", denyWith(limited(`["udp","tcp"]`, 1, 65535)), "=", report.Inconclusive, report.Fail},
		{"a rule for the gateway", denyWith(rule("allow", "egress", `{"group":"host"}`)), "=", report.Inconclusive, report.Fail},
		{"a destination that is no object", denyWith(rule("allow", "egress", `"all"`)), "=", report.Inconclusive, report.Fail},
		{"no destination", denyWith(`{"action":"allow","direction":"egress"}`), "=", report.Inconclusive, report.Fail},
		{"the second of two rules", denyWith(rule("allow", "egress", `{"group":"private"}`) + "," + rule("allow", "egress", `{"group":"public"}`)), "=",
			report.Inconclusive, report.Fail},
		{"a rule for another address", denyWith(rule("allow", "egress", `{"cidr":"198.51.100.1/32"}`)), "=", report.Inconclusive, report.Fail},
		{"a rule for private ones", denyWith(rule("allow", "egress", `{"group":"private"}`)), "=", report.Inconclusive, report.Fail},
		{"a rule that denies", denyWith(rule("deny", "egress", `{"group":"public"}`)), "=", report.Fail, report.Pass},
		{"a rule for ingress", denyWith(rule("allow", "ingress", `{"group":"public"}`)), "=", report.Fail, report.Pass},
		{"a rule for a name", denyWith(rule("allow", "egress", `{"domain":"example.com"}`)), "=", report.Inconclusive, report.Fail},
		{"an unknown group", denyWith(rule("allow", "egress", `{"group":"metadata"}`)), "=", report.Inconclusive, report.Fail},
		{"a rule that denies all, and then one that allows", denyWith(rule("deny", "egress", `"any"`) + "," + rule("allow", "egress", `{"group":"public"}`)), "=",
			report.Inconclusive, report.Fail},
		{"an unknown action, and a rule that allows", denyWith(rule("log", "egress", `"any"`) + "," + rule("allow", "any", `{"group":"host"}`)), "=",
			report.Inconclusive, report.Fail},
		{"an unknown action", denyWith(rule("log", "egress", `{"group":"public"}`)), "=", report.Fail, report.Inconclusive},
		{"an unknown direction", denyWith(rule("allow", "both", `{"group":"public"}`)), "=", report.Fail, report.Inconclusive},
		{"a rule that is no object", denyWith(`"allow"`), "=", report.Fail, report.Inconclusive},
	} {
		if test.active == "=" {
			test.active = test.stored
		}
		for denied, want := range map[bool]report.Verdict{false: test.public, true: test.denied} {
			_, f := judgePolicy(box(t, test.stored, test.active), denied)
			if f.Verdict != want {
				t.Errorf("%s, denied %v: %s (%s), want %s", test.name, denied, f.Verdict, f.Seen, want)
			}
			if f.Verdict != report.Pass && (f.Seen == "" || f.Next == "") {
				t.Errorf("%s, denied %v: seen %q, next %q", test.name, denied, f.Seen, f.Next)
			}
		}
	}
}

func TestJudgePolicyNeedsANetworkThatIsOnAndSettled(t *testing.T) {
	deny := denyWith("")
	off := false
	for name, test := range map[string]struct {
		change func(*msb.Sandbox)
		want   report.Verdict
	}{
		"disabled":         {func(s *msb.Sandbox) { s.ActiveConfig.Network.Enabled = &off }, report.Fail},
		"enabled is gone":  {func(s *msb.Sandbox) { s.ActiveConfig.Network.Enabled = nil }, report.Inconclusive},
		"network is gone":  {func(s *msb.Sandbox) { s.ActiveConfig.Network = nil }, report.Inconclusive},
		"config is gone":   {func(s *msb.Sandbox) { s.Config = nil }, report.Inconclusive},
		"a change pending": {func(s *msb.Sandbox) { s.PendingChanges = json.RawMessage(`[{"key":"network"}]`) }, report.Fail},
		"pending is null":  {func(s *msb.Sandbox) { s.PendingChanges = json.RawMessage(`null`) }, report.Pass},
	} {
		s := box(t, deny, deny)
		test.change(&s)
		if _, f := judgePolicy(s, true); f.Verdict != test.want {
			t.Errorf("%s: %s (%s), want %s", name, f.Verdict, f.Seen, test.want)
		}
	}
}

func TestPolicyNamesTheRule(t *testing.T) {
	stored := denyWith(rule("allow", "egress", `{"cidr":"203.0.113.10/32"}`))
	_, f := judgePolicy(box(t, stored, stored), true)
	if !strings.Contains(f.Seen, "203.0.113.10/32") {
		t.Errorf("seen is %q", f.Seen)
	}
}
