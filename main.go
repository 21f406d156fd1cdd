// Parity proves, with real MicroSandbox microVMs, that a workspace keeps its promises.
//
// It drives a workspace CLI as a user does, asks MicroSandbox itself for the truth, and sends real packets. Each scenario runs in one
// privileged step, in a machine with KVM: the engine's own where it works, else an emulated one.
package main

import (
	"context"
	"errors"
	"strings"

	"dagger/parity/internal/dagger"
	"dagger/parity/internal/report"
	"dagger/parity/pipelines"
)

// Where KVM comes from.
type Kvm string

const (
	// The engine's machine where a microVM is seen to boot there, else an emulated one.
	KvmAuto Kvm = "auto"
	// The engine's machine.
	KvmNative Kvm = "native"
	// A machine that QEMU emulates: about ten times slower, and it works anywhere.
	KvmEmulated Kvm = "emulated"
)

// Whose driver the workspaces are run with.
type Provider string

const (
	// The CLI's own.
	ProviderBuiltin Provider = "builtin"
	// A separate runtime that the CLI fetches.
	ProviderExternal Provider = "external"
	// Both, and their observations are compared.
	ProviderBoth Provider = "both"
)

// Parity proves, with real MicroSandbox microVMs, that a workspace keeps its promises.
type Parity struct {
	Kvm                Kvm               // +private
	Subject            *dagger.File      // +private
	Microsandboxed     *dagger.Directory // +private
	MicrosandboxSha256 string            // +private
	ExternalProvider   *dagger.File      // +private
	ExternalBinary     string            // +private
	ExternalRuntime    *dagger.File      // +private
	Adapter            *dagger.File      // +private
	Agent              *dagger.File      // +private
	SubjectPath        *dagger.Directory // +private
	BuiltinSource      string            // +private
	Patience           float64           // +private
	Debian             string            // +private
	Golang             string            // +private
	Platform           dagger.Platform   // +private
}

func New(
	// Where KVM comes from
	// +default="auto"
	kvm Kvm,
	// A workspace CLI that speaks the contract, or that has an adapter (default: the reference CLI)
	// +optional
	subject *dagger.File,
	// A folder with bin/msb (default: the MicroSandbox that Parity pins)
	// +optional
	microsandboxDir *dagger.Directory,
	// The SHA-256 that its msb must have; without it the report says unpinned
	// +optional
	microsandboxSha256 string,
	// The provider.yaml of the external provider (default: the reference one)
	// +optional
	externalProvider *dagger.File,
	// The key of agent.binaries that is the runtime, where the provider.yaml does not say so
	// +optional
	externalBinary string,
	// The runtime of the external provider, before it is published: the manifest is made around it
	// +optional
	externalRuntime *dagger.File,
	// The adapter of a subject that does not speak the contract, a YAML file
	// +optional
	adapter *dagger.File,
	// The agent that remote-agent serves to the remote machine (default: the subject itself)
	// +optional
	agent *dagger.File,
	// A folder of programs that the subject finds in its PATH
	// +optional
	subjectPath *dagger.Directory,
	// The SOURCE by which the subject adds its own driver (default: microsandbox, or the adapter's)
	// +optional
	builtinSource string,
	// Multiplies the deadlines: more for a slow subject
	// +default=1
	patience float64,
	// The image of the machine: Debian 12 or 13; a digest pins it
	// +default="debian:bookworm-slim"
	debian string,
	// The image that Parity's programs are built in: it has Go
	// +default="golang:1.26-bookworm"
	golang string,
	// The platform of the images; MicroSandbox is pinned for this one
	// +default="linux/amd64"
	platform dagger.Platform,
) *Parity {
	return &Parity{
		Kvm: kvm, Subject: subject, Microsandboxed: microsandboxDir, MicrosandboxSha256: microsandboxSha256,
		ExternalProvider: externalProvider, ExternalBinary: externalBinary, ExternalRuntime: externalRuntime,
		Adapter: adapter, Agent: agent, SubjectPath: subjectPath, BuiltinSource: builtinSource, Patience: patience,
		Debian: debian, Golang: golang, Platform: platform,
	}
}

