package catalogue

// egressChecks are the checks of an egress case in the order in which they are evaluated.
func egressChecks(provider string, deny bool) []Check {
	checks := []Check{
		{"", "fixture/link", "The link that stands for the way out is up, with the endpoint's address on it and a default route."},
		{"", "fixture/endpoint", "The endpoint answers the host on its literal address."},
		{"", "fixture/image", "The image of the workspaces is built and loaded into MicroSandbox."},
		{"", "provider", "The subject has added its provider."},
	}
	if deny {
		checks = append(checks, Check{"", "workspace/control",
			"The control workspace, whose egress is not denied, came up, and an SSH session opens to it and to no other guest."})
	}
	for _, phase := range []string{Created, Restarted, Recreated} {
		for _, check := range egressPhase(provider, phase, deny) {
			check.Phase = phase
			checks = append(checks, check)
		}
	}
	return append(checks, Check{"", "receipts",
		"At the end the endpoint holds exactly the receipts that the case expects, and no stranger's."})
}

func egressPhase(provider, phase string, deny bool) []Check {
	var checks []Check
	add := func(name, sentence string) { checks = append(checks, Check{Name: name, Sentence: sentence}) }

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
	if deny {
		add("policy", "MicroSandbox has the workspace's egress on deny, stored and active, with no rule that allows the endpoint.")
	} else {
		add("policy", "MicroSandbox has its default network policy for the workspace, stored and active.")
	}
	add("ssh", "An SSH session to the workspace opens and answers.")
	add("probe", "The probe program was copied into the workspace and runs there.")
	if phase != Created {
		add("identity/boot-id", "The guest has booted anew: its boot ID is none of the earlier phases'.")
	}
	add("identity/disk", map[string]string{
		Created:   "A marker is written to the image's own disk and synced.",
		Restarted: "The marker on the image's own disk has survived the restart.",
		Recreated: "The marker on the image's own disk is gone after the recreation.",
	}[phase])
	if deny {
		add("endpoint-before", "Before the denied request: the endpoint finds itself healthy.")
		add("host-probe-before", "Before the denied request: the host reaches the endpoint.")
		add("control-probe-before", "Before the denied request: the control workspace reaches the endpoint.")
		add("ssh-before", "Before the denied request: the SSH session to the workspace answers.")
		add("probe-runs", "Before the denied request: the probe program runs in the workspace.")
		add("ssh-after", "After the denied request: the same SSH session answers.")
		add("control-probe-after", "After the denied request: the control workspace reaches the endpoint.")
		add("host-probe-after", "After the denied request: the host reaches the endpoint.")
		add("endpoint-after", "After the denied request: the endpoint finds itself healthy.")
		add("no-leak", "During the denied request the endpoint accepted nothing but the host's and the control's connections.")
		add("deny", "The workspace's connection to the endpoint was refused, or reset.")
	} else {
		add("host-probe", "The host reaches the endpoint.")
		add("public", "The workspace gets the endpoint's own bytes, and exactly one receipt has its nonce.")
	}
	add("identity/same-boot", "The guest's boot ID at the end of the phase is that of its start, and the guest is that of the sandbox.")
	return checks
}
