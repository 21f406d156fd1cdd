package reference

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/reference/engine"
	"dagger/parity/internal/reference/features"
	"dagger/parity/internal/reference/imagebuild"
)

// builtImage is what the CLI has put into the Docker Engine for a workspace.
type builtImage struct {
	Tag    string   `json:"tag"`              // that of the image, which is the workspace's own
	Images []string `json:"images,omitempty"` // the IDs of what was made or pulled for it, the oldest first
}

// cleanDeadline bounds the removal of images, whatever became of the command's own time.
const cleanDeadline = time.Minute

// isBuilt tells whether the image of the workspace is one that the CLI builds.
func (d devcontainer) isBuilt() bool { return d.Build != nil || len(d.Features) > 0 }

// buildImage builds the image that devcontainer.json asks for, and gives its reference. What it has made is in the workspace's record then; if
// it fails, that is removed again.
func buildImage(ctx context.Context, c *cobra.Command, w *workspace, config devcontainer) (ref string, err error) {
	install, err := features.Load(config.Dir, config.Features, config.Order)
	if err != nil {
		return "", err
	}
	install = misbehavingFeatures(install)
	docker, err := engine.Open(ctx)
	if err != nil {
		return "", fmt.Errorf("the image of the workspace is to be built: %w", err)
	}
	defer docker.Close()
	b := &imagebuild.Builder{Engine: docker, Output: c.ErrOrStderr(), Labels: map[string]string{"devsy.workspace": w.UID}}
	tag := "vsc-" + w.ID + "-" + w.UID + ":latest"
	if err := buildInto(ctx, b, tag, config, install); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanDeadline)
		defer cancel()
		_, cleanErr := imagebuild.Remove(ctx, docker, "", b.Made)
		return "", errors.Join(err, cleanErr)
	}
	built := builtImage{Tag: tag, Images: b.Made}
	if w.Built != nil {
		built.Images = append(w.Built.Images, b.Made...)
	}
	w.Built = &built
	return tag, nil
}

// buildInto builds the image under a tag: the Dockerfile, and the Features over it or over the image.
func buildInto(ctx context.Context, b *imagebuild.Builder, tag string, config devcontainer, install []features.Feature) error {
	dockerfile := config.dockerfile()
	if len(install) == 0 {
		_, err := b.Dockerfile(ctx, tag, dockerfile)
		return err
	}
	var base imagebuild.Image
	var err error
	if config.Build != nil {
		base, err = b.Dockerfile(ctx, "", dockerfile)
	} else {
		base, err = b.Base(ctx, config.Image)
	}
	if err != nil {
		return err
	}
	users := features.Users{Container: config.ContainerUser, Remote: config.user()}
	if users.Container == "" {
		users.Container = base.User
	}
	if users.Remote == "" {
		users.Remote = users.Container
	}
	_, err = b.Features(ctx, tag, config.Dir, base, users, install)
	return err
}

// dockerfile is the build that devcontainer.json asks for, with paths of this machine.
func (d devcontainer) dockerfile() imagebuild.Dockerfile {
	if d.Build == nil {
		return imagebuild.Dockerfile{}
	}
	place := func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(d.Dir, path)
	}
	return imagebuild.Dockerfile{File: place(d.Build.Dockerfile), Context: place(d.Build.Context), Target: d.Build.Target, Args: d.Build.Args}
}

// removeBuilt removes what was built for a workspace and is not needed any more: all of it, or, if the machine still stands on it, what is of
// earlier builds. What cannot be removed yet stays in the record. That is no reason to fail: it is told.
func removeBuilt(ctx context.Context, c *cobra.Command, w *workspace, needed bool) {
	if w.Built == nil {
		return
	}
	left, err := w.Built.remove(ctx, needed)
	if err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "warning: what was built for workspace %s stays in Docker: %v\n", w.ID, err)
		return
	}
	if w.Built.Images = left; !needed && len(left) == 0 {
		w.Built = nil
	}
}

func (i builtImage) remove(ctx context.Context, needed bool) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanDeadline)
	defer cancel()
	docker, err := engine.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer docker.Close()
	if needed {
		return imagebuild.RemoveUnused(ctx, docker, i.Tag, i.Images)
	}
	return imagebuild.Remove(ctx, docker, i.Tag, i.Images)
}