func (p *Parity) pipelines() pipelines.Pipelines {
	return pipelines.New(dag, pipelines.Options{
		Source: dag.CurrentModule().Source(),
		Debian: p.Debian, Golang: p.Golang, Platform: p.Platform,
		KVM: string(p.Kvm), Subject: p.Subject, ExternalProvider: p.ExternalProvider, ExternalBinary: p.ExternalBinary, ExternalRuntime: p.ExternalRuntime,
		Adapter: p.Adapter, Agent: p.Agent, SubjectPath: p.SubjectPath, BuiltinSource: p.BuiltinSource, Patience: p.Patience,
		MicroSandbox: p.Microsandboxed, MicroSandboxSHA256: p.MicrosandboxSha256,
	})
}

// Prove that public TCP works by default and that denied TCP is refused, also after a restart and a recreation
//
// +check
// +cache="session"
func (p *Parity) Egress(
	ctx context.Context,
	// Whose driver the workspaces are run with
	// +default="both"
	provider Provider,
	// A pattern of case ids, such as egress/*/deny: run only those, after the contract's
	// +optional
	only string,
	// Give the report whatever the verdict: its assert fails then
	// +optional
	keepGoing bool,
) (*Report, error) {
	return p.scenario(ctx, pipelines.Run{Scenario: "egress", Provider: string(provider), Only: only}, keepGoing)
}

// Prove that an image of a registry, one that only Docker has, and a Dockerfile with a Feature arrive in the guest whole
//
// +check
// +cache="session"
func (p *Parity) ImageParity(
	ctx context.Context,
	// Whose driver the workspaces are run with
	// +default="both"
	provider Provider,
	// A pattern of case ids, such as image-parity/*/docker: run only those, after the contract's
	// +optional
	only string,
	// Give the report whatever the verdict: its assert fails then
	// +optional
	keepGoing bool,
) (*Report, error) {
	return p.scenario(ctx, pipelines.Run{Scenario: "image-parity", Provider: string(provider), Only: only}, keepGoing)
}

// Prove that a remote agent downloads a runtime once, verifies it, and reuses it when its source is gone: with an external provider
//
// +check
// +cache="session"
func (p *Parity) RemoteAgent(
	ctx context.Context,
	// A remote machine with KVM, ssh://USER@HOST:PORT, that the engine reaches (default: one of the run's own)
	// +optional
	remote string,
	// The private key to log in with there, without a passphrase
	// +optional
	remoteKey *dagger.Secret,
	// A known_hosts file with its public key: ssh-keyscan prints a line for it
	// +optional
	remoteKnownHosts *dagger.File,
	// Give the report whatever the verdict: its assert fails then
	// +optional
	keepGoing bool,
) (*Report, error) {
	if (remote == "") != (remoteKey == nil) || (remote == "") != (remoteKnownHosts == nil) {
		return nil, errors.New("--remote, --remote-key and --remote-known-hosts go together")
	}
	return p.scenario(ctx, pipelines.Run{
		Scenario: "remote-agent", Provider: string(ProviderExternal),
		Remote: remote, RemoteKey: remoteKey, RemoteKnownHosts: remoteKnownHosts,
	}, keepGoing)
}

// Check that the workspace CLI speaks the command line that Parity drives
//
// +cache="session"
func (p *Parity) Contract(
	ctx context.Context,
	// Whose driver the workspaces are run with
	// +default="both"
	provider Provider,
	// A pattern of case ids, such as egress/*/deny: run only those, after the contract's
	// +optional
	only string,
	// Give the report whatever the verdict: its assert fails then
	// +optional
	keepGoing bool,
) (*Report, error) {
	return p.scenario(ctx, pipelines.Run{Scenario: "contract", Provider: string(provider), Only: only}, keepGoing)
}

// Run every scenario
//
// +cache="session"
func (p *Parity) All(
	ctx context.Context,
	// Whose driver the workspaces are run with
	// +default="both"
	provider Provider,
	// A pattern of case ids, such as egress/*/deny: run only those, after the contract's
	// +optional
	only string,
	// Give the report whatever the verdict: its assert fails then
	// +optional
	keepGoing bool,
) (*Report, error) {
	return p.scenario(ctx, pipelines.Run{Scenario: "all", Provider: string(provider), Only: only}, keepGoing)
}

