package egress

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
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
func judgePolicy(box msb.Sandbox, deny bool) (string, cases.Finding) {
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
	allow, err := allowing(active.Rules)
	switch {
	case !deny && allow != "":
		return unknown("not the default policy, and one that allows egress by the rule " + allow)
	case !deny:
		return policyDeny, cases.Broken("", show(active), "the policy is stricter than what was asked for")
	case allow != "":
		return policyUnknown, cases.Broken("no rule that allows egress", "the rule "+allow, "egress that is denied save for something is not denied")
	case err != nil:
		return unknown(err.Error())
	}
	return policyDeny, cases.Passed(show(active) + ", stored and active")
}

// allowing gives the first rule of a policy that allows any egress, wherever to; empty when none does. What a rule before it denies
// makes no difference: a policy that denies all needs no rule that allows something. The error is about a rule that is not understood.
func allowing(rules []json.RawMessage) (allow string, unclear error) {
	for _, raw := range rules {
		var line bytes.Buffer
		_ = json.Compact(&line, raw) // it is JSON, or it would not be here
		var rule struct{ Action, Direction string }
		if err := json.Unmarshal(raw, &rule); err != nil {
			unclear = cmp.Or(unclear, fmt.Errorf("the rule %s is not understood: %w", &line, err))
			continue
		}
		known := slices.Contains([]string{"allow", "deny"}, rule.Action) && slices.Contains([]string{"egress", "ingress", "any"}, rule.Direction)
		switch {
		case !known:
			unclear = cmp.Or(unclear, fmt.Errorf("the rule %s has an unknown action or direction", &line))
		case rule.Action == "allow" && rule.Direction != "ingress":
			return line.String(), nil
		}
	}
	return "", unclear
}

func show(p *msb.Policy) string {
	if p == nil {
		return "the default policy"
	}
	return fmt.Sprintf("default_egress %s, default_ingress %s, %s", p.DefaultEgress, p.DefaultIngress, report.Count(len(p.Rules), "rule"))
}
