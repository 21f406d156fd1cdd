// Package imageparity is the scenario image-parity: an image from a registry, one that only Docker has, and a Dockerfile with a Dev
// Container Feature arrive in the guest whole.
package imageparity

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Scenario is the scenario's name in the catalogue.
const Scenario = "image-parity"

// Deadlines of single steps, for an emulated lab on a busy machine.
const (
	upDeadline      = 10 * time.Minute // an image is built, moved and loaded in it
	publishDeadline = 3 * time.Minute
	treeDeadline    = 3 * time.Minute
)

// targetID is the workspace's id.
const targetID = "target"

// scenario is one case under way.
type scenario struct {
	*workspace.Workspace
	name string // where the image comes from: a case's name

	registry *registry.Registry
	engine   *docker.Engine
	started  time.Time // of the engine
	ref      string    // the reference of the image that is published, for ever the same
	current  version   // what is published under it
	sandbox  string    // the workspace's, in MicroSandbox
}

// Run runs one case of the scenario.
func Run(ctx context.Context, env cases.Env, plan catalogue.Case) report.Case {
	return env.Case(ctx, plan, func(ctx context.Context, r *cases.Recorder, dir string, c *cases.Cleanup) {
		s := &scenario{
			Workspace: &workspace.Workspace{Recorder: r, Env: env, Ctx: ctx, ID: targetID, Provider: plan.Provider, UpTime: upDeadline}, name: plan.Name,
		}
		s.Intact = s.fixturesIntact
		s.prelude(dir, c)
		for _, phase := range []string{catalogue.Created, catalogue.Restarted, catalogue.Recreated} {
			s.phase(phase)
		}
	})
}

// prelude makes the fixtures, publishes the first version of the image, and has the provider added.
func (s *scenario) prelude(dir string, c *cases.Cleanup) {
	s.MakeLink(c)
	s.Check("", "fixture/registry", func() cases.Finding {
		err := fault.Failing(fault.RegistryFails)
		if err == nil {
			s.registry, err = registry.Start(registry.Options{Dir: filepath.Join(dir, "r")})
		}
		if err != nil {
			return cases.Unclear("", err.Error(), "run it again; the registry is the test's own")
		}
		c.Add("the registry", func(context.Context) error { return s.registry.Close() })
		if err := s.Bounded(workspace.GuestDeadline, s.ping); err != nil {
			return cases.Unclear("", err.Error(), "run it again; the registry is the test's own")
		}
		return cases.Passed(s.registry.Host())
	})
	s.engine = s.StartDocker(docker.Options{Host: s.Docker.Host, Dir: filepath.Join(dir, "d")}, c)
	s.started = time.Now()
	s.Check("", "fixture/image", func() cases.Finding {
		s.ref = fmt.Sprintf("%s/%s:%s", s.registry.Host(), s.repository(), s.RunID)
		around := cases.Surroundings{Environ: []string{"DOCKER_HOST=" + s.engine.Host()}, Path: []string{filepath.Dir(s.Docker.Programs.CLI())}}
		b, err := cases.NewBench(s.Env, s.Provider, s.Recorder, dir, around, c)
		if err != nil {
			return cases.Unclear("", err.Error(), "see the free space of the lab's scratch disk (--disk)")
		}
		s.Bench = b
		b.Write = s.writeFolder
		return s.publish()
	})
	if s.name == catalogue.ImageRegistry {
		s.Check("", "docker/absent-before", func() cases.Finding { return s.absent(cases.Unclear) })
	}
	s.AddProvider()
}

// fixturesIntact says which of the fixtures that the subject works with is broken, if any.
func (s *scenario) fixturesIntact(ctx context.Context) error {
	if err := s.ping(ctx); err != nil {
		return fmt.Errorf("the registry is broken: %w", err)
	}
	if err := s.engine.Alive(ctx); err != nil {
		return fmt.Errorf("the Docker Engine is broken: %w", err)
	}
	return nil
}

// ping shows that the registry answers. It reads nothing.
func (s *scenario) ping(ctx context.Context) error {
	r, err := name.NewRegistry(s.registry.Host())
	if err != nil {
		return err
	}
	_, err = transport.Ping(ctx, r, http.DefaultTransport)
	return err
}

