package pipelines

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/vektah/gqlparser/v2/gqlerror"

	"dagger/parity/internal/dagger"
	"dagger/parity/internal/report"
)

// Where the step finds what it was given, and where it leaves its report.
const (
	givenSubject    = "/opt/subject/subject"
	givenAdapter    = "/opt/subject/adapter.yaml"
	givenAgent      = "/opt/subject/agent"
	givenPath       = "/opt/subject/path"
	givenProvider   = "/opt/provider/provider.yaml"
	givenRuntime    = "/opt/provider/runtime"
	givenKnownHosts = "/opt/remote/known_hosts"
	givenKey        = "/run/secrets/remote_key"
	reportFolder    = "/parity-report"
)

// The exit codes of parity after which there is no report.
const (
	usage        = 2
	inconclusive = 3
)

// Run says what to run.
type Run struct {
	Scenario string // or all
	Provider string // builtin, external or both
	Only     string // a pattern of case ids; empty means all of the scenario

	Remote           string // of the scenario remote-agent, ssh://USER@HOST:PORT; empty means a machine of the case's own
	RemoteKey        *dagger.Secret
	RemoteKnownHosts *dagger.File
}

// Scenario runs a scenario in one privileged step. It gives the report's folder and what is in it. The error is about the run, not about
// the cases: there is no report then.
func (p Pipelines) Scenario(ctx context.Context, run Run) (*dagger.Directory, report.Report, error) {
	machine := p.Machine(p.Debian())
	argv := []string{"parity", run.Scenario, "--provider", run.Provider, "--kvm", p.o.KVM, "--report", reportFolder}
	if run.Only != "" {
		argv = append(argv, "--only", run.Only)
	}
	argv = append(argv, p.msbArgs()...)
	machine, given := p.given(machine, run.Scenario)
	argv = append(argv, given...)
	if run.Remote != "" {
		machine = machine.WithMountedSecret(givenKey, run.RemoteKey).WithFile(givenKnownHosts, run.RemoteKnownHosts)
		argv = append(argv, "--remote", run.Remote, "--remote-key", givenKey, "--remote-known-hosts", givenKnownHosts)
	}
	done, err := privileged(p.inTurn(machine), argv).Sync(ctx)
	if err != nil {
		return nil, report.Report{}, p.explain(err)
	}
	folder := done.Directory(reportFolder)
	data, err := folder.File(report.JSONFile).Contents(ctx)
	if err != nil {
		return nil, report.Report{}, withoutReport(ctx, done, err)
	}
	r, err := report.Parse([]byte(data))
	return folder, r, err
}

// given puts what the user gave into the machine, and returns the options of parity that name it
// there.
func (p Pipelines) given(machine *dagger.Container, scenario string) (*dagger.Container, []string) {
	var argv []string
	for _, one := range []struct {
		flag, path string
		file       *dagger.File
		mode       int
	}{
		{"--subject", givenSubject, p.o.Subject, 0o755},
		{"--adapter", givenAdapter, p.o.Adapter, 0o644},
		{"--agent", givenAgent, p.o.Agent, 0o755},
		{"--external-provider", givenProvider, p.o.ExternalProvider, 0o644},
		{"--external-runtime", givenRuntime, p.o.ExternalRuntime, 0o755},
	} {
		if one.file == nil || one.flag == "--agent" && scenario != "remote-agent" && scenario != "all" {
			continue // no other scenario has an agent
		}
		machine = machine.WithFile(one.path, one.file, dagger.ContainerWithFileOpts{Permissions: one.mode})
		argv = append(argv, one.flag, one.path)
	}
	if p.o.SubjectPath != nil {
		machine = machine.WithDirectory(givenPath, p.o.SubjectPath)
		argv = append(argv, "--subject-path", givenPath)
	}
	if p.o.BuiltinSource != "" {
		argv = append(argv, "--builtin-source", p.o.BuiltinSource)
	}
	if p.o.ExternalBinary != "" {
		argv = append(argv, "--external-binary", p.o.ExternalBinary)
	}
	if p.o.Patience != 0 {
		argv = append(argv, "--patience", fmt.Sprint(p.o.Patience))
	}
	return machine, argv
}

// Lab runs a command in a lab of a Debian container: where KVM works, and where nothing of the engine's machine is touched.
func (p Pipelines) Lab(c *dagger.Container, argv []string) *dagger.Container {
	lab := append([]string{"parity", "lab", "--kvm", p.o.KVM, "--report", reportFolder, "--"}, argv...)
	return privileged(p.Machine(c), lab)
}

