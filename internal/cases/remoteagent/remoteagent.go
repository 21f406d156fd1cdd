// Package remoteagent is the scenario remote-agent: a remote agent downloads a runtime once, verifies it, and reuses the verified copy when
// its source is gone.
package remoteagent

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/registry"
	"dagger/parity/fixtures/remote"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/reference/manifest"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
)

// Scenario is the scenario's name in the catalogue.
const Scenario = "remote-agent"

// Deadlines of single steps, for an emulated lab on a busy machine.
const (
	upDeadline     = 8 * time.Minute  // the agent and the runtime are downloaded, verified and started in it
	remoteDeadline = 10 * time.Minute // its image is loaded in it
	imageDeadline  = 3 * time.Minute
)

// targetID is the workspace's id.
const targetID = "target"

// scenario is the case under way.
type scenario struct {
	*workspace.Workspace
	dir         string
	engine      *docker.Engine // nil where the remote is not the test's own
	machine     *remote.Machine
	served      *artifacts.Pair
	images      *registry.Registry // of the workspaces' image
	agentSum    string             // the SHA-256 of the agent that is served
	agentURL    string             // the folder that it is in, for the remote; see expose
	runtimeURL  string             // that of the runtime, for the remote
	runtimeSize int                // that of the runtime, in bytes
	asked       int                // how often this side has asked the runtime's server, since it is counted
	manifest    *manifest.Manifest // of the workspace's provider, as the subject was given it
	binaries    []held             // what may be the workspace's runtime on the remote, as it was delivered; only it, once it was seen to run
	tampered    tampered
	measured    report.Performance
}

// held is a file on the remote.
type held struct {
	file
	holder string // the id of the process on the remote that holds it open
}

// Run runs the scenario's one case.
func Run(ctx context.Context, env cases.Env, plan catalogue.Case) report.Case {
	return env.Case(ctx, plan, func(ctx context.Context, r *cases.Recorder, dir string, c *cases.Cleanup) {
		s := &scenario{
			Workspace: &workspace.Workspace{Recorder: r, Env: env, Ctx: ctx, ID: targetID, Provider: plan.Provider, UpTime: upDeadline}, dir: dir,
		}
		s.Intact = s.fixturesIntact
		s.prelude(c)
		s.Phase(catalogue.Created, subject.UpOptions{}, s.delivered, func(*workspace.Guest) {
			s.measured.FreshUp = s.UpTook
			s.Measured(s.measured)
			s.check(catalogue.Created, "runtime/runs", s.runs)
		})
		s.loseSource()
		s.Phase(catalogue.Restarted, subject.UpOptions{}, s.reused, func(*workspace.Guest) {
			s.measure()
			s.check(catalogue.Restarted, "runtime/runs", s.runs)
		})
		s.check(catalogue.Restarted, "runtime/unasked", s.unasked)
		s.tamper(c)
	})
}

// warmProbes is how many commands are measured in the running workspace.
const warmProbes = 3

// measure measures the up that has just reused the runtime, and commands in the workspace. It is no check: what it needs was seen to work.
func (s *scenario) measure() {
	if s.Broken() {
		return
	}
	s.measured.ReusedUp = s.UpTook
	for range warmProbes {
		started := time.Now()
		err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error {
			_, err := s.Bench.Subject.SSH(ctx, s.ID, "true", nil)
			return err
		})
		if err != nil {
			s.Problem("a command in the running workspace, to be measured: %v", err)
			return
		}
		s.measured.WarmProbes = append(s.measured.WarmProbes, time.Since(started))
	}
	s.Measured(s.measured)
}

// prelude makes the fixtures and looks at the remote, and has the provider added.
func (s *scenario) prelude(c *cases.Cleanup) {
	if !s.visits() {
		s.engine = s.StartDocker(docker.Options{Dir: filepath.Join(s.dir, "d")}, c)
	}
	s.Check("", "fixture/remote", func() cases.Finding { return s.startRemote(c) })
	s.Check("", "fixture/artifacts", func() cases.Finding { return s.serve(c) })
	s.preflight("remote/tls", s.tls, "the remote's CA bundle is the test's own: run it again; on a machine of yours, see whether its user has a proxy set for curl")
	s.preflight("remote/kvm", s.kvm, "the lab must have KVM, see `parity doctor`; on a machine of yours, the user must be allowed to open the device")
	s.preflight("remote/disk", s.disk, cases.NextRoom)
	nextDownload := "run scripts/setup again: the remote is made of Debian's packages in Parity's cache"
	if s.visits() {
		nextDownload = "what the remote asks for must reach this side from it alone (docs/remote-agent.md)"
	}
	s.preflight("remote/download", s.download, nextDownload)
	s.Check("", "fixture/image", func() cases.Finding { return s.serveImage(c) })
	s.preflight("remote/image", s.readImage, "the registry and the remote's CA bundle are the test's own: run it again")
	s.AddProvider()
	if fault.On(fault.ArtifactsDie) && !s.Broken() {
		_ = s.served.Runtime.Close() // what lives on breaks no check
	}
	if fault.On(fault.ImageRegistryDies) && !s.Broken() {
		_ = s.images.Close() // likewise
	}
	if fault.On(fault.StrangerAsks) && !s.Broken() {
		_ = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error { // of whom nobody hears, no check breaks
			_, err := s.machine.Run(ctx, "curl --silent --output /dev/null "+shellescape.Quote(strings.TrimSuffix(s.runtimeURL, s.served.Runtime.Name())), nil)
			return err
		})
	}
}

