package catalogue

import "slices"

// Tampered is the phase of a workspace whose runtime is not what its manifest says.
const Tampered = "tampered"

// Visiting gives cases as they are with a remote machine that is not Parity's own: the case of remote-agent has no Docker Engine then.
func Visiting(cases []Case) []Case {
	cases = slices.Clone(cases)
	for i, c := range cases {
		if IsRemote(c) {
			cases[i].Checks = slices.DeleteFunc(slices.Clone(c.Checks), func(c Check) bool { return c.Name == fixtureDocker })
		}
	}
	return cases
}

// IsRemote tells whether a case's workspaces are on a remote machine.
func IsRemote(c Case) bool { return c.Scenario == "remote-agent" }

// fixtureDocker is the name of the check that the case's Docker Engine answers.
const fixtureDocker = "fixture/docker"

// remoteAgentChecks are the checks of the case of remote-agent in the order in which they are evaluated.
func remoteAgentChecks() []Check {
	place := Check{Name: "place", Sentence: "The workspace's machine runs on the remote, and this side's MicroSandbox has none."}
	runs := []Check{{Name: "runtime/runs", Sentence: "While the SSH session is open, the remote runs that very file, and this side no copy of it."}}
	return slices.Concat([]Check{
		{Name: fixtureDocker, Sentence: "The Docker Engine answers."},
		{Name: "fixture/remote", Sentence: "The remote machine is up, and answers over SSH with the host key that is pinned."},
		{Name: "fixture/artifacts", Sentence: "The agent's and the runtime's server each answer with their file, and have forgotten the requests so far."},
		{Name: "remote/tls", Sentence: "On the remote a TLS handshake with a server whose CA is in the bundle succeeds, and fails without the bundle."},
		{Name: "remote/kvm", Sentence: "On the remote the KVM device opens, and MicroSandbox's own check agrees."},
		{Name: "remote/disk", Sentence: "On the remote the home, MicroSandbox's store and /tmp have room, take user xattrs and run programs."},
		{Name: "remote/download", Sentence: "On the remote curl or wget gets a file from the artifact servers' host."},
		{Name: "fixture/image", Sentence: "The image of the workspace is built, and a registry of the case's own and the remote's MicroSandbox have it."},
		{Name: "remote/image", Sentence: "The remote reads the image's manifest over HTTPS from the registry that its reference names, and does not with the bundle of another CA."},
		providerCheck,
	}, phaseChecks(External, Created, []Check{
		{Name: "agent/delivered", Sentence: "The agent was served to the remote at least once, and the agent there is that one."},
		{Name: "runtime/once", Sentence: "The runtime was asked for exactly once: by the remote, which got it."},
		{Name: "binary/whole", Sentence: "The remote has the workspace's runtime below its home: a regular file with the manifest's name and SHA-256, and execute bits."},
		place,
	}, runs), []Check{
		{Phase: Restarted, Name: "cache/removed", Sentence: "Every other copy of the runtime below the remote's home is removed: what the agent's private download cache had."},
		{Phase: Restarted, Name: "runtime/offline", Sentence: "The runtime's server answers 404, and the agent's still serves."},
	}, phaseChecks(External, Restarted, []Check{
		{Name: "binary/same", Sentence: "The remote has the very same file: SHA-256, mode, device, inode, birth time and time of change are the same, and the old one was held open."},
		place,
	}, runs), []Check{
		{Phase: Restarted, Name: "runtime/unasked", Sentence: "Since the runtime was delivered, nobody has asked for it again."},
		{Phase: Tampered, Name: "mark", Sentence: "A runtime that leaves a mark when it is run is run by the subject as long as its SHA-256 is the manifest's; the changed one, run by the case itself, leaves another mark."},
		{Phase: Tampered, Name: "up/refused", Sentence: "The subject refuses to bring up a workspace whose runtime is that one with one byte changed, and refuses it again."},
		{Phase: Tampered, Name: "up/checksum", Sentence: "The changed runtime was downloaded, and the error names the checksum."},
		{Phase: Tampered, Name: "unexecuted", Sentence: "The changed runtime was not executed: its mark is not there."},
		{Phase: Tampered, Name: "no-machine", Sentence: "MicroSandbox has no machine for that workspace, on either side."},
	})
}
