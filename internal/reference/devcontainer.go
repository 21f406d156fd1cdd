package reference

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// devcontainer is what the reference CLI reads of a devcontainer.json.
type devcontainer struct {
	Dir string // the folder of the file: what the file names is relative to it

	Image    string
	Build    *build
	Features map[string]json.RawMessage
	Order    []string // overrideFeatureInstallOrder

	ContainerEnv    map[string]string
	RemoteUser      string
	ContainerUser   string
	WorkspaceFolder string
}

// build says how the image is built from a Dockerfile. Paths are relative to the folder of devcontainer.json.
type build struct {
	Dockerfile, Context, Target string
	Args                        map[string]string
}

const supportedKeys = "image, build (dockerfile, context, args, target), dockerFile, context, features, overrideFeatureInstallOrder, " +
	"containerEnv, remoteUser, containerUser, workspaceFolder"

// readDevcontainer reads the devcontainer.json of a workspace's folder, or the file given relative to it. A key that would
// change what runs and is not supported is an error.
func readDevcontainer(folder, given string) (d devcontainer, err error) {
	places := []string{".devcontainer/devcontainer.json", ".devcontainer.json"}
	if given != "" {
		places = []string{given}
	}
	for _, place := range places {
		file := place
		if !filepath.IsAbs(file) {
			file = filepath.Join(folder, file)
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return d, fmt.Errorf("read devcontainer.json: %w", err)
		}
		d.Dir = filepath.Dir(file)
		if err := d.parse(text); err != nil {
			return d, fmt.Errorf("%s: %w", file, err)
		}
		return d, nil
	}
	return d, fmt.Errorf("no devcontainer.json in %s: expected %s", folder, strings.Join(places, " or "))
}

func (d *devcontainer) parse(text []byte) error {
	plain, err := hujson.Standardize(text)
	if err != nil {
		return fmt.Errorf("not JSON with comments: %w", err)
	}
	var old build // keys of their own, before there was "build"
	if err := readKeys("", plain, map[string]any{
		"image": &d.Image, "build": &d.Build, "dockerFile": &old.Dockerfile, "context": &old.Context,
		"features": &d.Features, "overrideFeatureInstallOrder": &d.Order,
		"containerEnv": &d.ContainerEnv, "remoteUser": &d.RemoteUser, "containerUser": &d.ContainerUser, "workspaceFolder": &d.WorkspaceFolder,
		"name": nil, "$schema": nil, "customizations": nil, // they change nothing that runs
	}); err != nil {
		return err
	}
	if d.Build == nil && old.Dockerfile != "" {
		d.Build = &old
	}
	switch {
	case d.Image == "" && d.Build == nil:
		return errors.New(`the key "image" is missing, and so is "build"`)
	case d.Image != "" && d.Build != nil:
		return errors.New(`expected one of the keys "image" and "build", seen both`)
	case d.Build != nil && d.Build.Dockerfile == "":
		return errors.New(`the key "build": "dockerfile" is missing`)
	case d.WorkspaceFolder != "" && !path.IsAbs(d.WorkspaceFolder):
		return fmt.Errorf(`the key "workspaceFolder": expected an absolute path, seen %q`, d.WorkspaceFolder)
	}
	return nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *build) UnmarshalJSON(text []byte) error {
	return readKeys("build.", text, map[string]any{"dockerfile": &b.Dockerfile, "context": &b.Context, "target": &b.Target, "args": &b.Args})
}

// readKeys reads the keys of an object into what each belongs to; nil leaves one out.
func readKeys(prefix string, text []byte, into map[string]any) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return fmt.Errorf("expected a JSON object: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		target, known := into[key]
		switch {
		case !known:
			return fmt.Errorf("the key %q is not supported by the reference CLI, which reads %s", prefix+key, supportedKeys)
		case target == nil:
			continue
		case strings.Contains(string(keys[key]), "${"):
			return fmt.Errorf("the key %q has a variable, and the reference CLI replaces none: %s", prefix+key, keys[key])
		}
		if err := json.Unmarshal(keys[key], target); err != nil {
			return fmt.Errorf("the key %q: %w", prefix+key, err)
		}
	}
	return nil
}

// user is who commands run as; empty leaves it to the image.
func (d devcontainer) user() string {
	if d.RemoteUser != "" {
		return d.RemoteUser
	}
	return d.ContainerUser
}
