package remoteagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh/knownhosts"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/remote"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/report"
)

// TestMain runs the tests in a lab: an engine makes links and cgroups.
func TestMain(m *testing.M) { labtest.Main(m, "dagger/parity/cmd/...", readsCLI, readsRuntime) }

// A machine that stands for a user's own is visited with `parity remote-agent --remote`, as it is, and by faults of what goes another way there
// than with a machine of the case's own. The self-test has all the others.
func TestARunWithARemoteMachineOfTheUsersOwn(t *testing.T) {
	host := startHost(t)
	before := left(t, host)
	for _, test := range []struct {
		fault   fault.Fault
		verdict report.Verdict
		check   string // that is the first one that did not pass; empty: all pass
	}{
		{"", report.Pass, ""},
		{fault.RemoteWithoutCA, report.Inconclusive, "remote/tls"},
		{fault.AgentHere, report.Fail, "identity/state"},
		{fault.MachineBeside, report.Fail, "place"},
		{fault.RuntimeCopied, report.Inconclusive, "runtime/runs"},
		{fault.AgentStateElsewhere, report.Pass, ""},
		{fault.StrangerAsks, report.Inconclusive, "runtime/once"},
		{fault.RuntimeDownloadedTwice, report.Fail, "runtime/once"},
		{fault.RemoteDies, report.Inconclusive, "workspace/stop"},
	} {
		t.Run(string(test.fault), func(t *testing.T) {
			r := visit(t, host, labtest.Programs(), test.fault)
			i := slices.IndexFunc(r.Cases, func(c report.Case) bool { return strings.HasPrefix(c.ID, Scenario+"/") })
			if i < 0 {
				t.Fatalf("no case of %s in %+v", Scenario, r.Selected)
			}
			c := r.Cases[i]
			broken := ""
			for _, check := range c.Checks {
				if check.Name == "fixture/docker" {
					t.Error("there is a check of a Docker Engine, which nothing needs")
				}
				if broken == "" && check.Verdict != report.Pass {
					broken = check.Name
				}
			}
			if c.Verdict != test.verdict || broken != test.check {
				t.Errorf("expected %s at %q, got %s at %q: %+v", test.verdict, test.check, c.Verdict, broken, c)
			}
			if test.check == "" && (r.Verdict != report.Pass || len(c.Checks) < 30) {
				t.Errorf("expected a run that passes, got %s with %d checks: %v", r.Verdict, len(c.Checks), r.Problems)
			}
			if want := fmt.Sprintf("ssh://root@%s", host.Target().Address); r.Head.Remote != want {
				t.Errorf("expected the report to name the machine %s, got %q", want, r.Head.Remote)
			}
			after := left(t, host)
			for deadline := time.Now().Add(time.Minute); after != before && test.fault == fault.RemoteDies && time.Now().Before(deadline); {
				after = left(t, host) // what watches there cleans up by itself, then
			}
			if after != before {
				t.Errorf("expected to find on the machine\n%s\nand found\n%s", before, after)
			}
		})
	}
}

// A subject that is a script around a CLI is no agent, and the CLI's file can be named as that. A
// runtime needs no manifest.
func TestASubjectWithAnAgentAndARuntimeOfItsOwn(t *testing.T) {
	host := startHost(t)
	parity := filepath.Join(labtest.Programs(), "parity")
	wrapper := filepath.Join(t.TempDir(), "wrapper")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\nexec "+parity+" devsy \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	runtime := filepath.Join(t.TempDir(), "my-runtime")
	if err := os.Symlink(filepath.Join(labtest.Programs(), "parity-runtime"), runtime); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args    []string
		verdict report.Verdict
	}{
		"the script": {[]string{"--subject", wrapper}, report.Inconclusive},
		"the agent":  {[]string{"--subject", wrapper, "--agent", parity, "--external-runtime", runtime}, report.Pass},
	} {
		r := visit(t, host, labtest.Programs(), "", test.args...)
		if r.Verdict != test.verdict {
			t.Errorf("%s: expected %s, got %s: %s", name, test.verdict, r.Verdict, r.Sentence())
		}
		if test.verdict == report.Pass && (r.Head.Agent == nil || r.Head.Agent.Name != "parity" || r.Head.External.Kind != "file" || r.Head.External.Name != "my-runtime") {
			t.Errorf("the head is %+v, with the agent %+v and the provider %+v", r.Head, r.Head.Agent, r.Head.External)
		}
	}
}