// Doctor gives every prerequisite of a run on this engine; the error has them too if one is missing.
func (p Pipelines) Doctor(ctx context.Context) (string, error) {
	argv := append([]string{"parity", "doctor", "--kvm", p.o.KVM}, p.msbArgs()...)
	done, err := privileged(p.Machine(p.Debian()), argv).Sync(ctx)
	if err != nil {
		return "", p.explain(err)
	}
	text, err := done.CombinedOutput(ctx)
	if err != nil {
		return "", err
	}
	code, err := done.ExitCode(ctx)
	if err == nil && code != 0 {
		err = &ExitError{Code: code, Message: text}
	}
	return text, err
}

// msbArgs are the options of parity for the MicroSandbox that was given, if any.
func (p Pipelines) msbArgs() (args []string) {
	if p.o.MicroSandbox != nil {
		args = append(args, "--microsandbox", givenMSB)
	}
	if p.o.MicroSandboxSHA256 != "" {
		args = append(args, "--microsandbox-sha256", p.o.MicroSandboxSHA256)
	}
	return args
}

// List prints the catalogue.
func (p Pipelines) List(ctx context.Context, checks bool) (string, error) {
	argv := []string{"parity", "list"}
	if checks {
		argv = append(argv, "--checks")
	}
	return p.withPrograms(p.Debian()).WithExec(argv).Stdout(ctx)
}

// inTurn has the runs on an engine wait for one another: each takes all processors of its machine, and what is late for want of one looks
// broken. The engine does so for a cache volume that one exec may have at a time.
func (p Pipelines) inTurn(c *dagger.Container) *dagger.Container {
	return c.WithMountedCache("/run/parity-turn", p.dag.CacheVolume("parity-turn"), dagger.ContainerWithMountedCacheOpts{Sharing: dagger.CacheSharingModeLocked})
}

// privileged runs a command with KVM, and with the right to make namespaces and mounts, whatever its exit code. It is run at each call:
// the nonce is in nothing before it, so that all that is before it stays cached.
func privileged(c *dagger.Container, argv []string) *dagger.Container {
	return c.WithEnvVariable("PARITY_NONCE", rand.Text()).WithExec(argv, dagger.ContainerWithExecOpts{
		InsecureRootCapabilities: true,
		Expect:                   dagger.ReturnTypeAny,
	})
}

// withoutReport says why a step left no report, which is in what it printed.
func withoutReport(ctx context.Context, done *dagger.Container, missing error) error {
	code, err := done.ExitCode(ctx)
	if err != nil {
		return err
	}
	printed, err := done.Stderr(ctx)
	if err != nil {
		return err
	}
	if code != usage && code != inconclusive {
		// The engine's error is told as text: wrapped, it would be all that the caller is told.
		return fmt.Errorf("the step exited with code %d and left no report (%v); it printed last:\n%s", code, missing, lastLines(printed))
	}
	return &ExitError{Code: code, Message: lastLines(printed)}
}

// lastLines are the lines in which a program says why it ended.
func lastLines(s string) string {
	const n = 10
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// explain gives an error of the engine with what to do about it, where that is known.
func (p Pipelines) explain(err error) error {
	for _, known := range []struct{ text, next string }{
		{"security.insecure", "this engine allows no privileged exec, which Parity needs for KVM, namespaces and mounts: let it, with " +
			`{"security": {"insecureRootCapabilities": true}} in its engine.json`},
		{"failed to resolve", fmt.Sprintf("a base image could not be pulled; they are %s and %s: name others with --debian and --golang, "+
			"or a mirror of their registry in the engine's engine.json", p.o.Debian, p.o.Golang)},
	} {
		if strings.Contains(err.Error(), known.text) {
			return &ExitError{Code: inconclusive, Message: err.Error() + "\n" + known.next}
		}
	}
	return err
}

// ExitError ends a call with an exit code of parity's and a message.
type ExitError struct {
	Code    int
	Message string
}

func (e *ExitError) Error() string { return e.Message }

// Unwrap gives the error in the form in which Dagger carries the exit code of a command to the one who called: else it is 1.
func (e *ExitError) Unwrap() error {
	return &gqlerror.Error{Message: e.Message, Extensions: map[string]any{
		"_type": "EXEC_ERROR", "cmd": []string{"parity"}, "exitCode": e.Code, "stdout": "", "stderr": "",
	}}
}
