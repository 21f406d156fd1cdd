// Package fault names the ways in which Parity's own parts can be told to misbehave, so that the self-test can show which check
// catches which fault. One fault at a time is asked for by its name in PARITY_FAULT; without that variable nothing misbehaves.
package fault

import (
	"fmt"
	"os"
	"sync"
)

// Env is the environment variable that names the fault.
const Env = "PARITY_FAULT"

// Fault is the name of a fault.
type Fault string

// Part is what a fault is honoured by.
type Part string

// StandIn is the stand-in for msb (internal/standin).
const StandIn Part = "stand-in"

// The faults that the stand-in honours. Catalogue describes them.
const (
	DenyIgnored                Fault = "deny-ignored"
	DenyIgnoredAfterRestart    Fault = "deny-ignored-after-restart"
	DenyIgnoredAfterRecreation Fault = "deny-ignored-after-recreation"
	DenyDrops                  Fault = "deny-drops"
	DenyProxy403               Fault = "deny-proxy-403"
	DenyAcceptClose            Fault = "deny-accept-close"
	DenyLeaks                  Fault = "deny-leaks"
	PolicyNotActive            Fault = "policy-not-active"
	PolicyLooser               Fault = "policy-looser"
	RestartNoReboot            Fault = "restart-no-reboot"
	RestartRecreates           Fault = "restart-recreates"
	RecreateRestarts           Fault = "recreate-restarts"
	DiskLostAtRestart          Fault = "disk-lost-at-restart"
	DiskKeptAtRecreation       Fault = "disk-kept-at-recreation"
	ControlDenied              Fault = "control-denied"
	ControlStopped             Fault = "control-stopped"
	ControlMissing             Fault = "control-missing"
)

// Entry describes a fault.
type Entry struct {
	Fault    Fault
	Part     Part
	Sentence string // what goes wrong
}

// Catalogue lists every fault.
func Catalogue() []Entry {
	return []Entry{
		{DenyIgnored, StandIn, "Denied egress is stored and reported, and not enforced."},
		{DenyIgnoredAfterRestart, StandIn, "Denied egress is no longer enforced once the sandbox was stopped and started."},
		{DenyIgnoredAfterRecreation, StandIn, "Denied egress is not enforced in a sandbox that takes the place of a removed one of its name."},
		{DenyDrops, StandIn, "Denied packets are dropped without a word, instead of refused."},
		{DenyProxy403, StandIn, "Denied connections are established, and a proxy answers 403."},
		{DenyAcceptClose, StandIn, "Denied connections are established, and closed without an answer."},
		{DenyLeaks, StandIn, "Denied connections are refused to the client, and made to the destination all the same."},
		{PolicyNotActive, StandIn, "Denied egress is stored, and the running sandbox has the default policy."},
		{PolicyLooser, StandIn, "Denied egress is stored with a rule that allows all public addresses."},
		{RestartNoReboot, StandIn, "A sandbox that was stopped and started has the boot ID that it had before."},
		{RestartRecreates, StandIn, "A stopped sandbox that is started is made anew, with another creation time and an empty disk."},
		{RecreateRestarts, StandIn, "A sandbox that takes the place of a removed one of its name is that one, started again."},
		{DiskLostAtRestart, StandIn, "A sandbox that was stopped and started begins with the image's disk."},
		{DiskKeptAtRecreation, StandIn, "A sandbox that takes the place of a removed one of its name has its disk."},
		{ControlDenied, StandIn, "Egress is refused to sandboxes of the default policy too."},
		{ControlStopped, StandIn, "Every other sandbox is stopped when one is created whose egress is denied."},
		{ControlMissing, StandIn, "Every other sandbox is removed when one is created whose egress is denied."},
	}
}

// Asked is the fault that this process was asked for, or empty.
var Asked = sync.OnceValue(func() Fault { return Fault(os.Getenv(Env)) })

// Environ is what the environment of a child needs for it to be asked for the same fault.
func Environ() []string {
	if On("") {
		return nil
	}
	return []string{Env + "=" + string(Asked())}
}

// On tells whether this process was asked for the fault.
func On(f Fault) bool { return f == Asked() }

// Check fails when this process was asked for a fault that does not exist: a misspelt one would show nothing.
func Check() error {
	if On("") {
		return nil
	}
	names := ""
	for _, e := range Catalogue() {
		if On(e.Fault) {
			return nil
		}
		names += " " + string(e.Fault)
	}
	return fmt.Errorf("%s=%s: expected one of%s", Env, Asked(), names)
}
