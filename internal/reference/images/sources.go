package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"dagger/parity/internal/reference/engine"
	"dagger/parity/internal/reference/registry"
)

// fromDocker gives an image of the Docker Engine; nil if that does not have it, or if there is no engine. An image that must be there is an
// error then. The engine is used until closeDocker is called.
func fromDocker(ctx context.Context, ref string, must bool) (src *source, closeDocker func(), err error) {
	docker, err := engine.Open(ctx)
	switch {
	case errors.Is(err, engine.ErrAbsent) && !must:
		return nil, func() {}, nil
	case err != nil:
		return nil, nil, err
	}
	src, err = inspect(ctx, docker, ref, must)
	if err != nil || src == nil {
		docker.Close()
		return nil, func() {}, err
	}
	return src, func() { docker.Close() }, nil
}

func inspect(ctx context.Context, docker *client.Client, ref string, must bool) (*source, error) {
	found, err := docker.ImageInspect(ctx, ref)
	switch {
	case errdefs.IsNotFound(err) && must:
		return nil, fmt.Errorf("the image %s was built locally, and the Docker Engine at %s does not have it: %w", ref, docker.DaemonHost(), err)
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask the Docker Engine for the image %s: %w", ref, err)
	}
	if err := registry.CheckPlatform(found.Os, found.Architecture); err != nil {
		return nil, fmt.Errorf("the image %s of the Docker Engine: %w", ref, err)
	}
	src := &source{place: "Docker", identity: "docker " + found.ID, save: func(ctx context.Context, f *os.File) error {
		if err := saveFromDocker(ctx, docker, found.ID, f); err != nil {
			return fmt.Errorf("save the image %s from the Docker Engine: %w", ref, err)
		}
		return nil
	}}
	if found.Config != nil {
		src.user = found.Config.User
	}
	return src, nil
}

// saveFromDocker saves an image by its ID: a tag may move meanwhile.
func saveFromDocker(ctx context.Context, docker *client.Client, id string, f *os.File) error {
	archive, err := docker.ImageSave(ctx, []string{id})
	if err != nil {
		return err
	}
	defer archive.Close()
	_, err = io.Copy(f, archive)
	return err
}

// fromRegistry gives an image of a registry.
func fromRegistry(ctx context.Context, ref string) (*source, error) {
	found, err := registry.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &source{place: "the registry " + found.Reference.Context().RegistryStr(), identity: "registry " + found.Digest.String(),
		user: found.User, save: found.Save}, nil
}
