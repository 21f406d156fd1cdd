package selftest

import (
	"fmt"
	"slices"
	"strings"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/report"
	"dagger/parity/internal/step"
)

// Trip is a check that a fault breaks, and how. Without a check it is a problem of the case, and without a case too one of the run.
type Trip struct {
	Case    string // an id
	Phase   string
	Check   string
	Verdict report.Verdict
}

// String names the trip in a sentence.
func (t Trip) String() string {
	what := "the run itself"
	switch {
	case t.Check != "":
		what = t.Case + ": " + report.Check{Phase: t.Phase, Name: t.Check}.FullName()
	case t.Case != "":
		what = t.Case + ": the case itself"
	}
	return what + ": " + string(t.Verdict)
}

// Row is one run of the self-test: a fault, the cases that run with it, and exactly what it must break.
type Row struct {
	Fault    fault.Fault // empty: none
	Cases    []string    // ids
	Patience float64     // see cases.Env; below 1 where a fault is something that takes for ever
	Trips    []Trip

	External    []Trip // what it breaks with the external provider, where that is not the same
	BuiltinOnly bool   // it is not run with the external provider too
	Real        bool   // it is one of the few that run on real microVMs too
}

// Name names the row by its fault, and where it has several by their scenario.
func (r Row) Name() string {
	if r.Fault == "" {
		return "none"
	}
	scenario, rest, _ := strings.Cut(r.Cases[0], "/")
	if scenario == "contract" {
		provider, _, _ := strings.Cut(rest, "/")
		scenario += "-" + provider
	}
	return string(r.Fault) + "/" + scenario
}

// The cases.
const (
	cli    = "contract/builtin/cli"
	public = "egress/builtin/public"
	deny   = "egress/builtin/deny"

	fromRegistry = "image-parity/builtin/" + catalogue.ImageRegistry
	fromDocker   = "image-parity/builtin/" + catalogue.ImageDocker
	withFeature  = "image-parity/builtin/" + catalogue.ImageFeature

	delivery = "remote-agent/external/delivery"
)

const (
	created   = catalogue.Created
	restarted = catalogue.Restarted
	recreated = catalogue.Recreated
	tampered  = catalogue.Tampered
)

// breaks is a row of one fault.
func breaks(f fault.Fault, trips ...Trip) Row {
	row := Row{Fault: f, Trips: trips, Patience: 1}
	for _, t := range trips {
		if !slices.Contains(row.Cases, t.Case) {
			row.Cases = append(row.Cases, t.Case)
		}
	}
	return row
}

// allowed is a row of a fault that breaks no promise, with the cases that pass all the same.
func allowed(f fault.Fault, ids ...string) Row { return Row{Fault: f, Cases: ids, Patience: 1} }

// besides is a row in which further cases run, and pass: they do not stand on what it breaks.
func besides(r Row, ids ...string) Row {
	r.Cases = append(r.Cases, ids...)
	return r
}

// hurried is a row whose fault takes for ever.
func hurried(r Row) Row {
	r.Patience = 0.1
	return r
}

// onReal is a row that runs on real microVMs too.
func onReal(r Row) Row {
	r.Real = true
	return r
}

func fails(id, phase, check string) Trip   { return Trip{id, phase, check, report.Fail} }
func unclear(id, phase, check string) Trip { return Trip{id, phase, check, report.Inconclusive} }

// in is the same check broken in both cases of egress.
func inBoth(trip func(id, phase, check string) Trip, phase, check string) []Trip {
	return []Trip{trip(public, phase, check), trip(deny, phase, check)}
}

// inImages is the same check broken in each case of image-parity.
func inImages(trip func(id, phase, check string) Trip, phase, check string) []Trip {
	return []Trip{trip(fromRegistry, phase, check), trip(fromDocker, phase, check), trip(withFeature, phase, check)}
}

// problem is a problem of a case.
func problem(id string) Trip { return Trip{Case: id, Verdict: report.Inconclusive} }

// differs is a row whose fault makes the providers differ in a case that both pass.
func differs(f fault.Fault, name string) Row {
	return Row{
		Fault: f, Patience: 1, Cases: []string{"egress/builtin/" + name, "egress/external/" + name},
		Trips: []Trip{fails(catalogue.Parity+"/egress", "", name)},
	}
}

