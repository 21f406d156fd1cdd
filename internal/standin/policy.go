package standin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"dagger/parity/internal/fault"
)

// rule is a rule of a network policy, in JSON as msb has it. The first one that matches holds.
type rule struct {
	Action      string   `json:"action"` // allow or deny
	Destination target   `json:"destination"`
	Direction   string   `json:"direction"` // egress, ingress or any
	Ports       []span   `json:"ports"`     // none is all
	Protocols   []string `json:"protocols"` // none is all
}

// span is a range of ports, both ends in it.
type span struct {
	Start uint16 `json:"start"`
	End   uint16 `json:"end"`
}

// target is where to a rule is about.
type target struct{ kind, value string }

// The kinds of target. In JSON a target is the word any, or an object with its kind and its value.
const (
	targetAny    = "any"
	targetGroup  = "group"
	targetCIDR   = "cidr"
	targetDomain = "domain"
)

// MarshalJSON gives the target as msb has it.
func (t target) MarshalJSON() ([]byte, error) {
	if t.kind == targetAny {
		return json.Marshal(targetAny)
	}
	return json.Marshal(map[string]string{t.kind: t.value})
}

// UnmarshalJSON reads what MarshalJSON gives.
func (t *target) UnmarshalJSON(text []byte) error {
	*t = target{kind: targetAny}
	if string(text) == `"any"` {
		return nil
	}
	var object map[string]string
	err := json.Unmarshal(text, &object)
	for kind, value := range object {
		*t = target{kind, value}
	}
	return err
}

// groups are the words for groups of addresses on msb's command line, and the names that msb has for them in JSON.
var groups = map[string]string{
	"public": "public", "private": "private", "loopback": "loopback", "link-local": "link_local", "meta": "metadata", "host": "host",
}

var protocols = []string{"tcp", "udp", "icmpv4", "icmpv6"}

