package imageparity

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
)

// misbehaveBefore does to the fixtures what the fault asks for, before the image is published.
func (s *scenario) misbehaveBefore() {
	if fault.On(fault.RegistryRefuses) {
		s.registry.Misbehave(registry.Broken)
	}
}

// misbehaveAfter does to the fixtures what the fault asks for, once the image is published.
func (s *scenario) misbehaveAfter(ctx context.Context, img v1.Image) error {
	switch {
	case fault.On(fault.RegistryDies):
		return s.registry.Close()
	case fault.On(fault.DockerDies):
		return s.engine.Close(ctx)
	case fault.On(fault.DockerHasImage) && s.name == catalogue.ImageRegistry:
		return s.engine.Load(ctx, s.ref, img)
	}
	return nil
}
