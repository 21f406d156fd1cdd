package msbdriver

import (
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
)

// holes are the rules that a fault adds to a policy that denies egress. None of them lets anything
// out to the endpoint of the cases, so a look at that one address and port finds nothing.
var holes = map[fault.Fault][]string{
	fault.PolicyHolePort:    {"allow@public:tcp:443"},
	fault.PolicyHoleAddress: {"allow@198.51.100.0/24"},
	fault.PolicyHoleGroup:   {"allow@private"},
	fault.PolicyHoleDomain:  {"allow@example.com"},
	fault.PolicyHoleOrder:   {"allow@198.51.100.10", "deny@any"},
}

// misbehave makes of a machine's options what the fault asks for.
func misbehave(o msb.CreateOptions) msb.CreateOptions {
	if o.DenyEgress {
		o.NetRules = holes[fault.Asked()]
	}
	return o
}

// misbehavingExec makes of how a command runs what the fault asks for. The agent of the reference CLI
// serves a session, or runs one command.
func misbehavingExec(o msb.ExecOptions, argv []string) msb.ExecOptions {
	if fault.On(fault.SSHCommandRoot) && len(argv) > 1 && argv[1] == "run" {
		o.User = "root"
	}
	return o
}
