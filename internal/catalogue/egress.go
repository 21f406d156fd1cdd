package catalogue

// egressChecks are the checks of an egress case in the order in which they are evaluated.
func egressChecks(provider string, deny bool) []Check {
	checks := []Check{
		linkCheck,
		{Name: "fixture/endpoint", Sentence: "The endpoint answers the host on its literal address."},
		{Name: "fixture/ways", Sentence: "A listener of the test's own is at the end of each other way out, and the lab's resolver is one of them."},
		{Name: "fixture/image", Sentence: "The image of the workspaces is built, and a registry of the case's own and MicroSandbox have it."},
		providerCheck,
	}
	if deny {
		checks = append(checks, Check{Name: "workspace/control", Sentence: "The control workspace, whose egress is not denied, came up, and an SSH session opens to it and to no other guest."})
	}
	for _, phase := range []string{Created, Restarted, Recreated} {
		checks = append(checks, egressPhase(provider, phase, deny)...)
	}
	return append(checks, Check{Name: "receipts", Alone: deny, Sentence: "At the end the endpoint holds exactly the receipts that the case expects, and no stranger's."})
}

func egressPhase(provider, phase string, deny bool) []Check {
	outside := []Check{{Name: "policy", Sentence: "MicroSandbox has its default network policy for the workspace, stored and active."}}
	inside := []Check{{Name: "identity/disk", Sentence: map[string]string{
		Created:   "A marker is written to the image's own disk and synced.",
		Restarted: "The marker on the image's own disk has survived the restart.",
		Recreated: "The marker on the image's own disk is gone after the recreation.",
	}[phase]}}
	add := func(name, sentence string) { inside = append(inside, Check{Name: name, Sentence: sentence}) }
	if deny {
		outside[0].Sentence = "MicroSandbox has the workspace's egress on deny, stored and active, with no rule that allows any egress."
		add("endpoint-before", "Before the denied request: the endpoint finds itself healthy.")
		add("host-probe-before", "Before the denied request: the host reaches the endpoint, and the end of each other way out.")
		add("control-probe-before", "Before the denied request: the control workspace reaches the endpoint, and the ends of those other ways out that MicroSandbox's default policy lets through.")
		add("ssh-before", "Before the denied request: the SSH session to the workspace answers.")
		add("probe-runs", "Before the denied request: the probe program runs in the workspace.")
		add("ssh-after", "After the denied request: the same SSH session answers.")
		add("control-probe-after", "After the denied request: the control workspace reaches the endpoint, and the ends of those other ways out that MicroSandbox's default policy lets through.")
		add("host-probe-after", "After the denied request: the host reaches the endpoint, and the end of each other way out.")
		add("endpoint-after", "After the denied request: the endpoint finds itself healthy.")
		inside = append(inside, Check{
			Name: "no-leak", Alone: true, Sentence: "During the denied requests nothing arrived at the endpoint, or by any other way, but what is the host's or the control's.",
		})
		add("deny", "The workspace's connection to the endpoint was refused, or reset.")
		add("sweep", "By each other way out, what the workspace sent was refused, or reset, or nothing came back.")
	} else {
		add("host-probe", "The host reaches the endpoint, and the end of each other way out.")
		add("public", "The workspace gets the endpoint's own bytes, and exactly one receipt has its nonce.")
		add("sweep", "The workspace has tried each other way out, and what became of that is on record.")
	}
	return phaseChecks(provider, phase, outside, inside)
}
