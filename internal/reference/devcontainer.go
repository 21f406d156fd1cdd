package reference

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/tailscale/hujson"
)

// devcontainer is what the reference CLI reads of a devcontainer.json.
type devcontainer struct {
	Image           string
	ContainerEnv    map[string]string
	RemoteUser      string
	ContainerUser   string
	WorkspaceFolder string
}

const supportedKeys = "image, containerEnv, remoteUser, containerUser, workspaceFolder"

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
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(plain, &keys); err != nil {
		return fmt.Errorf("expected a JSON object: %w", err)
	}
	for key, value := range keys {
		var into any
		switch key {
		case "image":
			into = &d.Image
		case "containerEnv":
			into = &d.ContainerEnv
		case "remoteUser":
			into = &d.RemoteUser
		case "containerUser":
			into = &d.ContainerUser
		case "workspaceFolder":
			into = &d.WorkspaceFolder
		case "name", "$schema", "customizations": // they change nothing that runs
			continue
		default:
			return fmt.Errorf("the key %q is not supported by the reference CLI, which reads %s", key, supportedKeys)
		}
		if strings.Contains(string(value), "${") {
			return fmt.Errorf("the key %q has a variable, and the reference CLI replaces none: %s", key, value)
		}
		if err := json.Unmarshal(value, into); err != nil {
			return fmt.Errorf("the key %q: %w", key, err)
		}
	}
	if d.Image == "" {
		return errors.New(`the key "image" is missing`)
	}
	if d.WorkspaceFolder != "" && !path.IsAbs(d.WorkspaceFolder) {
		return fmt.Errorf(`the key "workspaceFolder": expected an absolute path, seen %q`, d.WorkspaceFolder)
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
