// Package imagebuild builds the image of a workspace with a Docker Engine: from a Dockerfile, and with Features over an image. It uses the
// engine's own builder, which every engine has, and not BuildKit, which needs a session of its own.
package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"dagger/parity/internal/reference/features"
	"dagger/parity/internal/reference/registry"
)

// Builder builds with an engine. What it makes there is in Made, also when a build fails; see Remove.
type Builder struct {
	Engine *client.Client
	Output io.Writer // what the builds say, for people

	// Labels are those of what gets a tag. With one of the workspace's own, it is never an image that somebody else has too, such as the base
	// of a Dockerfile that adds nothing to it.
	Labels map[string]string

	// Made are the IDs of the images that the engine has because of this Builder, the oldest first.
	Made []string
}

// Image is an image that the engine has.
type Image struct {
	ID   string
	User string // empty is root
}

// Base gives an image that the engine has, or pulls it. A pulled one gets no tag: the tag may move, and is asked for again the next time.
func (b *Builder) Base(ctx context.Context, ref string) (Image, error) {
	image, err := b.inspect(ctx, ref)
	if !errdefs.IsNotFound(err) {
		return image, err
	}
	pinned, err := registry.Resolve(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	if image, err = b.inspect(ctx, pinned); !errdefs.IsNotFound(err) {
		return image, err
	}
	before, err := b.images(ctx)
	if err != nil {
		return Image{}, err
	}
	fmt.Fprintf(b.Output, "pulling %s into Docker\n", pinned)
	if err := b.pull(ctx, pinned); err != nil {
		return Image{}, fmt.Errorf("pull %s into Docker: %w", pinned, err)
	}
	image, err = b.inspect(ctx, pinned)
	if err == nil {
		b.add(image.ID, before)
	}
	return image, err
}

func (b *Builder) pull(ctx context.Context, ref string) error {
	auth, err := pullAuth(ref)
	if err != nil {
		return err
	}
	res, err := b.Engine.ImagePull(ctx, ref, client.ImagePullOptions{
		RegistryAuth: auth, Platforms: []ocispec.Platform{{OS: registry.Platform.OS, Architecture: registry.Platform.Architecture}}})
	if err != nil {
		return err
	}
	defer res.Close()
	return res.Wait(ctx)
}

// add adds an image to Made, unless the engine had it before, under another name.
func (b *Builder) add(id string, before []string) {
	if !slices.Contains(before, id) && !slices.Contains(b.Made, id) {
		b.Made = append(b.Made, id)
	}
}

func (b *Builder) inspect(ctx context.Context, ref string) (Image, error) {
	res, err := b.Engine.ImageInspect(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	image := Image{ID: res.ID}
	if res.Config != nil {
		image.User = res.Config.User
	}
	return image, nil
}

// Features installs Features over an image, in their order, and tags the result. Dir is the folder of their paths. The user of the result is
// that of the image.
func (b *Builder) Features(ctx context.Context, tag, dir string, base Image, users features.Users, install []features.Feature) (Image, error) {
	users.Image = base.User
	return b.build(ctx, "the Features", client.ImageBuildOptions{Tags: []string{tag}, Dockerfile: features.Dockerfile},
		func(to io.Writer) error { return features.WriteContext(to, dir, base.ID, users, install) })
}

// Remove removes what builds made: a tag, unless it is empty, and the images of a Builder's Made. It removes nothing that somebody else has
// tagged or uses, and nothing else. What something uses is left.
func Remove(ctx context.Context, engine *client.Client, tag string, made []string) (left []string, err error) {
	if tag != "" {
		if _, err = engine.ImageRemove(ctx, tag, client.ImageRemoveOptions{}); errdefs.IsNotFound(err) {
			err = nil
		}
	}
	left, removeErr := RemoveUnused(ctx, engine, tag, made)
	return left, errors.Join(err, removeErr)
}

// RemoveUnused is Remove, but for the tag and what that stands on.
func RemoveUnused(ctx context.Context, engine *client.Client, tag string, made []string) (left []string, err error) {
	for _, image := range slices.Backward(made) { // the last one stands on those before it
		used, removeErr := remove(ctx, engine, tag, image)
		if used {
			left = append(left, image)
		}
		err = errors.Join(err, removeErr)
	}
	slices.Reverse(left)
	return left, err
}

// remove removes an image, and tells whether it stays because something uses it. One with a tag that is not this one is somebody else's now.
func remove(ctx context.Context, engine *client.Client, tag, image string) (used bool, err error) {
	info, err := engine.ImageInspect(ctx, image)
	if err == nil && len(info.RepoTags) > 0 {
		return slices.Contains(info.RepoTags, tag), nil
	}
	if err == nil {
		_, err = engine.ImageRemove(ctx, image, client.ImageRemoveOptions{})
	}
	switch {
	case errdefs.IsNotFound(err):
		return false, nil
	case errdefs.IsConflict(err):
		return true, nil
	case err != nil:
		return true, fmt.Errorf("remove the image %s from Docker: %w", image, err)
	}
	return false, nil
}