// unsound is a problem of the run, with the cases that run.
func unsound(f fault.Fault, trips ...Trip) Row {
	return Row{Fault: f, Cases: []string{public, deny}, Patience: 1, Trips: append([]Trip{{Verdict: report.Inconclusive}}, trips...)}
}

// unsoundLab is a row in which each lab fails, and with it the case.
func unsoundLab(f fault.Fault) Row {
	return Row{Fault: f, Cases: []string{cli}, Patience: 1, Trips: []Trip{{Verdict: report.Inconclusive}, problem(cli)}}
}

// Plan is every row: each fault of the catalogue at least once, with both providers.
func Plan() []Row {
	var all []Row
	for _, row := range rows() {
		all = append(all, row.withExternal()...)
	}
	return all
}

// withExternal gives a row of the built-in provider with its like for the external one: the same
// checks of the other cases. There is a row of its own for each contract, and the cases that stand
// on it.
func (r Row) withExternal() []Row {
	like := func(id string) string {
		return strings.Replace(id, "/"+catalogue.Builtin+"/", "/"+catalogue.External+"/", 1)
	}
	other := r
	other.Cases, other.Trips = nil, nil
	for _, id := range r.Cases {
		other.Cases = append(other.Cases, like(id))
	}
	if r.BuiltinOnly || slices.Equal(r.Cases, other.Cases) { // or it is of the external provider already
		return []Row{r}
	}
	trips := r.Trips
	if r.External != nil {
		trips = r.External
	}
	for _, t := range trips {
		t.Case = like(t.Case)
		other.Trips = append(other.Trips, t)
	}
	if slices.Contains(r.Cases, cli) {
		return []Row{r, other}
	}
	r.Cases, r.Trips = append(r.Cases, other.Cases...), append(r.Trips, other.Trips...)
	return []Row{r}
}

// externally is a row that breaks other checks with the external provider: those, named as of the built-in one.
func externally(r Row, trips ...Trip) Row {
	r.External = trips
	return r
}

// alone is a row that says nothing else with the external provider.
func alone(r Row) Row {
	r.BuiltinOnly = true
	return r
}