// preflight makes a check of what the remote must have before anything is asked of the subject.
func (s *scenario) preflight(name string, look func(context.Context) (seen string, err error), next string) {
	s.Check("", name, func() cases.Finding {
		var seen string
		err := s.Bounded(imageDeadline, func(ctx context.Context) (err error) {
			seen, err = look(ctx)
			return err
		})
		if err != nil {
			return cases.Unclear("", err.Error(), next)
		}
		return cases.Passed(seen)
	})
}

// visits tells whether the remote is not the test's own.
func (s *scenario) visits() bool { return s.Remote.Target != "" }

// startRemote makes the remote.
func (s *scenario) startRemote(c *cases.Cleanup) cases.Finding {
	defer s.Timed("remote start")()
	next := "see `parity doctor`; scripts/setup gets the Debian packages that the remote is made of"
	if s.visits() {
		next = "see whether ssh reaches the machine with that user and key (docs/remote-agent.md)"
	}
	microSandbox, err := s.microSandbox()
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	self, err := os.Executable()
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	err = s.Bounded(remoteDeadline, func(ctx context.Context) (err error) {
		if err = fault.Failing(fault.RemoteFails); err == nil {
			s.machine, err = s.remote(ctx, microSandbox, self)
		}
		if err != nil {
			return err
		}
		c.Add("the remote", s.machine.Close)
		return s.machine.Upload(ctx, s.Probe, s.probePath(), 0o755)
	})
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	return cases.Passed(s.machine.Description())
}

// remote gives the remote: one of the case's own, or the one that it was told to visit.
func (s *scenario) remote(ctx context.Context, microSandbox, program string) (*remote.Machine, error) {
	dir := filepath.Join(s.dir, "r")
	if !s.visits() {
		return remote.Start(ctx, remote.Options{
			Engine: s.engine, RunID: s.RunID, Dir: dir, Root: s.Remote.Root, MicroSandbox: microSandbox, Program: program,
			KVM: !s.StandIn, WithoutCA: fault.On(fault.RemoteWithoutCA), Environ: fault.Environ(),
		})
	}
	target, err := remote.ReadTarget(s.Remote.Target)
	if err != nil {
		return nil, err
	}
	return remote.Visit(ctx, remote.VisitOptions{
		Target: target, RunID: s.RunID, Dir: dir, MicroSandbox: microSandbox, Program: program,
		WithoutCA: fault.On(fault.RemoteWithoutCA), Environ: fault.Environ(),
	})
}

// microSandbox gives the folder of MicroSandbox that the remote gets.
func (s *scenario) microSandbox() (string, error) {
	if !s.StandIn {
		return filepath.Dir(filepath.Dir(s.MSB)), nil
	}
	program, err := os.ReadFile(s.MSB) // here it is a link, to what the remote does not have
	if err != nil {
		return "", err
	}
	folder := filepath.Join(s.dir, "standin")
	if err := os.MkdirAll(filepath.Join(folder, "bin"), 0o755); err != nil {
		return "", err
	}
	return folder, os.WriteFile(filepath.Join(folder, "bin", "msb"), program, 0o755)
}

// serve starts the servers of the agent and the runtime, and writes the manifest of a provider that brings workspaces to the remote.
func (s *scenario) serve(c *cases.Cleanup) cases.Finding {
	const next = "run it again; the servers are the test's own"
	agentName := cmp.Or(s.AgentName, cases.DefaultAgentName)
	agent, err := os.ReadFile(s.AgentFile)
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	s.agentSum = sumOf(agent)
	runtime, err := os.ReadFile(s.External.Runtime)
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	s.runtimeSize = len(runtime)
	if err = fault.Failing(fault.ArtifactsFail); err == nil {
		s.served, err = artifacts.StartPair(
			artifacts.File{Listen: s.listen(), Name: agentName, Content: agent}, artifacts.File{Listen: s.listen(), Name: cases.Nonce("runtime"), Content: runtime})
	}
	if err != nil {
		return cases.Unclear("", err.Error(), next)
	}
	c.Add("the artifact servers", func(context.Context) error { return s.served.Close() })
	for _, one := range []*artifacts.Server{s.served.Agent, s.served.Runtime} {
		if err := s.answers(one, http.StatusOK); err != nil {
			return cases.Unclear("", err.Error(), next)
		}
		one.Clear()
	}
	agentURL, err := s.expose(s.served.Agent)
	if err == nil {
		s.runtimeURL, err = s.expose(s.served.Runtime)
	}
	if err != nil {
		return cases.Unclear("", err.Error(), nextRemote)
	}
	s.agentURL = strings.TrimSuffix(agentURL, "/"+agentName)
	if s.manifest, err = s.place("provider", manifest.Placement{RuntimeURL: s.runtimeURL}); err != nil {
		return cases.Unclear("", err.Error(), "see the external provider's manifest")
	}
	return cases.Passed(fmt.Sprintf("for the remote, the agent is at %s, the runtime at %s", agentURL, s.runtimeURL))
}

