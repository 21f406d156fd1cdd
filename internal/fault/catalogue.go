package fault

import "slices"

// Part is what a fault is honoured by.
type Part string

// The parts.
const (
	StandIn   Part = "stand-in"      // for msb (internal/standin)
	Reference Part = "reference CLI" // the workspace CLI that Parity ships (internal/reference)
	Agent     Part = "guest agent"   // the reference CLI's SSH server in a guest (cmd/parity-agent)
	Fixture   Part = "fixture"       // what a test owns (fixtures)
	Step      Part = "step"          // what runs the cases in the lab (internal/step)
	Lab       Part = "emulated lab"  // the machine in which the cases run (internal/lab)
)

// The faults of the stand-in. Catalogue describes each.
const (
	DenyIgnored                Fault = "deny-ignored"
	DenyIgnoredAfterRestart    Fault = "deny-ignored-after-restart"
	DenyIgnoredAfterRecreation Fault = "deny-ignored-after-recreation"
	DenyDrops                  Fault = "deny-drops"
	DenyProxy403               Fault = "deny-proxy-403"
	DenyAcceptClose            Fault = "deny-accept-close"
	DenyLeaks                  Fault = "deny-leaks"
	DenyProxy443               Fault = "deny-proxy-443"
	DenyOpenPort               Fault = "deny-open-port"
	DenyOpenAddress            Fault = "deny-open-address"
	DenyOpenIPv6               Fault = "deny-open-ipv6"
	DenyOpenPrivate            Fault = "deny-open-private"
	DenyOpenHost               Fault = "deny-open-host"
	DenyOpenMetadata           Fault = "deny-open-metadata"
	DenyOpenUDP                Fault = "deny-open-udp"
	DenyOpenDNS                Fault = "deny-open-dns"
	DenyOpenICMP               Fault = "deny-open-icmp"
	PolicyNotActive            Fault = "policy-not-active"
	PolicyLooser               Fault = "policy-looser"
	PolicyOfUnknownShape       Fault = "policy-of-unknown-shape"
	PolicyRuleUnknown          Fault = "policy-rule-unknown"
	StatusUnknown              Fault = "status-unknown"
	NoCreationTime             Fault = "no-creation-time"
	RestartNoReboot            Fault = "restart-no-reboot"
	RestartRecreates           Fault = "restart-recreates"
	RecreateRestarts           Fault = "recreate-restarts"
	DiskLostAtRestart          Fault = "disk-lost-at-restart"
	DiskKeptAtRecreation       Fault = "disk-kept-at-recreation"
	ControlDenied              Fault = "control-denied"
	ControlStopped             Fault = "control-stopped"
	ControlMissing             Fault = "control-missing"
	ExternalResets             Fault = "external-resets"
	ExternalOtherPeer          Fault = "external-other-peer"
	ExternalAddsFile           Fault = "external-adds-file"
	LoadFails                  Fault = "load-fails"
	CreateFails                Fault = "create-fails"
	ImageByteFlipped           Fault = "image-byte-flipped"
	ImageHardLinkBroken        Fault = "image-hard-link-broken"
	ImageSetuidLost            Fault = "image-setuid-lost"
	ImageOwnerLost             Fault = "image-owner-lost"
	ImageSymlinkFollowed       Fault = "image-symlink-followed"
	ImageDanglingLost          Fault = "image-dangling-lost"
	ImageEmptyFolderLost       Fault = "image-empty-folder-lost"
	ImageLongNameCut           Fault = "image-long-name-cut"
	ImageWhiteoutIgnored       Fault = "image-whiteout-ignored"
	ImageOpaqueIgnored         Fault = "image-opaque-ignored"
	ImageNonceChanged          Fault = "image-nonce-changed"
	ImageReleaseChanged        Fault = "image-release-changed"
	ImageMarkerLost            Fault = "image-marker-lost"
	LoadKeepsTag               Fault = "load-keeps-tag"
	ImageEnvDropped            Fault = "image-env-dropped"
	UserGroupLost              Fault = "user-group-lost"
	ListHangsInASlowLab        Fault = "list-hangs-in-a-slow-lab"
	ProbeForged                Fault = "probe-forged"
)

