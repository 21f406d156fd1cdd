// Package manifest reads provider.yaml, the manifest of a provider.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Manifest is what the reference CLI reads of a provider.yaml. Keys that it does not know are left alone: they are in Source.
type Manifest struct {
	Source  []byte // the whole file
	Name    string
	Version string
	Options map[string]string // every option's default; empty where it has none
	Agent   Agent
	Exec    string // the shell command that reaches the remote machine: it runs the one in its variable COMMAND there. Empty if Agent.Local
}

// Agent says how workspaces of the provider are run.
type Agent struct {
	Local    bool   // workspaces run on this machine, or else on a remote one
	Path     string // of the agent's executable on the remote
	URL      string // where the remote may download it from, as devsy-linux-<arch> below that; empty: it is not said here
	Driver   string
	External External
	Binaries map[string][]Binary // by key, one for each platform
	Runtime  string              // the key of Binaries that is the runtime; empty: nothing says which of several, see Choose
}

// External says which of the binaries is the runtime.
type External struct {
	Binary       string // a key of Binaries
	Args         []string
	ImageBackend string
}

// Binary is a program to download, for one platform.
type Binary struct {
	OS, Arch string
	URL      string
	SHA256   string // as it was written; Runtime gives one that was checked
	Name     string // of the file
}

// DefaultPath is where a remote has the agent's executable.
const DefaultPath = "/tmp/devsy"

// The drivers of a manifest.
const (
	DriverExternal = "external" // a runtime of its own, which agent.external names
	DriverCustom   = "custom"   // commands of the manifest's own, in agent.custom; they call what is in agent.binaries
)

// text is a scalar as it is written. YAML makes numbers, booleans and dates of what is not quoted, which would change a checksum of
// nothing but digits, or one with one e among them.
type text string

// UnmarshalYAML implements yaml.Unmarshaler.
func (t *text) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: expected a text", n.Line)
	}
	if n.Tag != "!!null" {
		*t = text(n.Value)
	}
	return nil
}

// form is the shape of a provider.yaml.
type form struct {
	Name    text            `yaml:"name"`
	Version text            `yaml:"version"`
	Options map[text]option `yaml:"options"`
	Agent   struct {
		Local    text `yaml:"local"`
		Path     text `yaml:"path"`
		URL      text `yaml:"downloadURL"`
		Driver   text `yaml:"driver"`
		External struct {
			Binary       text   `yaml:"binary"`
			Args         []text `yaml:"args"`
			ImageBackend text   `yaml:"imageBackend"`
		} `yaml:"external"`
		Binaries map[text][]struct {
			OS       text `yaml:"os"`
			Arch     text `yaml:"arch"`
			Path     text `yaml:"path"`
			Checksum text `yaml:"checksum"`
			Name     text `yaml:"name"`
		} `yaml:"binaries"`
	} `yaml:"agent"`
	Exec struct {
		Command text `yaml:"command"`
	} `yaml:"exec"`
}

type option struct {
	Default text `yaml:"default"`
}

// Parse reads a manifest and checks it: what is wrong for any platform is an error.
func Parse(source []byte) (*Manifest, error) {
	var f form
	if err := yaml.Unmarshal(source, &f); err != nil {
		return nil, fmt.Errorf("not a provider.yaml: %w", err)
	}
	m := &Manifest{Source: source, Name: string(f.Name), Version: string(f.Version), Options: map[string]string{}}
	for name, o := range f.Options {
		m.Options[string(name)] = string(o.Default)
	}
	switch f.Agent.Local {
	case "true":
		m.Agent.Local = true
	case "", "false":
	default:
		return nil, fmt.Errorf("agent.local: expected true or false, seen %q", f.Agent.Local)
	}
	if !m.Agent.Local {
		m.Exec, m.Agent.URL = string(f.Exec.Command), string(f.Agent.URL)
		m.Agent.Path = cmp.Or(string(f.Agent.Path), DefaultPath)
	}
	m.Agent.Driver = string(f.Agent.Driver)
	m.Agent.External = External{Binary: string(f.Agent.External.Binary), ImageBackend: string(f.Agent.External.ImageBackend)}
	for _, a := range f.Agent.External.Args {
		m.Agent.External.Args = append(m.Agent.External.Args, string(a))
	}
	m.Agent.Binaries = map[string][]Binary{}
	for key, list := range f.Agent.Binaries {
		for _, b := range list {
			m.Agent.Binaries[string(key)] = append(m.Agent.Binaries[string(key)],
				Binary{OS: string(b.OS), Arch: string(b.Arch), URL: string(b.Path), SHA256: string(b.Checksum), Name: string(b.Name)})
		}
	}
	return m, m.check()
}