// rows are the plan's rows for the built-in provider.
func rows() []Row {
	return []Row{
		breaks(fault.DenyIgnored, fails(deny, created, "no-leak")),
		breaks(fault.DenyIgnoredAfterRestart, fails(deny, restarted, "no-leak")),
		breaks(fault.DenyIgnoredAfterRecreation, fails(deny, recreated, "no-leak")),
		hurried(breaks(fault.DenyDrops, fails(deny, created, "deny"))),
		breaks(fault.DenyProxy403, fails(deny, created, "deny")),
		breaks(fault.DenyAcceptClose, fails(deny, created, "deny")),
		breaks(fault.DenyLeaks, fails(deny, created, "no-leak")),
		breaks(fault.DenyProxy443, fails(deny, created, "sweep")),
		breaks(fault.DenyOpenPort, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenAddress, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenIPv6, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenPrivate, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenHost, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenMetadata, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenUDP, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenDNS, fails(deny, created, "no-leak")),
		breaks(fault.DenyOpenICMP, fails(deny, created, "no-leak")),
		breaks(fault.PolicyNotActive, fails(deny, created, "policy")),
		breaks(fault.PolicyLooser, fails(deny, created, "policy")),
		breaks(fault.PolicyRuleUnknown, unclear(deny, created, "policy")),
		breaks(fault.PolicyHolePort, fails(deny, created, "policy")),
		breaks(fault.PolicyHoleAddress, fails(deny, created, "policy")),
		breaks(fault.PolicyHoleGroup, fails(deny, created, "policy")),
		breaks(fault.PolicyHoleDomain, fails(deny, created, "policy")),
		breaks(fault.PolicyHoleOrder, fails(deny, created, "policy")),
		breaks(fault.PolicyOfUnknownShape, unclear(public, created, "policy"), unclear(deny, "", "workspace/control")),
		externally(breaks(fault.StatusUnknown, unclear(public, created, "identity/state"), unclear(deny, "", "workspace/control")),
			fails(public, created, "workspace/up"), unclear(deny, "", "workspace/control")),
		breaks(fault.NoCreationTime, inBoth(unclear, restarted, "identity/created-at")...),
		breaks(fault.NoCreationTime, unclear(cli, "", "workspace up: starts a stopped workspace")),
		breaks(fault.RestartNoReboot, inBoth(fails, restarted, "identity/boot-id")...),
		breaks(fault.RestartRecreates, inBoth(fails, restarted, "identity/created-at")...),
		breaks(fault.RecreateRestarts, inBoth(fails, recreated, "identity/created-at")...),
		// The agent in the guest goes with the disk: the reference CLI brings it into an external machine only once.
		externally(breaks(fault.DiskLostAtRestart, inBoth(fails, restarted, "identity/disk")...), inBoth(unclear, restarted, "ssh")...),
		breaks(fault.DiskKeptAtRecreation, inBoth(fails, recreated, "identity/disk")...),
		breaks(fault.ControlDenied, fails(public, created, "public"), unclear(deny, created, "control-probe-before")),
		breaks(fault.ControlStopped, unclear(deny, created, "control-probe-before")),
		breaks(fault.ControlMissing, unclear(deny, created, "control-probe-before")),
		alone(differs(fault.ExternalResets, "deny")),
		alone(differs(fault.ExternalOtherPeer, "public")),
		alone(Row{
			Fault: fault.ExternalAddsFile, Patience: 1, Cases: []string{
				fromRegistry, fromDocker, withFeature,
				"image-parity/external/" + catalogue.ImageRegistry, "image-parity/external/" + catalogue.ImageDocker, "image-parity/external/" + catalogue.ImageFeature,
			},
			Trips: []Trip{
				fails(catalogue.Parity+"/image-parity", "", catalogue.ImageRegistry), fails(catalogue.Parity+"/image-parity", "", catalogue.ImageDocker),
				fails(catalogue.Parity+"/image-parity", "", catalogue.ImageFeature),
			},
		}),
		breaks(fault.LoadFails, inBoth(unclear, "", "fixture/image")...),
		breaks(fault.RegistryRefuses, inBoth(unclear, "", "fixture/image")...),
		breaks(fault.RegistryRefuses, problem(cli)),
		breaks(fault.ImageRegistryDies, unclear(public, created, "workspace/up"), unclear(deny, "", "workspace/control")),
		breaks(fault.ImageRegistryDies, unclear(cli, "", "workspace up: JSON on success")),
		breaks(fault.CreateFails, unclear(public, created, "workspace/up"), unclear(deny, "", "workspace/control")),

		// The other cases stand on it, and are not run.
		breaks(fault.ProviderAddFails, fails(cli, "", "provider add: adds a provider"), problem(public), problem(deny)),
		breaks(fault.ProviderAddFails, inBoth(fails, "", "provider")...),
		alone(Row{
			Fault: fault.ExternalIgnored, Patience: 1, Cases: []string{"egress/external/public", "egress/external/deny"},
			Trips: []Trip{fails("egress/external/public", created, "runtime"), fails("egress/external/deny", created, "runtime")},
		}),
		breaks(fault.DenyForgotten, fails(deny, restarted, "identity/created-at")),
		breaks(fault.ProviderDeleteFails, fails(cli, "", "provider delete: succeeds, and again with --ignore-not-found"), problem(cli)),
		breaks(fault.ListPrintsText, fails(cli, "", "workspace list: JSON array")),
		breaks(fault.ListPrintsText, fails(public, created, "identity/state"), unclear(deny, "", "workspace/control")),
		breaks(fault.ListOmitsUID, fails(cli, "", "workspace list: shows the workspace")),
		breaks(fault.ListOmitsUID, fails(public, created, "identity/state"), unclear(deny, "", "workspace/control")),
		breaks(fault.ListFails, fails(public, created, "identity/state"), unclear(deny, "", "workspace/control")),
		hurried(breaks(fault.ListHangs, fails(public, created, "identity/state"), unclear(deny, "", "workspace/control"))),
		hurried(breaks(fault.ListHangsInASlowLab, unclear(cli, "", "workspace list: shows the workspace"))),
		hurried(breaks(fault.ListHangsInASlowLab, unclear(public, created, "identity/state"))),
		breaks(fault.ListOtherUID, fails(cli, "", "workspace up: MicroSandbox runs its machine")),
		breaks(fault.ListOtherUID, fails(public, created, "identity/state"), unclear(deny, "", "workspace/control")),
		besides(breaks(fault.StatusMissingSucceeds, fails(cli, "", "workspace status: a missing workspace exits 75")), public),
		breaks(fault.StatusSaysStopped, fails(cli, "", "workspace status: Running after up")),
		breaks(fault.UpFailsSilently, fails(cli, "", "workspace up: error JSON and exit 1 for an image that cannot be found")),
		breaks(fault.UpPrintsText, fails(cli, "", "workspace up: JSON on success")),
		breaks(fault.UpDoesNothing, fails(cli, "", "workspace up: error JSON and exit 1 for an image that cannot be found"),
			fails(cli, "", "workspace status: Running after up"), fails(cli, "", "workspace list: shows the workspace"),
			fails(cli, "", "workspace ssh: exit code 23 passes through --command"), fails(cli, "", "workspace ssh: stdout and stderr apart"),
			fails(cli, "", "workspace ssh: --stdio is clean (an SSH banner is the first byte, 1 MiB binary round trip)")),
		externally(breaks(fault.UpDoesNothing, fails(public, created, "identity/state"), unclear(deny, "", "workspace/control")),
			fails(public, created, "runtime"), unclear(deny, "", "workspace/control")),
		breaks(fault.UpFails, fails(cli, "", "workspace up: JSON on success")),
		breaks(fault.UpFails, fails(public, created, "workspace/up"), unclear(deny, "", "workspace/control")),
		breaks(fault.StartIgnored, fails(cli, "", "workspace up: starts a stopped workspace")),
		breaks(fault.StartIgnored, inBoth(fails, restarted, "identity/state")...),
		breaks(fault.StartMakesAnew, fails(cli, "", "workspace up: starts a stopped workspace")),
		breaks(fault.StartMakesAnew, inBoth(fails, restarted, "identity/created-at")...),
		onReal(breaks(fault.StopIgnored, fails(cli, "", "workspace stop: the state is Stopped"))),
		breaks(fault.StopIgnored, inBoth(fails, restarted, "workspace/stop")...),
		breaks(fault.StopOnlySaid, fails(cli, "", "workspace stop: MicroSandbox has stopped its machine")),
		breaks(fault.StopOnlySaid, inBoth(fails, restarted, "workspace/stop")...),
		breaks(fault.RecreateIgnored, inBoth(fails, recreated, "identity/created-at")...),
		breaks(fault.DeleteIgnored, fails(cli, "", "workspace delete: removes it"), problem(cli)),
		breaks(fault.DeleteIgnored, problem(public), problem(deny)),
		breaks(fault.DeleteLeavesMachine, fails(cli, "", "workspace delete: MicroSandbox has no machine of it"), problem(cli)),
		breaks(fault.DeleteAgainFails, fails(cli, "", "workspace delete: again with --ignore-not-found succeeds"), problem(cli)),
		breaks(fault.HomesShared, fails(cli, "", "homes are apart: another home does not list it"),
			fails(cli, "", "homes are apart: another home does not enter it")),
		breaks(fault.HomesEntered, fails(cli, "", "homes are apart: another home does not enter it")),
		besides(breaks(fault.SSHExitCodeLost, fails(cli, "", "workspace ssh: exit code 23 passes through --command")), public, deny),
		breaks(fault.SSHOutputsMixed, fails(cli, "", "workspace ssh: stdout and stderr apart")),
		breaks(fault.SSHStdioNoise, fails(cli, "", "workspace ssh: --stdio is clean (an SSH banner is the first byte, 1 MiB binary round trip)")),
		breaks(fault.SSHDeadAfterStop, fails(cli, "", "workspace ssh: enters a workspace that was stopped and started")),
		breaks(fault.SSHStdioNoise, unclear(public, created, "ssh"), unclear(deny, "", "workspace/control")),
		breaks(fault.SSHElsewhere, fails(public, created, "identity/same-boot"), unclear(deny, "", "workspace/control")),
		breaks(fault.HostnameForged, fails(public, created, "identity/same-boot"), unclear(deny, "", "workspace/control")),
		breaks(fault.OtherStore, fails(public, created, "identity/same-boot"), unclear(deny, "", "workspace/control")),
		breaks(fault.OtherStoreBeside, inBoth(fails, created, "identity/same-boot")...),
		breaks(fault.SSHToDeniedFails, unclear(deny, created, "ssh")),
		breaks(fault.DenyRefused, fails(deny, created, "workspace/up")),
		onReal(breaks(fault.DenyDropped, fails(deny, created, "policy"))),
		breaks(fault.DenyDroppedAtRecreation, fails(deny, recreated, "policy")),

		breaks(fault.SSHDeadBefore, unclear(deny, created, "ssh-before")),
		breaks(fault.SSHDeadDuring, unclear(public, created, "public"), unclear(deny, created, "ssh-after")),
		breaks(fault.SSHDeadAfter, unclear(public, created, "sweep"), unclear(deny, created, "ssh-after")),
		breaks(fault.ProbeMissing, unclear(public, created, "probe"), unclear(deny, "", "workspace/control")),
		breaks(fault.ProbeMissingInDenied, unclear(deny, created, "probe")),
		breaks(fault.ProbeNotExecutable, unclear(public, created, "probe"), unclear(deny, "", "workspace/control")),
		breaks(fault.ProbeOtherArchitecture, unclear(public, created, "probe"), unclear(deny, "", "workspace/control")),
		breaks(fault.ProbeDeleted, unclear(deny, created, "probe-runs")),
		onReal(breaks(fault.ProbeGarbage, unclear(public, created, "public"), unclear(deny, created, "deny"))),
		breaks(fault.ProbeFails, unclear(public, created, "public"), unclear(deny, created, "deny")),
		besides(breaks(fault.ProbeForged, fails(deny, created, "no-leak")), public),
		breaks(fault.BootIDChanges, inBoth(fails, created, "identity/same-boot")...),

		breaks(fault.LinkFails, problem(cli)),
		breaks(fault.LinkFails, inBoth(unclear, "", "fixture/link")...),
		breaks(fault.EndpointFails, inBoth(unclear, "", "fixture/endpoint")...),
		breaks(fault.WaysFail, inBoth(unclear, "", "fixture/ways")...),
		breaks(fault.WayDies, unclear(public, created, "host-probe"), unclear(deny, created, "host-probe-before")),
		breaks(fault.EndpointWrongBody, unclear(public, created, "host-probe"), unclear(deny, created, "host-probe-before")),
		breaks(fault.EndpointDeadBefore, unclear(deny, created, "endpoint-before")),
		breaks(fault.EndpointDeadSoon, unclear(deny, created, "host-probe-before")),
		onReal(breaks(fault.EndpointDeadBetween, unclear(deny, created, "control-probe-after"))),
		breaks(fault.EndpointDeadAfter, unclear(deny, created, "host-probe-after")),
		breaks(fault.EndpointDeadAtEnd, unclear(deny, created, "endpoint-after")),
		breaks(fault.EndpointForgets, unclear(public, created, "public"), unclear(deny, "", "receipts")),
		breaks(fault.EndpointStranger, unclear(public, "", "receipts"), unclear(deny, created, "no-leak")),

		breaks(fault.RegistryFails, inImages(unclear, "", "fixture/registry")...),
		breaks(fault.DockerFails, inImages(unclear, "", "fixture/docker")...),
		breaks(fault.RegistryRefuses, unclear(fromRegistry, "", "fixture/image")),
		breaks(fault.DockerRefuses, unclear(fromDocker, "", "fixture/image"), unclear(withFeature, "", "fixture/image")),
		breaks(fault.RegistryDies, unclear(fromRegistry, created, "workspace/up")),
		breaks(fault.DockerDies, unclear(fromDocker, created, "workspace/up"), unclear(withFeature, created, "workspace/up")),
		breaks(fault.DockerHasImage, unclear(fromRegistry, "", "docker/absent-before")),
		breaks(fault.RegistryNeverRead, fails(fromRegistry, created, "registry/read")),
		breaks(fault.ImageThroughDocker, fails(fromRegistry, created, "docker/absent-after")),
		breaks(fault.ImageThroughRegistry, fails(fromDocker, created, "registry/unread"), fails(withFeature, created, "registry/unread")),
		breaks(fault.WrongImage, fails(fromDocker, created, "nonce")),
		breaks(fault.ImageNonceChanged, inImages(fails, created, "nonce")...),
		breaks(fault.ImageReleaseChanged, fails(fromRegistry, created, "os-release")),
		breaks(fault.ImageMarkerLost, fails(fromDocker, created, "marker")),
		breaks(fault.LoadKeepsTag, inImages(fails, recreated, "fresh")...),
		breaks(fault.StaleTag, fails(fromRegistry, recreated, "registry/read"), fails(fromDocker, recreated, "fresh")),
		breaks(fault.ImageEnvDropped, fails(fromRegistry, created, "environment"), fails(fromDocker, created, "environment"),
			fails(withFeature, created, "dockerfile/environment")),
		breaks(fault.SSHEnvDropped, fails(fromDocker, created, "environment")),
		breaks(fault.SSHCommandEnvDropped, fails(fromDocker, created, "ssh/command")),
		breaks(fault.SSHCommandRoot, fails(fromRegistry, created, "ssh/command")),
		breaks(fault.DockerfileIgnored, fails(withFeature, created, "dockerfile/file")),
		breaks(fault.FeatureDropped, fails(withFeature, created, "feature/file")),
		breaks(fault.FeatureEnvDropped, fails(withFeature, created, "feature/environment")),
		// What the Feature is told of the user goes wrong first.
		breaks(fault.UserIgnored, fails(fromRegistry, created, "user"), fails(fromDocker, created, "user"), fails(withFeature, created, "feature/file")),
		breaks(fault.UserGroupLost, fails(fromRegistry, created, "user")),
		breaks(fault.ImageByteFlipped, inImages(fails, created, "tree")...),
		breaks(fault.ImageHardLinkBroken, fails(fromDocker, created, "tree")),
		breaks(fault.ImageSetuidLost, fails(fromDocker, created, "tree")),
		breaks(fault.ImageOwnerLost, fails(fromDocker, created, "tree")),
		breaks(fault.ImageSymlinkFollowed, fails(fromDocker, created, "tree")),
		breaks(fault.ImageDanglingLost, fails(fromDocker, created, "tree")),
		breaks(fault.ImageEmptyFolderLost, fails(fromDocker, created, "tree")),
		breaks(fault.ImageLongNameCut, fails(fromDocker, created, "tree")),
		breaks(fault.ImageWhiteoutIgnored, fails(fromRegistry, created, "tree")),
		breaks(fault.ImageOpaqueIgnored, fails(fromRegistry, created, "tree")),

		breaks(fault.DockerFails, unclear(delivery, "", "fixture/docker")),
		breaks(fault.RemoteFails, unclear(delivery, "", "fixture/remote")),
		breaks(fault.ArtifactsFail, unclear(delivery, "", "fixture/artifacts")),
		breaks(fault.RemoteWithoutCA, unclear(delivery, "", "remote/tls")),
		breaks(fault.RemoteWithoutKVM, unclear(delivery, "", "remote/kvm")),
		breaks(fault.RemoteWithoutRoom, unclear(delivery, "", "remote/disk")),
		breaks(fault.RemoteCannotDownload, unclear(delivery, "", "remote/download")),
		breaks(fault.LoadFails, unclear(delivery, "", "fixture/image")),
		breaks(fault.RegistryRefuses, unclear(delivery, "", "fixture/image")),
		breaks(fault.RemoteWithoutImage, unclear(delivery, "", "remote/image")),
		breaks(fault.ImageRegistryDies, unclear(delivery, created, "workspace/up")),
		breaks(fault.ArtifactsDie, unclear(delivery, created, "workspace/up")),
		breaks(fault.StrangerAsks, unclear(delivery, created, "runtime/once")),
		breaks(fault.AgentHere, fails(delivery, created, "identity/state")),
		breaks(fault.AgentNotDownloaded, fails(delivery, created, "agent/delivered")),
		breaks(fault.RuntimeElsewhere, fails(delivery, created, "binary/whole"), problem(delivery)), // nor does delete find it
		allowed(fault.AgentStateElsewhere, delivery),
		allowed(fault.DeleteRunsRuntime, delivery),
		breaks(fault.MachineBeside, fails(delivery, created, "place")),
		breaks(fault.RuntimeCopied, unclear(delivery, created, "runtime/runs")),
		breaks(fault.RemoteCacheStays, unclear(delivery, restarted, "cache/removed")),
		breaks(fault.RuntimeStaysOnline, unclear(delivery, restarted, "runtime/offline")),
		breaks(fault.RemoteDies, unclear(delivery, restarted, "workspace/stop"), problem(delivery)),
		breaks(fault.RuntimeDownloadedTwice, fails(delivery, created, "runtime/once")),
		breaks(fault.RuntimeDownloadedAgain, fails(delivery, restarted, "runtime/unasked")),
		breaks(fault.RuntimeReplaced, fails(delivery, restarted, "binary/same")),
		breaks(fault.RuntimeModeLost, fails(delivery, restarted, "binary/same")),
		breaks(fault.RuntimeFromCache, fails(delivery, restarted, "workspace/up")),
		breaks(fault.TamperedLeavesNoMark, unclear(delivery, tampered, "mark")),
		breaks(fault.ChecksumUnchecked, fails(delivery, tampered, "up/checksum")),
		breaks(fault.ChecksumIgnored, fails(delivery, tampered, "up/refused")),
		breaks(fault.ChecksumUnnamed, fails(delivery, tampered, "up/checksum")),
		breaks(fault.RuntimeExecutedUnverified, fails(delivery, tampered, "unexecuted")),
		breaks(fault.MachineLeftBehind, fails(delivery, tampered, "no-machine")),

		alone(breaks(fault.CaseSkipped, problem(deny))),
		alone(unsound(fault.CaseTwice)),
		alone(unsound(fault.CaseOfOldRun)),
		alone(unsound(fault.CheckSkipped)),
		alone(allowed(fault.LabFreezes, cli)),
		alone(allowed(fault.LabDiesOnce, cli)),
		alone(unsoundLab(fault.LabHangs)),
		alone(unsoundLab(fault.LabDies)),
		alone(unsoundLab(fault.LabClockFast)),
		alone(unsoundLab(fault.LabClockSlow)),
		alone(breaks(fault.StepDies, unclear(public, created, "workspace/up"), problem(public), problem(deny))),
	}
}

