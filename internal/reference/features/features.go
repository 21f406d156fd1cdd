// Package features is the Dev Container Features specification (https://containers.dev/implementors/features/) for Features in folders of the
// workspace: which are installed, in which order, with which options, and the build context that installs them over an image. It reads
// files only, and knows nothing of how an image is built.
package features

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// The files that a Feature's folder must have.
const (
	metadataFile  = "devcontainer-feature.json"
	installScript = "install.sh"
)

// Feature is a Feature that is to be installed.
type Feature struct {
	Path string // of its folder, below that of devcontainer.json: slashes, and no "./"
	Name string // for people

	ContainerEnv []Variable        // in the order of the Feature's file
	Options      map[string]string // by the name of the environment variable that each becomes

	installsAfter []string
	dependsOn     []string // the keys of Features
	key           string   // what makes it another Feature than the others: the folder and the options
}

// Variable is a variable of an image's environment. ${NAME} in its value stands for what the image has.
type Variable struct{ Name, Value string }

// Load reads the Features that a devcontainer.json asks for, and those that these depend on, and puts them in the order in which they are
// installed. Dir is the folder of devcontainer.json; asked its value of "features"; override that of "overrideFeatureInstallOrder".
func Load(dir string, asked map[string]json.RawMessage, override []string) ([]Feature, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of devcontainer.json: %w", err)
	}
	defer root.Close()
	l := loader{root: root, found: map[string]Feature{}}
	if _, err := l.loadAll(asked); err != nil {
		return nil, err
	}
	return order(l.found, override)
}

// loader reads Features, each once.
type loader struct {
	root  *os.Root
	found map[string]Feature // by key
}

// loadAll reads Features and what they depend on, and gives their keys.
func (l loader) loadAll(asked map[string]json.RawMessage) (keys []string, err error) {
	for _, ref := range slices.Sorted(maps.Keys(asked)) {
		key, err := l.load(ref, asked[ref])
		if err != nil {
			return nil, fmt.Errorf("the Feature %q: %w", ref, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (l loader) load(ref string, value json.RawMessage) (key string, err error) {
	dir, err := localPath(ref)
	if err != nil {
		return "", err
	}
	m, err := l.metadata(dir)
	if err != nil {
		return "", err
	}
	given, err := parseOptions(value)
	if err != nil {
		return "", err
	}
	f := Feature{Path: dir, Name: m.Name, ContainerEnv: m.ContainerEnv, installsAfter: m.InstallsAfter}
	if f.Options, err = m.resolve(given); err != nil {
		return "", err
	}
	options, err := json.Marshal(f.Options) // sorted by name
	if err != nil {
		return "", err
	}
	f.key = dir + " " + string(options)
	if _, known := l.found[f.key]; known {
		return f.key, nil
	}
	l.found[f.key] = f // before what it depends on, which may depend on it: the order finds that out
	if f.dependsOn, err = l.loadAll(m.DependsOn); err != nil {
		return "", fmt.Errorf("dependsOn: %w", err)
	}
	l.found[f.key] = f
	return f.key, nil
}

// localPath gives the folder of a Feature by what names it.
func localPath(ref string) (string, error) {
	switch {
	case !strings.HasPrefix(ref, "./") && !strings.HasPrefix(ref, "../"):
		return "", errors.New(`expected a folder such as ./features/name: Features from a registry or a URL are not supported by the reference CLI`)
	case !fs.ValidPath(path.Clean(ref)) || path.Clean(ref) == ".":
		return "", errors.New("expected a folder below that of devcontainer.json")
	}
	return path.Clean(ref), nil
}

// metadata is what is read of a devcontainer-feature.json.
type metadata struct {
	ID, Version, Name string
	Options           map[string]option
	ContainerEnv      variables
	InstallsAfter     []string
	DependsOn         map[string]json.RawMessage
}

const supportedKeys = "id, version, name, options, containerEnv, installsAfter, dependsOn"

// describing are keys that change nothing that is installed or runs.
var describing = []string{"$schema", "description", "documentationURL", "licenseURL", "keywords", "customizations", "legacyIds", "deprecated"}

// metadata reads the devcontainer-feature.json in a folder. A key that would change what runs and is not supported is an error.
func (l loader) metadata(dir string) (m metadata, err error) {
	file := path.Join(dir, metadataFile)
	text, err := l.root.ReadFile(file)
	if err != nil {
		return m, err
	}
	if err := m.parse(text); err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	if m.ID != path.Base(dir) {
		return m, fmt.Errorf("%s: the key \"id\": expected the name of its folder, %q, seen %q", file, path.Base(dir), m.ID)
	}
	script := path.Join(dir, installScript)
	info, err := l.root.Stat(script)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: expected a file", script)
	}
	return m, err
}

func (m *metadata) parse(text []byte) error {
	plain, err := hujson.Standardize(text)
	if err != nil {
		return fmt.Errorf("not JSON with comments: %w", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(plain, &keys); err != nil {
		return fmt.Errorf("expected a JSON object: %w", err)
	}
	into := map[string]any{
		"id": &m.ID, "version": &m.Version, "name": &m.Name, "options": &m.Options, "containerEnv": &m.ContainerEnv,
		"installsAfter": &m.InstallsAfter, "dependsOn": &m.DependsOn,
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if slices.Contains(describing, key) {
			continue
		}
		target, ok := into[key]
		if !ok {
			return fmt.Errorf("the key %q is not supported by the reference CLI, which reads %s", key, supportedKeys)
		}
		if err := json.Unmarshal(keys[key], target); err != nil {
			return fmt.Errorf("the key %q: %w", key, err)
		}
	}
	for _, required := range []string{"id", "version", "name"} {
		if *into[required].(*string) == "" {
			return fmt.Errorf("the key %q is missing", required)
		}
	}
	return nil
}

// variables are those of a JSON object, in its order.
type variables []Variable

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// UnmarshalJSON implements json.Unmarshaler.
func (v *variables) UnmarshalJSON(text []byte) error {
	var values map[string]string
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	_, _ = d.Token() // the brace: it is known to be an object of strings
	for d.More() {
		name, _ := d.Token()
		_, _ = d.Token()
		one := Variable{Name: name.(string), Value: values[name.(string)]}
		switch {
		case !variableName.MatchString(one.Name):
			return fmt.Errorf("expected the name of a variable, seen %q", one.Name)
		case strings.ContainsAny(one.Value, "\r\n\x00"):
			return fmt.Errorf("%s: expected one line, seen %q", one.Name, one.Value)
		}
		*v = append(*v, one)
	}
	return nil
}