// The faults of the reference CLI. Catalogue describes each.
const (
	ProviderAddFails        Fault = "provider-add-fails"
	ExternalIgnored         Fault = "external-ignored"
	DenyForgotten           Fault = "deny-forgotten"
	ProviderDeleteFails     Fault = "provider-delete-fails"
	ListPrintsText          Fault = "list-prints-text"
	ListOmitsUID            Fault = "list-omits-uid"
	ListFails               Fault = "list-fails"
	ListHangs               Fault = "list-hangs"
	ListOtherUID            Fault = "list-other-uid"
	StatusMissingSucceeds   Fault = "status-missing-succeeds"
	StatusSaysStopped       Fault = "status-says-stopped"
	UpFailsSilently         Fault = "up-fails-silently"
	UpPrintsText            Fault = "up-prints-text"
	UpDoesNothing           Fault = "up-does-nothing"
	UpFails                 Fault = "up-fails"
	StartIgnored            Fault = "start-ignored"
	StartMakesAnew          Fault = "start-makes-anew"
	StopIgnored             Fault = "stop-ignored"
	StopOnlySaid            Fault = "stop-only-said"
	RecreateIgnored         Fault = "recreate-ignored"
	DeleteIgnored           Fault = "delete-ignored"
	DeleteLeavesMachine     Fault = "delete-leaves-machine"
	DeleteAgainFails        Fault = "delete-again-fails"
	HomesShared             Fault = "homes-shared"
	HomesEntered            Fault = "homes-entered"
	SSHExitCodeLost         Fault = "ssh-exit-code-lost"
	SSHOutputsMixed         Fault = "ssh-outputs-mixed"
	SSHStdioNoise           Fault = "ssh-stdio-noise"
	SSHDeadAfterStop        Fault = "ssh-dead-after-stop"
	SSHToDeniedFails        Fault = "ssh-to-denied-fails"
	SSHElsewhere            Fault = "ssh-elsewhere"
	HostnameForged          Fault = "hostname-forged"
	OtherStore              Fault = "other-store"
	OtherStoreBeside        Fault = "other-store-beside"
	DenyRefused             Fault = "deny-refused"
	DenyDropped             Fault = "deny-dropped"
	DenyDroppedAtRecreation Fault = "deny-dropped-at-recreation"
	PolicyHolePort          Fault = "policy-hole-port"
	PolicyHoleAddress       Fault = "policy-hole-address"
	PolicyHoleGroup         Fault = "policy-hole-group"
	PolicyHoleDomain        Fault = "policy-hole-domain"
	PolicyHoleOrder         Fault = "policy-hole-order"
	ImageThroughDocker      Fault = "image-through-docker"
	RegistryNeverRead       Fault = "registry-never-read"
	ImageThroughRegistry    Fault = "image-through-registry"
	WrongImage              Fault = "wrong-image"
	StaleTag                Fault = "stale-tag"
	DockerfileIgnored       Fault = "dockerfile-ignored"
	FeatureDropped          Fault = "feature-dropped"
	FeatureEnvDropped       Fault = "feature-env-dropped"
	UserIgnored             Fault = "user-ignored"
	SSHEnvDropped           Fault = "ssh-env-dropped"
	SSHCommandEnvDropped    Fault = "ssh-command-env-dropped"
	SSHCommandRoot          Fault = "ssh-command-root"

	AgentHere                 Fault = "agent-here"
	AgentNotDownloaded        Fault = "agent-not-downloaded"
	RuntimeDownloadedTwice    Fault = "runtime-downloaded-twice"
	RuntimeDownloadedAgain    Fault = "runtime-downloaded-again"
	RuntimeElsewhere          Fault = "runtime-elsewhere"
	RuntimeCopied             Fault = "runtime-copied"
	RuntimeReplaced           Fault = "runtime-replaced"
	RuntimeModeLost           Fault = "runtime-mode-lost"
	RuntimeFromCache          Fault = "runtime-from-cache"
	RuntimeExecutedUnverified Fault = "runtime-executed-unverified"
	ChecksumUnchecked         Fault = "checksum-unchecked"
	ChecksumUnnamed           Fault = "checksum-unnamed"
	ChecksumIgnored           Fault = "checksum-ignored"
	AgentStateElsewhere       Fault = "agent-state-elsewhere"
	DeleteRunsRuntime         Fault = "delete-runs-runtime"
)

