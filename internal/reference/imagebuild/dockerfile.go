package imagebuild

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"dagger/parity/internal/reference/contexttar"
)

// Dockerfile says what to build. The paths are this machine's.
type Dockerfile struct {
	File    string // it may be outside of the context
	Context string
	Target  string // the stage; empty is the last one
	Args    map[string]string
}

// Dockerfile builds a Dockerfile, and tags the result, unless the tag is empty. The engine pulls what a FROM names and it does not have, with
// the credentials of the user's Docker config.
func (b *Builder) Dockerfile(ctx context.Context, tag string, d Dockerfile) (Image, error) {
	if info, err := os.Stat(d.File); err != nil {
		return Image{}, fmt.Errorf("the Dockerfile: %w", err)
	} else if !info.Mode().IsRegular() {
		return Image{}, fmt.Errorf("the Dockerfile: %s is not a file", d.File)
	}
	o := client.ImageBuildOptions{Target: d.Target, BuildArgs: map[string]*string{}}
	if tag != "" {
		o.Tags = []string{tag}
	}
	for name, value := range d.Args {
		o.BuildArgs[name] = &value
	}
	c, err := d.context()
	if err != nil {
		return Image{}, err
	}
	if o.AuthConfigs, err = buildAuths(); err != nil {
		return Image{}, err
	}
	o.Dockerfile = c.dockerfile
	return b.build(ctx, d.File, o, c.write)
}

const ignoreFile = ".dockerignore"

// outside is the name in the context of a Dockerfile that is not in its folder.
const outside = ".dockerfile.devsy"

// buildContext is a folder as a build gets it.
type buildContext struct {
	dir        string
	dockerfile string // its path in the context
	given      string // the Dockerfile's content, if it is not in the folder
	ignored    string // the .dockerignore that goes with it then
	matcher    *patternmatcher.PatternMatcher
}

func (d Dockerfile) context() (c buildContext, err error) {
	c.dir = d.Context
	if info, err := os.Stat(d.Context); err != nil {
		return c, fmt.Errorf("the context of the build: %w", err)
	} else if !info.IsDir() {
		return c, fmt.Errorf("the context of the build: %s is not a folder", d.Context)
	}
	ignore, err := os.ReadFile(filepath.Join(d.Context, ignoreFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	patterns, err := ignorefile.ReadAll(strings.NewReader(string(ignore)))
	if err != nil {
		return c, fmt.Errorf("%s: %w", ignoreFile, err)
	}
	inside, err := filepath.Rel(d.Context, d.File)
	if err != nil {
		return c, err
	}
	if filepath.IsLocal(inside) {
		c.dockerfile = filepath.ToSlash(inside)
	} else {
		text, err := os.ReadFile(d.File)
		if err != nil {
			return c, err
		}
		// The engine takes these two out of the context, because they are in the list, before a COPY can see them.
		c.dockerfile, c.given, c.ignored = outside, string(text), string(ignore)+"\n"+outside+"\n"
		if ignore == nil {
			c.ignored += ignoreFile + "\n"
		}
	}
	if len(patterns) > 0 { // the engine needs both, and takes them out itself
		patterns = append(patterns, "!"+ignoreFile, "!"+c.dockerfile)
	}
	if c.matcher, err = patternmatcher.New(patterns); err != nil {
		return c, fmt.Errorf("%s: %w", ignoreFile, err)
	}
	return c, nil
}

func (c buildContext) write(to io.Writer) error {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := contexttar.NewWriter(to)
	if err := w.Tree(root, ".", c.filter); err != nil {
		return err
	}
	if c.given != "" {
		if err := errors.Join(w.File(c.dockerfile, 0o644, c.given), w.File(ignoreFile, 0o644, c.ignored)); err != nil {
			return err
		}
	}
	return w.Close()
}

// filter leaves out what .dockerignore says.
func (c buildContext) filter(name string, h *tar.Header) error {
	if c.given != "" && (name == ignoreFile || name == outside) {
		return contexttar.ErrOmit
	}
	ignored, err := c.matcher.MatchesOrParentMatches(name)
	switch {
	case err != nil || !ignored:
		return err
	case h.Typeflag == tar.TypeDir && !c.matcher.Exclusions():
		return fs.SkipDir
	}
	return contexttar.ErrOmit
}
