package customdriver

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Binary is the key, and so the variable, under which a CLI that has downloaded this program says
// where it is.
const Binary = "PARITY_DRIVER"

// Version is that of the provider.yaml.
const Version = "v1.0.0"

// Custom is the driver, in an adapter, for which the CLI calls `parity driver`.
const Custom = "custom"

// Provider says what provider.yaml to write.
type Provider struct {
	Program string // this program, where the CLI's agent runs; or empty, and
	URL     string // where the agent downloads it from, and
	SHA256  string // what it must be: 64 hex digits

	MemoryMiB int    // of a machine, if the user says nothing; 0 means 2048
	Exec      string // how to run the shell command ${COMMAND} where the agent is to run; empty is on this machine
}

// YAML gives the provider.yaml, which DevPod and Devsy both take.
func (p Provider) YAML() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	var a agent
	a.Local, a.Driver = p.Exec == "", "custom"
	for name, into := range map[string]*any{
		"find": &a.Custom.Find, "exec": &a.Custom.Command, "arch": &a.Custom.Architecture, "run": &a.Custom.Run, "start": &a.Custom.Start,
		"stop": &a.Custom.Stop, "delete": &a.Custom.Delete, "logs": &a.Custom.Logs,
	} {
		if p.URL == "" {
			*into = []string{p.Program, "driver", name} // a list is run as it is, a text in a shell
		} else {
			*into = fmt.Sprintf(`"${%s}" driver %s`, Binary, name)
		}
	}
	if p.URL != "" {
		a.Binaries = map[string][]binary{Binary: {{OS: "linux", Arch: Architecture(), Path: p.URL, Checksum: quoted(strings.ToLower(p.SHA256)), Name: "parity"}}}
	}
	m := manifest{Name: "microsandbox", Version: Version, Description: "Workspaces as MicroSandbox microVMs", Options: p.options(), Agent: a}
	if m.Exec.Command = p.Exec; p.Exec == "" {
		m.Exec.Command = `sh -c "${COMMAND}"`
	}
	return yaml.Marshal(m)
}

var checksum = regexp.MustCompile(`^[0-9A-Fa-f]{64}$`)

func (p Provider) check() error {
	if p.Exec != "" && !strings.Contains(p.Exec, "${COMMAND}") {
		return fmt.Errorf("--exec %q: expected a shell command that runs ${COMMAND}, such as ssh host \"${COMMAND}\"", p.Exec)
	}
	if p.URL == "" && p.SHA256 == "" {
		return p.checkProgram()
	}
	switch u, err := url.Parse(p.URL); {
	case p.Program != "":
		return fmt.Errorf("--program and --binary-url: expected one of them; a program that is downloaded is nowhere yet")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("--binary-url %q: expected an http or https URL, together with --sha256", p.URL)
	case !checksum.MatchString(p.SHA256):
		return fmt.Errorf("--sha256 %q: expected the 64 hex digits that sha256sum prints of the program", p.SHA256)
	}
	return nil
}

// checkProgram refuses a program that is not there. Where the agent runs elsewhere, that cannot be
// told.
func (p Provider) checkProgram() error {
	if !filepath.IsAbs(p.Program) {
		return fmt.Errorf("--program %q: expected an absolute path", p.Program)
	}
	if p.Exec != "" {
		return nil
	}
	info, err := os.Stat(p.Program)
	if err != nil {
		return fmt.Errorf("--program: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("--program %s: expected an executable file, seen %s", p.Program, info.Mode())
	}
	return nil
}

// quoted is a text that is always in quotes: some YAML libraries take digits for a number.
type quoted string

// MarshalYAML implements yaml.Marshaler.
func (q quoted) MarshalYAML() (any, error) {
	return &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: string(q)}, nil
}

type manifest struct {
	Name        string            `yaml:"name"`
	Version     string            `yaml:"version"`
	Description string            `yaml:"description"`
	Options     map[string]option `yaml:"options"`
	Agent       agent             `yaml:"agent"`
	Exec        struct {
		Command string `yaml:"command"`
	} `yaml:"exec"`
}

type option struct {
	Description string `yaml:"description"`
	Default     quoted `yaml:"default,omitempty"`
}

type agent struct {
	Local    bool                `yaml:"local"`
	Driver   string              `yaml:"driver"`
	Binaries map[string][]binary `yaml:"binaries,omitempty"`
	Custom   struct {
		Find         any `yaml:"findDevContainer"`
		Command      any `yaml:"commandDevContainer"`
		Architecture any `yaml:"targetArchitecture"`
		Run          any `yaml:"runDevContainer"`
		Start        any `yaml:"startDevContainer"`
		Stop         any `yaml:"stopDevContainer"`
		Delete       any `yaml:"deleteDevContainer"`
		Logs         any `yaml:"getDevContainerLogs"`
	} `yaml:"custom"`
}

type binary struct {
	OS       string `yaml:"os"`
	Arch     string `yaml:"arch"`
	Path     string `yaml:"path"`
	Checksum quoted `yaml:"checksum"`
	Name     string `yaml:"name"`
}

// options are those that package msbdriver parses.
func (p Provider) options() map[string]option {
	return map[string]option{
		"MICROSANDBOX_MEMORY":       {"Memory of a machine in MiB", quoted(strconv.Itoa(cmp.Or(p.MemoryMiB, 2048)))},
		"MICROSANDBOX_MAX_MEMORY":   {"Memory in MiB that a machine can be given while it runs", ""},
		"MICROSANDBOX_CPUS":         {"Processors of a machine", "1"},
		"MICROSANDBOX_MAX_CPUS":     {"Processors that a machine can be given while it runs", ""},
		"MICROSANDBOX_STORAGE":      {"Size of a machine's root disk in GiB", ""},
		"MICROSANDBOX_BLOCK_EGRESS": {"true: a machine can open no connection to the outside", "false"},
		"INACTIVITY_TIMEOUT":        {"After how long without activity a machine is stopped, such as 30m", ""},
	}
}