// The faults of the agent in a guest. Catalogue describes each.
const (
	SSHDeadBefore          Fault = "ssh-dead-before"
	SSHDeadDuring          Fault = "ssh-dead-during"
	SSHDeadAfter           Fault = "ssh-dead-after"
	ProbeMissing           Fault = "probe-missing"
	ProbeMissingInDenied   Fault = "probe-missing-in-denied"
	ProbeNotExecutable     Fault = "probe-not-executable"
	ProbeOtherArchitecture Fault = "probe-other-architecture"
	ProbeDeleted           Fault = "probe-deleted"
	ProbeGarbage           Fault = "probe-garbage"
	ProbeFails             Fault = "probe-fails"
	BootIDChanges          Fault = "boot-id-changes"
)

// The faults of the fixtures. Catalogue describes each.
const (
	LinkFails           Fault = "link-fails"
	EndpointFails       Fault = "endpoint-fails"
	EndpointWrongBody   Fault = "endpoint-wrong-body"
	EndpointDeadBefore  Fault = "endpoint-dead-before"
	EndpointDeadSoon    Fault = "endpoint-dead-soon"
	EndpointDeadBetween Fault = "endpoint-dead-between"
	EndpointDeadAfter   Fault = "endpoint-dead-after"
	EndpointDeadAtEnd   Fault = "endpoint-dead-at-end"
	EndpointForgets     Fault = "endpoint-forgets"
	EndpointStranger    Fault = "endpoint-stranger"
	WaysFail            Fault = "ways-fail"
	WayDies             Fault = "way-dies"
	RegistryFails       Fault = "registry-fails"
	RegistryRefuses     Fault = "registry-refuses"
	RegistryDies        Fault = "registry-dies"
	ImageRegistryDies   Fault = "image-registry-dies"
	DockerFails         Fault = "docker-fails"
	DockerRefuses       Fault = "docker-refuses"
	DockerDies          Fault = "docker-dies"
	DockerHasImage      Fault = "docker-has-image"

	RemoteFails          Fault = "remote-fails"
	RemoteWithoutCA      Fault = "remote-without-ca"
	RemoteWithoutKVM     Fault = "remote-without-kvm"
	RemoteWithoutRoom    Fault = "remote-without-room"
	RemoteCannotDownload Fault = "remote-cannot-download"
	RemoteWithoutImage   Fault = "remote-without-image"
	RemoteDies           Fault = "remote-dies"
	RemoteCacheStays     Fault = "remote-cache-stays"
	ArtifactsFail        Fault = "artifacts-fail"
	ArtifactsDie         Fault = "artifacts-die"
	StrangerAsks         Fault = "stranger-asks"
	RuntimeStaysOnline   Fault = "runtime-stays-online"
	MachineBeside        Fault = "machine-beside"
	MachineLeftBehind    Fault = "machine-left-behind"
	TamperedLeavesNoMark Fault = "tampered-leaves-no-mark"
)

// The faults of the step. Catalogue describes each.
const (
	CaseSkipped  Fault = "case-skipped"
	CaseTwice    Fault = "case-twice"
	CaseOfOldRun Fault = "case-of-old-run"
	CheckSkipped Fault = "check-skipped"
	StepDies     Fault = "step-dies"
)

// The faults of an emulated lab. Catalogue describes each.
const (
	LabFreezes   Fault = "lab-freezes"
	LabHangs     Fault = "lab-hangs"
	LabDies      Fault = "lab-dies"
	LabDiesOnce  Fault = "lab-dies-once"
	LabClockFast Fault = "lab-clock-fast"
	LabClockSlow Fault = "lab-clock-slow"
)

// Honest tells that a fault breaks no promise: it is another way to keep them, which a CLI may
// have, or Parity gets over it. A run with it must pass.
func Honest(f Fault) bool {
	switch f {
	case AgentStateElsewhere, DeleteRunsRuntime, LabFreezes, LabDiesOnce:
		return true
	}
	return false
}