// parseRules reads the value of one --net-rule: rules with commas between them, each
// ACTION[:DIRECTION]@TARGET[:PROTOCOL[:PORTS]].
func parseRules(text string) (rules []rule, err error) {
	for token := range strings.SplitSeq(text, ",") {
		r, err := parseRule(token)
		if err != nil {
			return nil, fmt.Errorf("--net-rule %s: %w", token, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseRule(token string) (rule, error) {
	r := rule{Direction: "egress", Ports: []span{}, Protocols: []string{}}
	left, right, ok := strings.Cut(token, "@")
	if !ok {
		return r, fmt.Errorf("expected an @ before the target")
	}
	action, direction, given := strings.Cut(left, ":")
	if r.Action = action; action != "allow" && action != "deny" {
		return r, fmt.Errorf("%q is no action", action)
	}
	if given {
		r.Direction = direction
	}
	if !slices.Contains([]string{"egress", "ingress", "any"}, r.Direction) {
		return r, fmt.Errorf("%q is no direction", r.Direction)
	}
	name, limits := right, ""
	if inner, bracketed := strings.CutPrefix(right, "["); bracketed { // an IPv6 address has colons of its own
		name, limits, _ = strings.Cut(inner, "]")
		limits = strings.TrimPrefix(limits, ":")
	} else {
		name, limits, _ = strings.Cut(right, ":")
	}
	if name == "dns" { // port 53 of the gateway
		r.Destination, r.Ports, r.Protocols = target{targetGroup, "host"}, []span{{53, 53}}, []string{"udp", "tcp"}
		return r, nil
	}
	var err error
	if r.Destination, err = parseTarget(name); err != nil || limits == "" {
		return r, err
	}
	protocol, ports, given := strings.Cut(limits, ":")
	if protocol != "any" {
		r.Protocols = []string{protocol}
		if !slices.Contains(protocols, protocol) {
			return r, fmt.Errorf("%q is no protocol", protocol)
		}
	}
	if given && ports != "any" {
		first, last, ranged := strings.Cut(ports, "-")
		if !ranged {
			last = first
		}
		start, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return r, err
		}
		end, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return r, err
		}
		r.Ports = []span{{uint16(start), uint16(end)}}
	}
	return r, nil
}

func parseTarget(name string) (target, error) {
	if name == targetAny {
		return target{kind: targetAny}, nil
	}
	if group, ok := groups[name]; ok {
		return target{targetGroup, group}, nil
	}
	if prefix, err := netip.ParsePrefix(name); err == nil {
		return target{targetCIDR, prefix.String()}, nil
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return target{targetCIDR, netip.PrefixFrom(addr, addr.BitLen()).String()}, nil
	}
	if !strings.Contains(name, ".") {
		return target{}, fmt.Errorf("%q is no target", name)
	}
	return target{targetDomain, name}, nil
}

// The addresses of each group, save for public, which is all others.
var groupPrefixes = map[string][]netip.Prefix{
	"host":       {netip.PrefixFrom(gatewayAddress, 32)},
	"metadata":   prefixes("169.254.169.254/32"),
	"loopback":   prefixes("127.0.0.0/8", "::1/128"),
	"private":    prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
	"link_local": prefixes("169.254.0.0/16", "fe80::/10"),
}

// narrower are the groups of which an address can be, though a wider one has it too: the first one has it.
var narrower = []string{"host", "metadata", "loopback", "private", "link_local"}

// nobody are addresses that are of no group.
var nobody = prefixes("0.0.0.0/8", "224.0.0.0/4", "ff00::/8")

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// addresses gives what of the addresses a target is about: those in any of the prefixes in, and in
// none of out. Of a name it is none, as the stand-in does not look names up.
func (t target) addresses() (in, out []netip.Prefix) {
	everywhere := prefixes("0.0.0.0/0", "::/0")
	switch {
	case t.kind == targetAny:
		return everywhere, nil
	case t.kind == targetCIDR:
		return prefixes(t.value), nil
	case t.kind == targetGroup && t.value == "public":
		for _, group := range narrower {
			out = append(out, groupPrefixes[group]...)
		}
		return everywhere, append(out, nobody...)
	case t.kind == targetGroup:
		for _, group := range narrower[:max(0, slices.Index(narrower, t.value))] {
			out = append(out, groupPrefixes[group]...)
		}
		return groupPrefixes[t.value], out
	}
	return nil, nil
}

// mustParse is parseRules of rules that are known to be right.
func mustParse(text string) []rule {
	rules, err := parseRules(text)
	if err != nil {
		panic(err)
	}
	return rules
}

// defaultRules is msb's default policy.
var defaultRules = mustParse("allow@dns,allow@public")

// openings are the rules that are in force with a fault though egress is denied. They are not told of.
var openings = map[fault.Fault]string{
	fault.DenyOpenPort:     "allow@public:tcp:443",
	fault.DenyOpenAddress:  "allow@198.51.100.0/24",
	fault.DenyOpenIPv6:     "allow@[::/0]",
	fault.DenyOpenPrivate:  "allow@private",
	fault.DenyOpenHost:     "allow@host:tcp",
	fault.DenyOpenMetadata: "allow@meta",
	fault.DenyOpenUDP:      "allow@public:udp",
	fault.DenyOpenDNS:      "allow@dns",
	fault.DenyOpenICMP:     "allow@public:icmpv4",
}

// rulesInForce are the rules that this boot of the sandbox enforces. What no rule allows is denied.
func (m machine) rulesInForce() []rule {
	ignored := fault.On(fault.DenyIgnored) || fault.On(fault.PolicyNotActive) || fault.On(fault.PolicyLooser) || fault.On(fault.ProbeForged) ||
		fault.On(fault.DenyIgnoredAfterRestart) && m.Boots > 1 || fault.On(fault.DenyIgnoredAfterRecreation) && m.Recreated
	opening, opened := openings[fault.Asked()]
	switch {
	case fault.On(fault.ControlDenied):
		return nil
	case m.DenyEgress && opened:
		return mustParse(opening)
	case m.DenyEgress && !ignored:
		return m.Rules
	}
	return defaultRules
}