// listen is what a server listens on that the remote reaches.
func (s *scenario) listen() netip.AddrPort { return netip.AddrPortFrom(s.machine.Gateway(), 0) }

// expose gives the URL at which the remote reaches a server's file.
func (s *scenario) expose(one *artifacts.Server) (url string, err error) {
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		url, err = s.reached(ctx, one)
		return err
	})
	return url, err
}

// reached is expose within the time of a context.
func (s *scenario) reached(ctx context.Context, one *artifacts.Server) (string, error) {
	at, err := s.machine.Reach(ctx, one.Addr().Port())
	return "http://" + at.String() + "/" + one.Name(), err
}

// answers shows that a server answers a request from this side with a status. The request is counted.
func (s *scenario) answers(one *artifacts.Server, want int) error {
	return s.Bounded(workspace.GuestDeadline, func(ctx context.Context) error {
		status, err := ask(ctx, http.MethodHead, one.URL())
		if err == nil && status != want {
			err = fmt.Errorf("HEAD %s: expected %d, seen %d", one.URL(), want, status)
		}
		return err
	})
}

// providerFile is where the manifest of one of the case's providers is.
func (s *scenario) providerFile(name string) string { return filepath.Join(s.dir, name+".yaml") }

// place writes the external provider's manifest as that of a provider that brings workspaces to the remote.
func (s *scenario) place(name string, p manifest.Placement) (*manifest.Manifest, error) {
	source, err := os.ReadFile(s.External.Manifest)
	if err != nil {
		return nil, err
	}
	p.Exec, p.AgentURL, p.Runtime = s.machine.Command(), s.agentURL, s.External.Key
	if s.visits() { // it is to be below what is the test's own there
		p.AgentPath = path.Join(s.machine.Home(), "agent/devsy")
	}
	text, err := manifest.Place(source, p)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse(text)
	if err == nil && p.Runtime != "" {
		err = m.Choose(p.Runtime)
	}
	if err != nil {
		return nil, err
	}
	return m, os.WriteFile(s.providerFile(name), text, 0o644)
}

// carry brings a file to the remote.
func (s *scenario) carry(ctx context.Context, file string) (string, error) {
	there := path.Join(s.machine.Temp(), filepath.Base(file))
	return there, s.machine.Upload(ctx, file, there, 0o644)
}

// fixturesIntact says which of the fixtures that the subject works with is broken, if any.
func (s *scenario) fixturesIntact(ctx context.Context) error {
	if s.engine != nil {
		if err := s.engine.Alive(ctx); err != nil {
			return fmt.Errorf("the Docker Engine is broken: %w", err)
		}
	}
	if err := s.machine.Alive(ctx); err != nil {
		return fmt.Errorf("the remote is broken: %w", err)
	}
	for _, one := range append([]*artifacts.Server{s.served.Agent, s.served.Runtime}, s.tampered.servers()...) {
		if err := s.listens(ctx, one); err != nil {
			return fmt.Errorf("the server of %s is broken: %w", one.URL(), err)
		}
	}
	if err := s.Bench.ImageServed(ctx); err != nil {
		return err
	}
	if err := s.machine.Room(ctx, leastRoom); err != nil {
		return fmt.Errorf("the remote has no room, or does not tell: %w", err)
	}
	return nil
}

// leastRoom is the room in KiB below which the remote cannot be expected to work.
const leastRoom = 64 << 10

// direct asks servers of this lab's, for which no proxy of the caller's is the way.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// listens shows that a server takes requests. It is not counted.
func (s *scenario) listens(ctx context.Context, one *artifacts.Server) error {
	address := "http://" + one.Addr().String() + "/parity/requests"
	_, err := ask(ctx, http.MethodGet, address)
	return err
}

// ask sends a request and gives the status of its answer.
func ask(ctx context.Context, method, address string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return 0, err
	}
	answer, err := direct.Do(request)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}