// OfLab tells whether a fault is one of an emulated lab.
func OfLab(f Fault) bool {
	return slices.ContainsFunc(Catalogue(), func(e Entry) bool { return e.Fault == f && e.Part == Lab })
}

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
		{DenyProxy443, StandIn, "Denied connections to port 443 are established, and a proxy answers 403."},
		{DenyOpenPort, StandIn, "Egress is denied, save to port 443 of all public addresses, of which nothing is said."},
		{DenyOpenAddress, StandIn, "Egress is denied, save to addresses of a documentation range, of which nothing is said."},
		{DenyOpenIPv6, StandIn, "Egress is denied, save to IPv6 addresses, of which nothing is said."},
		{DenyOpenPrivate, StandIn, "Egress is denied, save to private addresses, of which nothing is said."},
		{DenyOpenHost, StandIn, "Egress is denied, save to the host's loopback address, of which nothing is said."},
		{DenyOpenMetadata, StandIn, "Egress is denied, save to 169.254.169.254, of which nothing is said."},
		{DenyOpenUDP, StandIn, "Egress is denied, save by UDP, of which nothing is said."},
		{DenyOpenDNS, StandIn, "Egress is denied, and the gateway passes on queries of names, of which nothing is said."},
		{DenyOpenICMP, StandIn, "Egress is denied, save by echo requests, of which nothing is said."},
		{PolicyNotActive, StandIn, "Denied egress is stored, and the running sandbox has the default policy."},
		{PolicyLooser, StandIn, "Denied egress is stored with a rule that allows all public addresses."},
		{PolicyOfUnknownShape, StandIn, "The network policy is reported in a form that nobody knows."},
		{PolicyRuleUnknown, StandIn, "Denied egress is reported with a rule whose action nobody knows."},
		{StatusUnknown, StandIn, "A sandbox that runs has a status that nobody knows."},
		{NoCreationTime, StandIn, "A sandbox is reported without the time of its creation."},
		{RestartNoReboot, StandIn, "A sandbox that was stopped and started has the boot ID that it had before."},
		{RestartRecreates, StandIn, "A stopped sandbox that is started is made anew, with another creation time and an empty disk."},
		{RecreateRestarts, StandIn, "A sandbox that takes the place of a removed one of its name is that one, started again."},
		{DiskLostAtRestart, StandIn, "A sandbox that was stopped and started begins with the image's disk."},
		{DiskKeptAtRecreation, StandIn, "A sandbox that takes the place of a removed one of its name has its disk."},
		{ControlDenied, StandIn, "Egress is refused to sandboxes of the default policy too."},
		{ControlStopped, StandIn, "Every other sandbox is stopped when one is created whose egress is denied."},
		{ControlMissing, StandIn, "Every other sandbox is removed when one is created whose egress is denied."},
		{ExternalResets, StandIn, "Denied connections of a sandbox that an external runtime made are reset once established, not refused."},
		{ExternalOtherPeer, StandIn, "Connections of a sandbox that an external runtime made come from another address."},
		{ExternalAddsFile, StandIn, "A sandbox that an external runtime made has a file that neither its image nor the built-in provider's has."},
		{LoadFails, StandIn, "An image cannot be loaded."},
		{CreateFails, StandIn, "No sandbox can be created."},
		{ImageByteFlipped, StandIn, "One byte in the middle of an image's large file is another one."},
		{ImageHardLinkBroken, StandIn, "The names of a hard-linked file of an image become files of their own."},
		{ImageSetuidLost, StandIn, "The files of an image lose their setuid bit."},
		{ImageOwnerLost, StandIn, "The files of an image become root's."},
		{ImageSymlinkFollowed, StandIn, "A symbolic link of an image becomes the file that it leads to."},
		{ImageDanglingLost, StandIn, "A symbolic link of an image that leads nowhere is left out."},
		{ImageEmptyFolderLost, StandIn, "The empty folders of an image are left out."},
		{ImageLongNameCut, StandIn, "Names of an image's files that have more than 100 bytes are cut off there."},
		{ImageWhiteoutIgnored, StandIn, "What a later layer of an image removes stays."},
		{ImageOpaqueIgnored, StandIn, "What a later layer of an image removes from a folder by making it opaque stays."},
		{ImageNonceChanged, StandIn, "The nonce of an image is another one."},
		{ImageReleaseChanged, StandIn, "The os-release of an image is another system's."},
		{ImageMarkerLost, StandIn, "The file that marks an image is left out."},
		{LoadKeepsTag, StandIn, "A reference that an image of the store has stays with it when another one is loaded."},
		{ImageEnvDropped, StandIn, "An image's environment is dropped, save for PATH."},
		{UserGroupLost, StandIn, "Commands run as the image's user, and in the group root."},
		{ListHangsInASlowLab, StandIn, "It takes seconds to create a sandbox, and the list of workspaces never ends once there is one."},
		{ProbeForged, StandIn, "Denied egress is not enforced, and the image's probe program is another one, which says that it was refused."},

		{ProviderAddFails, Reference, "A provider cannot be added."},
		{ExternalIgnored, Reference, "An external provider is added, and its workspaces are run by the built-in one."},
		{DenyForgotten, Reference, "An up that does not name the option that denies egress makes the workspace anew without it."},
		{ProviderDeleteFails, Reference, "A provider cannot be deleted."},
		{ListPrintsText, Reference, "The list of workspaces is text where JSON is due."},
		{ListOmitsUID, Reference, "The list of workspaces has no uids."},
		{ListFails, Reference, "The list of workspaces exits with code 1 once there is one."},
		{ListHangs, Reference, "The list of workspaces never ends once there is one."},
		{ListOtherUID, Reference, "The list shows another uid than the one that the machine is named after."},
		{StatusMissingSucceeds, Reference, "The status of a workspace that does not exist comes with exit code 0."},
		{StatusSaysStopped, Reference, "The status of every running workspace is Stopped."},
		{UpFailsSilently, Reference, "An up that fails prints no JSON that says why."},
		{UpPrintsText, Reference, "An up that succeeds prints text where JSON is due."},
		{UpDoesNothing, Reference, "An up says success and has done nothing."},
		{UpFails, Reference, "Every up fails."},
		{StartIgnored, Reference, "An up of a stopped workspace says success and does not start it."},
		{StartMakesAnew, Reference, "An up of a stopped workspace removes its machine and makes it anew."},
		{StopIgnored, Reference, "A stop says success and stops nothing."},
		{StopOnlySaid, Reference, "A stop does nothing, and the status says Stopped until the next up."},
		{RecreateIgnored, Reference, "An up --recreate says success and does nothing."},
		{DeleteIgnored, Reference, "A delete says success and deletes nothing."},
		{DeleteLeavesMachine, Reference, "A delete forgets the workspace and leaves its machine."},
		{DeleteAgainFails, Reference, "A delete --ignore-not-found of a workspace that does not exist fails."},
		{HomesShared, Reference, "The workspaces of one home are seen in every other."},
		{HomesEntered, Reference, "The ssh of another home enters the workspace, which it does not list."},
		{SSHExitCodeLost, Reference, "A command that fails in a workspace makes ssh --command exit with code 0."},
		{SSHOutputsMixed, Reference, "What a command writes to standard error comes out of ssh --command's standard output."},
		{SSHStdioNoise, Reference, "A greeting comes before the SSH banner of ssh --stdio."},
		{SSHDeadAfterStop, Reference, "A workspace that was stopped once cannot be entered any more."},
		{SSHToDeniedFails, Reference, "SSH enters no workspace whose egress is denied."},
		{SSHElsewhere, Reference, "SSH enters another workspace, made alike, and not the one that was named."},
		{HostnameForged, Reference, "SSH enters another workspace, made alike, whose host name is that of the one that was named."},
		{OtherStore, Reference, "SSH enters a workspace of the same name in another store of MicroSandbox."},
		{OtherStoreBeside, Reference, "A workspace of the same name runs in another store of MicroSandbox beside the one that was named."},
		{DenyRefused, Reference, "An up with the option that denies egress fails."},
		{DenyDropped, Reference, "The option that denies egress is accepted and dropped."},
		{DenyDroppedAtRecreation, Reference, "The option that denies egress is dropped when the workspace is recreated."},
		{PolicyHolePort, Reference, "Egress is denied, save to one port of all public addresses."},
		{PolicyHoleAddress, Reference, "Egress is denied, save to addresses of a documentation range."},
		{PolicyHoleGroup, Reference, "Egress is denied, save to all private addresses."},
		{PolicyHoleDomain, Reference, "Egress is denied, save to what a name stands for."},
		{PolicyHoleOrder, Reference, "Egress is denied, and a rule that denies all comes after one that allows: the first holds."},
		{ImageThroughDocker, Reference, "An image of a registry is pulled into Docker, and taken from there."},
		{RegistryNeverRead, Reference, "An image of a registry is made up on the spot, and the registry is not asked."},
		{ImageThroughRegistry, Reference, "An image that only Docker has, or the base of what is built, is pushed to the registry that its reference names."},
		{WrongImage, Reference, "The image is brought from where it is, and the workspace is made from another one."},
		{StaleTag, Reference, "A recreated workspace has the image that its reference stood for when it was made first."},
		{DockerfileIgnored, Reference, "A Dockerfile is not built: what its first FROM names is taken as it is."},
		{FeatureDropped, Reference, "The Features of a devcontainer.json are not installed."},
		{FeatureEnvDropped, Reference, "The containerEnv of a Feature is dropped."},
		{UserIgnored, Reference, "A workspace is root's, whatever user its image names."},
		{SSHEnvDropped, Reference, "Commands over SSH get none of the environment but PATH."},
		{SSHCommandEnvDropped, Reference, "A command of `ssh --command` gets none of the environment but PATH. One in an SSH session gets it."},
		{SSHCommandRoot, Reference, "A command of `ssh --command` runs as root. One in an SSH session runs as the image's user."},

		{AgentHere, Reference, "The agent of a remote machine is put on this one, and runs here."},
		{AgentNotDownloaded, Reference, "The agent is sent to a remote machine, and its URL is not asked."},
		{RuntimeDownloadedTwice, Reference, "A runtime is asked for on a remote machine once more than it needs to be."},
		{RuntimeElsewhere, Reference, "A runtime is put outside of the home on the remote machine."},
		{RuntimeCopied, Reference, "A copy of the workspace's runtime is run on the remote machine, and not that one."},
		{RuntimeDownloadedAgain, Reference, "A runtime that a remote machine has is asked for once more when its workspace is started."},
		{RuntimeReplaced, Reference, "A runtime that a remote machine has is written anew when its workspace is started."},
		{RuntimeModeLost, Reference, "A runtime that a remote machine has gets another mode when its workspace is started."},
		{RuntimeFromCache, Reference, "An up on a remote machine runs the runtime in the download cache, and not the workspace's."},
		{RuntimeExecutedUnverified, Reference, "A runtime with another checksum is run on a remote machine before it is refused."},
		{ChecksumUnchecked, Reference, "A runtime with another checksum is taken on a remote machine."},
		{ChecksumUnnamed, Reference, "A runtime with another checksum is refused on a remote machine, and the error does not say why."},
		{ChecksumIgnored, Reference, "An up whose runtime has another checksum says that it succeeded, though there is no machine."},
		{AgentStateElsewhere, Reference, "On a remote machine, workspaces and downloads are in other folders of the home, and a second copy of the runtime, by the same name, is kept."},
		{DeleteRunsRuntime, Reference, "A delete of a workspace on a remote machine runs its runtime once more, once that was verified."},

		{SSHDeadBefore, Agent, "The SSH session dies before the request that must be denied."},
		{SSHDeadDuring, Agent, "The SSH session dies during the request of the workspace under test."},
		{SSHDeadAfter, Agent, "The SSH session dies after the request of the workspace under test."},
		{ProbeMissing, Agent, "The probe program is gone as soon as it was copied."},
		{ProbeMissingInDenied, Agent, "The probe program is gone as soon as it was copied, where egress is denied."},
		{ProbeNotExecutable, Agent, "The probe program may not be executed."},
		{ProbeOtherArchitecture, Agent, "The probe program is for another architecture."},
		{ProbeDeleted, Agent, "The probe program is deleted once it was seen to run."},
		{ProbeGarbage, Agent, "The probe program prints garbage in place of what became of its request."},
		{ProbeFails, Agent, "The probe program exits with code 1 in place of saying what became of its request."},
		{BootIDChanges, Agent, "The guest is another boot at the end of a phase than at its start."},

		{LinkFails, Fixture, "The link cannot be made."},
		{EndpointFails, Fixture, "The endpoint cannot listen."},
		{EndpointWrongBody, Fixture, "The endpoint answers the host with a body that is not its own."},
		{EndpointDeadBefore, Fixture, "The endpoint dies before the window of a denied request."},
		{EndpointDeadSoon, Fixture, "The endpoint dies in the window of a denied request, after its own check."},
		{EndpointDeadBetween, Fixture, "The endpoint dies just before the denied request: what refuses then is nobody."},
		{EndpointDeadAfter, Fixture, "The endpoint dies after the denied request, once the control workspace was answered."},
		{EndpointDeadAtEnd, Fixture, "The endpoint dies after the denied request, once the host was answered."},
		{EndpointForgets, Fixture, "The endpoint keeps no receipt of what it answered."},
		{EndpointStranger, Fixture, "A stranger's receipt turns up at the endpoint."},
		{WaysFail, Fixture, "The listeners at the ends of the other ways out cannot be started."},
		{WayDies, Fixture, "The listener at the end of one other way out is dead."},

		{RegistryFails, Fixture, "The registry cannot listen."},
		{RegistryRefuses, Fixture, "The registry takes no image."},
		{RegistryDies, Fixture, "The registry is gone once it has the image."},
		{ImageRegistryDies, Fixture, "The registry of the plain image is gone once it has the image, of a CLI that reads the image's config there before each up."},
		{DockerFails, Fixture, "The Docker Engine cannot be started."},
		{DockerRefuses, Fixture, "The Docker Engine takes no image."},
		{DockerDies, Fixture, "The Docker Engine is gone once the image is published."},
		{DockerHasImage, Fixture, "An image that is pushed to the registry turns up in the Docker Engine too."},
		{RemoteFails, Fixture, "The remote machine cannot be started."},
		{RemoteWithoutCA, Fixture, "The remote machine's CA bundle lacks the CA of the server that it is tried with."},
		{RemoteWithoutKVM, Fixture, "The remote machine has no KVM."},
		{RemoteWithoutRoom, Fixture, "The remote machine's disk is full."},
		{RemoteCannotDownload, Fixture, "The remote machine can download nothing."},
		{RemoteWithoutImage, Fixture, "The registry of the plain image has lost it when the remote machine asks."},
		{RemoteDies, Fixture, "The remote machine is gone once the source of the runtime is."},
		{RemoteCacheStays, Fixture, "The download cache on the remote machine cannot be removed."},
		{ArtifactsFail, Fixture, "The servers of the agent and the runtime cannot listen."},
		{ArtifactsDie, Fixture, "The runtime's server is gone before a workspace is made."},
		{StrangerAsks, Fixture, "Somebody else on the remote machine asks the runtime's server, and does not know what for."},
		{RuntimeStaysOnline, Fixture, "The runtime's server goes on serving when it is to be offline."},
		{MachineBeside, Fixture, "A sandbox runs on this side beside the remote machine's."},
		{MachineLeftBehind, Fixture, "A sandbox is on the remote machine after an up that failed."},
		{TamperedLeavesNoMark, Fixture, "The changed runtime leaves no mark when it is run."},

		{CaseSkipped, Step, "The last case is skipped without a word."},
		{CaseTwice, Step, "Each case is reported twice."},
		{CaseOfOldRun, Step, "Each case's result is that of an older run."},
		{CheckSkipped, Step, "The last check of each case is skipped without a word."},
		{StepDies, Step, "The step exits with code 0 in the middle of a case."},

		{LabFreezes, Lab, "The machine stands still for 15 seconds in the middle of a case."},
		{LabHangs, Lab, "The machine stands still for ever."},
		{LabDies, Lab, "The machine dies in the middle of a case."},
		{LabDiesOnce, Lab, "The machine dies in the middle of a case. The one in its place does not."},
		{LabClockFast, Lab, "The machine's clock runs three times too fast."},
		{LabClockSlow, Lab, "The machine's clock runs three times too slowly."},
	}
}
