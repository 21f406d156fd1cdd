package catalogue

// What the cases of several scenarios begin with.
var (
	linkCheck = Check{
		Name: "fixture/link", Sentence: "The link that stands for the way out is up, with an address on it and a default route.", Shared: true,
	}
	providerCheck = Check{Name: "provider", Sentence: "The subject has added its provider.", Shared: true}
)

// phaseChecks are the checks of a phase: those that every scenario makes, and its own between them. outside are about the sandbox as
// MicroSandbox has it, before anything enters the guest; inside are made in the guest.
func phaseChecks(provider, phase string, outside, inside []Check) []Check {
	var checks []Check
	add := func(name, sentence string) {
		checks = append(checks, Check{Name: name, Sentence: sentence, Shared: true})
	}
	if phase == Restarted {
		add("workspace/stop", "The subject stopped the workspace, and MicroSandbox says Stopped.")
	}
	add("workspace/up", map[string]string{
		Created:   "The subject made the workspace and says so.",
		Restarted: "The subject started the stopped workspace and says so.",
		Recreated: "The subject recreated the workspace and says so.",
	}[phase])
	if provider == External && phase == Created {
		add("runtime", "The subject has fetched the external provider's runtime from where its manifest has it.")
	}
	add("identity/state", "MicroSandbox says Running after up, before anything has entered the guest.")
	switch phase {
	case Restarted:
		add("identity/created-at", "It is the same sandbox: its creation time is that of the phase before.")
	case Recreated:
		add("identity/created-at", "It is another sandbox: its creation time is not that of the phase before.")
	}
	checks = append(checks, outside...)
	add("ssh", "An SSH session to the workspace opens and answers.")
	add("probe", "The workspace has the probe program, byte for byte, and it runs there.")
	if phase != Created {
		add("identity/boot-id", "The guest has booted anew: its boot ID is none of the earlier phases'.")
	}
	checks = append(checks, inside...)
	add("identity/same-boot", "The guest's boot ID at the end of the phase is that of its start, the guest is that of the sandbox, and no sandbox of another store of MicroSandbox runs beside it.")
	for i := range checks {
		checks[i].Phase = phase
	}
	return checks
}