// scenario runs a scenario. Without keepGoing, a verdict other than pass is an error.
func (p *Parity) scenario(ctx context.Context, run pipelines.Run, keepGoing bool) (*Report, error) {
	folder, r, err := p.pipelines().Scenario(ctx, run)
	if err != nil {
		return nil, err
	}
	result := newReport(folder, r)
	if keepGoing {
		return result, nil
	}
	return result, result.Assert()
}

// Print the catalogue: every case, and what it promises
func (p *Parity) List(
	ctx context.Context,
	// Print each case's checks too
	// +optional
	checks bool,
) (string, error) {
	return p.pipelines().List(ctx, checks)
}

// Print every prerequisite of a run on this engine, and fail if one is missing
//
// +cache="never"
func (p *Parity) Doctor(ctx context.Context) (string, error) {
	return p.pipelines().Doctor(ctx)
}

// A Debian container with msb, the MicroSandbox CLI
func (p *Parity) Microsandbox() *dagger.Container { return p.pipelines().Microsandbox() }

// Run a command of a container where KVM works, and where nothing of the engine's machine is touched
//
// It gives the container after the command, whatever its exit code: its stdout, stderr and exitCode are the command's. What the
// command writes to /parity-report is there too. Nothing else that it writes is sure to be.
//
// +cache="never"
func (p *Parity) Step(
	// A container of Debian 12 or 13, whose user is root
	container *dagger.Container,
	// The command
	args []string,
) *dagger.Container {
	return p.pipelines().Lab(container, args)
}

// An empty OCI registry that counts what is asked of it, on port 5000
//
// GET /parity/requests gives what was asked as JSON, and POST /parity/clear forgets it.
func (p *Parity) Registry(
	// A user that clients must log in as (default: no login)
	// +optional
	user string,
	// The user's password
	// +optional
	password *dagger.Secret,
) (*dagger.Service, error) {
	if (user == "") != (password == nil) {
		return nil, errors.New("--user and --password go together")
	}
	return p.pipelines().Registry(user, password), nil
}

// A server of an agent's executable, on port 8001, and of a runtime, on port 8002, that counts what is asked of each
//
// On each port GET /parity/requests gives what was asked as JSON, and POST /parity/clear forgets it.
func (p *Parity) Artifacts(
	// The agent's executable
	agent *dagger.File,
	// The runtime
	runtime *dagger.File,
) *dagger.Service {
	return p.pipelines().Artifacts(agent, runtime)
}

// A Debian machine with msb, curl and an SSH server on port 22, whose user is root
//
// It is privileged: microVMs boot in it where the engine's machine has KVM. The scenario remote-agent has a machine of its own, in its lab.
func (p *Parity) RemoteMachine(
	// The public keys of those who may log in, one a line
	authorizedKeys *dagger.File,
	// The private key that the machine shows, so that its public half can be pinned: ssh-keygen -t ed25519 -N "" -f host_key
	hostKey *dagger.Secret,
) *dagger.Service {
	return p.pipelines().RemoteMachine(authorizedKeys, hostKey)
}

// What came of a run
type Report struct {
	// pass, fail or inconclusive
	Verdict string
	// The exit code that it stands for: 0, 1 for fail, 3 for inconclusive
	ExitCode int
	// The number of cases
	Cases int
	// The number of cases that passed
	Passed int
	// What the run says, for a reader
	Summary string

	Broken string            // +private
	Folder *dagger.Directory // +private
}

func newReport(folder *dagger.Directory, r report.Report) *Report {
	var summary, broken strings.Builder
	result := &Report{Verdict: string(r.Verdict), ExitCode: r.ExitCode, Cases: len(r.Cases), Folder: folder}
	for _, c := range r.Cases {
		if c.Verdict == report.Pass {
			result.Passed++
		}
	}
	_ = report.Table(&summary, r, report.TableStyle{Width: 120, Verbose: true}) // a strings.Builder gives no error
	_ = report.Broken(&broken, r)
	result.Summary, result.Broken = summary.String(), broken.String()
	return result
}

// The folder with report.json, junit.xml and summary.md
func (r *Report) Report() *dagger.Directory { return r.Folder }

// The report as JUnit XML
func (r *Report) Junit() *dagger.File { return r.Folder.File(report.JUnitFile) }

// Fail unless the verdict is pass, with what broke and the exit code of the run
func (r *Report) Assert() error {
	if r.ExitCode == 0 {
		return nil
	}
	return &pipelines.ExitError{Code: r.ExitCode, Message: r.Broken}
}
