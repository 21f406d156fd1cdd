package egress

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
)

// Policies as observations.
const (
	policyDefault = "default"
	policyDeny    = "egress denied"
	policyUnknown = "unknown"
)

// judgePolicy judges what MicroSandbox says of a running sandbox's network policy, and names the policy.
func judgePolicy(box msb.Sandbox, deny bool, target netip.AddrPort) (string, cases.Finding) {
	unknown := func(seen string) (string, cases.Finding) {
		return policyUnknown, cases.Unclear("", seen, workspace.NextShape)
	}
	switch {
	case box.ActiveConfig == nil:
		return policyUnknown, cases.Broken("a running sandbox's active configuration", "active_config is null", "the policy is stored and not in force")
	case box.Config == nil || box.Config.Network == nil || box.ActiveConfig.Network == nil:
		return unknown("config.network is absent")
	case box.ActiveConfig.Network.Enabled == nil:
		return unknown("active_config.network.enabled is absent")
	case !*box.ActiveConfig.Network.Enabled:
		return policyUnknown, cases.Broken("", "the network is disabled", "a sandbox without a network denies nothing: it has nothing to deny")
	}
	stored, active := box.Config.Network.Policy, box.ActiveConfig.Network.Policy
	if !reflect.DeepEqual(stored, active) {
		return policyUnknown, cases.Broken("stored and active policy agree", fmt.Sprintf("stored %s, active %s", show(stored), show(active)),
			"the policy that is stored is not the one in force")
	}
	if pending := strings.TrimSpace(string(box.PendingChanges)); pending != "" && pending != "null" && pending != "[]" {
		return policyUnknown, cases.Broken("nothing pending", "pending_changes is "+pending, "the policy that is stored is not yet in force")
	}
	if active == nil { // the default policy's key is absent
		if deny {
			return policyDefault, cases.Broken("", "the default policy", "the subject did not ask MicroSandbox to deny egress")
		}
		return policyDefault, cases.Passed("the default policy, stored and active")
	}
	switch active.DefaultEgress {
	case "deny":
	case "allow":
		if deny {
			return policyUnknown, cases.Broken("", show(active), "the policy is looser than what was asked for")
		}
		return unknown(show(active))
	default:
		return unknown(show(active))
	}
	for _, raw := range active.Rules {
		allows, err := allowsEndpoint(raw, target)
		switch {
		case !deny && allows:
			return unknown("not the default policy, and one that allows the endpoint by the rule " + string(raw))
		case deny && err != nil:
			return unknown(err.Error())
		case allows:
			return policyUnknown, cases.Broken("", "the rule "+string(raw), "a rule allows what was to be denied")
		}
	}
	if !deny {
		return policyDeny, cases.Broken("", show(active), "the policy is stricter than what was asked for")
	}
	return policyDeny, cases.Passed(show(active) + ", stored and active")
}

// allowsEndpoint tells whether a rule of a policy could let TCP out to the endpoint. A rule that is not understood is an error.
func allowsEndpoint(raw json.RawMessage, target netip.AddrPort) (bool, error) {
	var rule struct {
		Action      string
		Direction   string
		Destination json.RawMessage // "any", or an object
		Protocols   []string        // none means all
		Ports       []struct{ Start, End uint16 }
	}
	var destination struct{ CIDR, Group string }
	if err := json.Unmarshal(raw, &rule); err != nil {
		return false, fmt.Errorf("the rule %s is not understood: %w", raw, err)
	}
	switch {
	case rule.Action == "deny" || rule.Direction == "ingress":
		return false, nil
	case rule.Action != "allow" || rule.Direction != "egress" && rule.Direction != "any":
		return false, fmt.Errorf("the rule %s has an unknown action or direction", raw)
	case len(rule.Protocols) > 0 && !slices.Contains(rule.Protocols, "tcp"):
		return false, nil
	case len(rule.Ports) > 0 && !slices.ContainsFunc(rule.Ports, func(p struct{ Start, End uint16 }) bool {
		return p.Start <= target.Port() && target.Port() <= p.End
	}):
		return false, nil
	case string(rule.Destination) == `"any"`:
		return true, nil
	}
	if err := json.Unmarshal(rule.Destination, &destination); err != nil {
		return false, fmt.Errorf("the rule %s has an unknown destination: %w", raw, err)
	}
	switch {
	case destination.CIDR != "":
		prefix, err := netip.ParsePrefix(destination.CIDR)
		if err != nil {
			return false, fmt.Errorf("the rule %s is not understood: %w", raw, err)
		}
		return prefix.Contains(target.Addr()), nil
	case destination.Group == "public":
		return true, nil // MicroSandbox counts the endpoint's address as public
	case slices.Contains([]string{"private", "loopback", "link-local", "host"}, destination.Group): // host is the guest's gateway
		return false, nil
	}
	return false, fmt.Errorf("the rule %s has an unknown destination", raw)
}

func show(p *msb.Policy) string {
	if p == nil {
		return "the default policy"
	}
	return fmt.Sprintf("default_egress %s, default_ingress %s, %s", p.DefaultEgress, p.DefaultIngress, report.Count(len(p.Rules), "rule"))
}
