package remoteagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/fault"
)

// serveImage makes the case's Bench, and has it publish the image of the workspaces.
func (s *scenario) serveImage(c *cases.Cleanup) cases.Finding {
	elsewhere := &cases.Elsewhere{
		MSB: s.machine.MSB(), Source: s.providerFile("provider"), Served: s.served.Runtime.Requests, Carry: s.carry,
		Registry: s.startRegistry, Bundle: filepath.Join(s.dir, "ca.crt"),
	}
	err := s.machine.WriteBundle(elsewhere.Bundle)
	if err == nil {
		s.Bench, err = cases.NewBench(s.Env, s.Provider, s.Recorder, s.dir, cases.Surroundings{Elsewhere: elsewhere}, c)
	}
	if err == nil {
		err = s.Bounded(imageDeadline, s.Bench.ServeImage)
	}
	if err != nil {
		return cases.Unclear("", err.Error(), "see the free space of the lab's scratch disk (--disk), and of a machine of yours; the stand-in needs root there")
	}
	return cases.Passed(s.Bench.Image)
}

// registryAttempts is how many ports are tried for one that is free on both sides.
const registryAttempts = 20

// startRegistry starts a registry that both sides reach by one address: a reference must name the
// same image on both.
func (s *scenario) startRegistry(ctx context.Context, folder string) (*registry.Registry, error) {
	conf, err := s.machine.ServeTLS("Parity image registry")
	if err != nil {
		return nil, err
	}
	var taken []netip.AddrPort
	for range registryAttempts {
		one, err := registry.Start(registry.Options{Listen: s.listen(), Dir: folder, Served: conf})
		if err != nil {
			return nil, err
		}
		at, err := s.machine.Reach(ctx, one.Addr().Port())
		if err == nil && at == one.Addr() {
			s.images = one
			return one, nil
		}
		taken = append(taken, one.Addr())
		if closed := one.Close(); err != nil || closed != nil {
			return nil, errors.Join(err, closed)
		}
	}
	return nil, fmt.Errorf("expected a port that is free on the remote's loopback too, tried %v: see what listens there", taken)
}

// readImage shows that the remote reads the image's manifest over HTTPS.
func (s *scenario) readImage(ctx context.Context) (string, error) {
	if fault.On(fault.RemoteWithoutImage) {
		s.images.Misbehave(registry.Empty)
	}
	url, want := s.Bench.ImageManifest()
	manifest, err := s.machine.Fetch(ctx, url)
	if err != nil {
		return "", err
	}
	got, _, err := v1.SHA256(bytes.NewReader(manifest))
	if err == nil && got != want {
		err = fmt.Errorf("expected the manifest %s from %s, seen %s: %.200q", want, url, got, manifest)
	}
	return url, err
}