// gaps says what the plan leaves open: a fault that nothing catches, and a check of the catalogue that no fault trips. A check that a
// case makes in several phases counts once, and one that cases share once for each provider.
func gaps(plan []Row) []string {
	var open []string
	key := func(c catalogue.Case, check catalogue.Check) string {
		if check.Shared {
			return c.Provider + " " + check.Name
		}
		return c.ID() + " " + check.Name
	}
	tripped := map[string]bool{}
	caught := map[fault.Fault]bool{}
	for _, row := range plan {
		caught[row.Fault] = caught[row.Fault] || fault.Honest(row.Fault) // which is to be run with, and to trip nothing
		for _, t := range row.Trips {
			caught[row.Fault] = true
			c, _ := step.Catalogue().ByID(t.Case)
			for _, check := range c.Checks {
				if check.Phase == t.Phase && check.Name == t.Check {
					tripped[key(c, check)] = true
				}
			}
		}
	}
	for _, e := range fault.Catalogue() {
		if !caught[e.Fault] {
			open = append(open, fmt.Sprintf("nothing catches the fault %s", e.Fault))
		}
	}
	for _, c := range step.Catalogue() {
		for _, check := range c.Checks {
			if key := key(c, check); !tripped[key] {
				tripped[key] = true // say it once
				open = append(open, fmt.Sprintf("no fault trips the check %s of %s", check.Name, c.ID()))
			}
		}
	}
	return open
}