var (
	keyForm    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	fileForm   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func (m *Manifest) check() error {
	if m.Name == "" {
		return errors.New("name: expected a provider's name, seen none")
	}
	if m.Agent.Driver != DriverExternal && m.Agent.Driver != DriverCustom {
		return fmt.Errorf("agent.driver: expected %q or %q, seen %q", DriverExternal, DriverCustom, m.Agent.Driver)
	}
	if err := m.checkRemote(); err != nil {
		return err
	}
	if m.Agent.Driver == DriverExternal {
		return m.setRuntime("agent.external.binary", m.Agent.External.Binary)
	}
	if keys := m.keys(); len(keys) == 1 { // else nothing says which of them it is
		return m.setRuntime("agent.binaries", keys[0])
	}
	return nil
}

// Choose says which of agent.binaries is the runtime, by its key. A manifest of the driver external
// says so itself: another key is an error there.
func (m *Manifest) Choose(key string) error {
	if m.Agent.Driver == DriverExternal && key != m.Agent.Runtime {
		return fmt.Errorf("agent.external.binary says that the runtime is %q: expected that one, seen %q", m.Agent.Runtime, key)
	}
	return m.setRuntime("the runtime's key", key)
}

// setRuntime makes a key that of the runtime, once its binaries were checked. What says where the
// key is from, in the error.
func (m *Manifest) setRuntime(what, key string) error {
	if key == "" {
		return fmt.Errorf("%s: expected the key of one of agent.binaries, seen none", what)
	}
	if len(m.Agent.Binaries[key]) == 0 {
		return fmt.Errorf("%s: expected a key of agent.binaries, which are %s; seen %q", what, listed(m.keys()), key)
	}
	if !keyForm.MatchString(key) {
		return fmt.Errorf("%s: expected letters, digits and underscores, seen %q", what, key)
	}
	for i := range m.Agent.Binaries[key] {
		if err := m.Agent.Binaries[key][i].check(m.Agent.Driver); err != nil {
			return fmt.Errorf("agent.binaries.%s[%d]: %w", key, i, err)
		}
	}
	m.Agent.Runtime = key
	return nil
}

func (m *Manifest) keys() []string { return slices.Sorted(maps.Keys(m.Agent.Binaries)) }

// ErrNoChoice is what the error is of a manifest that has no runtime, or several programs and no
// word on which of them it is.
var ErrNoChoice = errors.New("it is not known which of agent.binaries is the runtime")

// checkRemote checks what says how a remote machine is reached.
func (m *Manifest) checkRemote() error {
	if m.Agent.Local {
		return nil
	}
	if strings.TrimSpace(m.Exec) == "" {
		return errors.New("exec.command: agent.local is not true, so expected the shell command that reaches the remote machine, " +
			`such as ssh HOST "${COMMAND}"; seen none`)
	}
	if !path.IsAbs(m.Agent.Path) || path.Clean(m.Agent.Path) != m.Agent.Path || m.Agent.Path == "/" {
		return fmt.Errorf("agent.path: expected the absolute path of a file, with no dot and no further slash, seen %q", m.Agent.Path)
	}
	if m.Agent.URL == "" {
		return nil
	}
	return CheckDownloadURL("agent.downloadURL", m.Agent.URL)
}

// CheckDownloadURL checks a URL below which the agent's executables are. What names it in the error.
func CheckDownloadURL(what, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s: expected a URL of http or https without a query, seen %q", what, u.Redacted())
	}
	return nil
}

func (b *Binary) check(driver string) error {
	if b.OS == "" || b.Arch == "" {
		return fmt.Errorf("expected os and arch, seen %q and %q", b.OS, b.Arch)
	}
	u, err := url.Parse(b.URL)
	if err != nil {
		return fmt.Errorf("path: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("path: expected a URL of http or https, seen %q", b.URL)
	}
	if b.Name == "" {
		b.Name = path.Base(u.Path)
	}
	if !fileForm.MatchString(b.Name) {
		return fmt.Errorf("name: expected the name of a file, seen %q", b.Name)
	}
	if b.SHA256 == "" {
		return fmt.Errorf("checksum: the driver %q needs the SHA-256 of the file, seen none", driver)
	}
	sum := strings.ToLower(b.SHA256)
	if !sha256Form.MatchString(sum) {
		return fmt.Errorf("checksum: expected a SHA-256 of 64 hex digits, seen %d characters: %q", len(b.SHA256), b.SHA256)
	}
	b.SHA256 = sum
	return nil
}

// Runtime gives the key and the binary of the runtime for a platform. Where nothing says which of
// several binaries that is, the error is ErrNoChoice.
func (m *Manifest) Runtime(os, arch string) (key string, b Binary, err error) {
	key = m.Agent.Runtime
	if key == "" {
		return "", b, fmt.Errorf("agent.driver is %q, and agent.binaries has the keys %s: %w", m.Agent.Driver, listed(m.keys()), ErrNoChoice)
	}
	var others []string
	for _, b := range m.Agent.Binaries[key] {
		if b.OS == os && b.Arch == arch {
			return key, b, nil
		}
		others = append(others, b.OS+"/"+b.Arch)
	}
	return key, b, fmt.Errorf("agent.binaries.%s: expected a binary for this platform, %s/%s; seen %s", key, os, arch, listed(others))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