// The same with a subject that reads the image's config from its registry.
func TestARunWithARemoteMachineOfTheUsersOwnAndASubjectThatReadsTheRegistry(t *testing.T) {
	bin := readers(t)
	if r := visit(t, startHost(t), bin, "", "--subject", filepath.Join(bin, "readscli")); r.Verdict != report.Pass {
		t.Errorf("expected a pass, got %+v", r)
	}
}

// left is what a run could leave on the machine: files, and processes.
func left(t *testing.T, host *remote.Machine) string {
	t.Helper()
	res, err := host.Run(t.Context(), `find "$HOME" /tmp -maxdepth 1 | sort; grep -lzF HOME=/root/.parity- /proc/[0-9]*/environ 2>/dev/null | wc -l`, nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(res.Stdout)
}

// visit runs the scenario with the programs of a folder and with the stand-in for msb, and gives
// its report.
func visit(t *testing.T, host *remote.Machine, programs string, f fault.Fault, more ...string) report.Report {
	t.Helper()
	dir, target := t.TempDir(), host.Target()
	key, known, out := filepath.Join(dir, "key"), filepath.Join(dir, "known_hosts"), filepath.Join(dir, "report")
	line := knownhosts.Normalize(target.Address) + " " + target.HostKey
	if err := errors.Join(os.WriteFile(key, []byte(target.Key), 0o600), os.WriteFile(known, []byte(line), 0o600)); err != nil {
		t.Fatal(err)
	}
	hostname, port, err := net.SplitHostPort(target.Address)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(filepath.Join(programs, "parity"), append([]string{Scenario, "--standin", "--report", out,
		"--remote", "ssh://root@" + net.JoinHostPort(hostname, port), "--remote-key", key, "--remote-known-hosts", known}, more...)...)
	c.Env = append(os.Environ(), fault.Env+"="+string(f))
	said, _ := c.CombinedOutput() // the verdict is in the report
	r, err := report.Read(out)
	if err != nil {
		t.Fatalf("%v: %v\n%s", err, c.ProcessState, said)
	}
	if c.ProcessState.ExitCode() != r.ExitCode {
		t.Errorf("expected the exit code %d, got %v", r.ExitCode, c.ProcessState)
	}
	return r
}

// startHost starts a machine that stands for a user's own.
func startHost(t *testing.T) *remote.Machine {
	t.Helper()
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "") // its path is short, as sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	closing := func(what string, do func(context.Context) error) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := do(ctx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	closing("the folder", func(context.Context) error { return os.RemoveAll(dir) })
	engine, err := docker.Start(t.Context(), docker.Options{RunID: "test-run", Dir: filepath.Join(dir, "e"), Programs: docker.ProgramsIn(cache)})
	if err != nil {
		t.Fatal(err)
	}
	closing("the engine", engine.Close)
	parity := filepath.Join(labtest.Programs(), "parity")
	microSandbox := filepath.Join(dir, "m") // which it needs to start; a visit brings its own
	program, err := os.ReadFile(parity)
	if err := errors.Join(err, os.MkdirAll(filepath.Join(microSandbox, "bin"), 0o755),
		os.WriteFile(filepath.Join(microSandbox, "bin", "msb"), program, 0o755)); err != nil {
		t.Fatal(err)
	}
	host, err := remote.Start(t.Context(), remote.Options{
		Engine: engine, RunID: "test-run", Dir: filepath.Join(dir, "r"), Root: remote.RootIn(cache), MicroSandbox: microSandbox, Program: parity, Forwarding: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	closing("the machine", host.Close)
	return host
}