// phase runs the checks of one phase.
func (s *scenario) phase(phase string) {
	if phase == catalogue.Recreated {
		s.Check(phase, "fixture/image", s.publish)
	}
	s.Phase(phase, subject.UpOptions{}, func(box msb.Sandbox) {
		s.sandbox = box.Name
		s.origin(phase)
	}, func(g *workspace.Guest) {
		nonce := "nonce"
		if phase == catalogue.Recreated {
			nonce = "fresh"
		}
		s.own(phase, nonce, func() cases.Finding { return s.nonce(phase, g) })
		s.markers(phase, g)
		s.own(phase, "user", func() cases.Finding { return s.user(phase, g) })
		s.own(phase, "ssh/command", func() cases.Finding { return s.command(phase) })
		s.own(phase, "tree", func() cases.Finding { return s.tree(phase, g) })
	})
}

// origin makes the checks of where the image came from.
func (s *scenario) origin(phase string) {
	if phase == catalogue.Restarted {
		return
	}
	if s.name == catalogue.ImageRegistry {
		s.own(phase, "registry/read", func() cases.Finding { return s.read(phase) })
		s.own(phase, "docker/absent-after", func() cases.Finding { return s.absent(cases.Broken) })
		return
	}
	s.own(phase, "registry/unread", func() cases.Finding { return s.unread(phase) })
}

// own makes a check of the scenario's own. What the subject broke is its failure only if the fixtures are intact.
func (s *scenario) own(phase, name string, check func() cases.Finding) {
	s.Check(phase, name, func() cases.Finding { return s.Excuse(check()) })
}

// read shows that the image came from the registry.
func (s *scenario) read(phase string) cases.Finding {
	reads := s.registry.Reads(s.repository())
	seen := fmt.Sprintf("%s, %s", report.Count(reads.Manifests, "manifest read"), report.Count(reads.Blobs, "blob read"))
	s.Observe(phase, "registry", "manifests read: %t, blobs read: %t", reads.Manifests > 0, reads.Blobs > 0)
	if reads.Manifests == 0 || reads.Blobs == 0 {
		return cases.Broken("", seen, "the image that runs was not read from the registry that its reference names: see where the subject took it from")
	}
	return cases.Passed(seen)
}

// unread shows that the image did not come by way of the registry, which does not have it.
func (s *scenario) unread(phase string) cases.Finding {
	var named, served []string
	for _, r := range s.registry.Requests() {
		if r.Repository == "" {
			continue
		}
		line := fmt.Sprintf("%s %s: %d", r.Method, r.Path, r.Status)
		named = append(named, line)
		if r.Status < http.StatusBadRequest {
			served = append(served, line)
		}
	}
	s.Observe(phase, "registry", "%s", map[bool]string{true: "asked", false: "not asked"}[len(named) > 0])
	if len(served) > 0 {
		return cases.Broken("", strings.Join(served, "; "), "an image that only the Docker Engine has does not go by way of a registry")
	}
	return cases.Passed(report.Count(len(named), "request") + ", and nothing was served")
}

// absent shows that the Docker Engine does not have the registry's image.
func (s *scenario) absent(otherwise func(expected, seen, next string) cases.Finding) cases.Finding {
	var has bool
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		has, err = s.engine.Has(ctx, s.ref)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), "the Docker Engine is the test's own: run it again")
	}
	if has {
		return otherwise("", "it has "+s.ref, "whether the image came from the registry cannot be told, or it did not: see who put it there")
	}
	if s.Docker.Host != "" { // which others use too
		return cases.Passed("it does not have " + s.ref)
	}
	var came []string
	err = s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		came, err = s.engine.Arrivals(ctx, s.started)
		return err
	})
	if err != nil {
		return cases.Unclear("", err.Error(), "the Docker Engine is the test's own: run it again")
	}
	if len(came) > 0 {
		return otherwise("no image came to it", strings.Join(came, "; "), "the image went through the Docker Engine, though it is gone from there again")
	}
	return cases.Passed("it does not have " + s.ref + ", and no image came to it")
}
