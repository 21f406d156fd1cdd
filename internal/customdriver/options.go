package customdriver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// RunOptions say what to run, as a CLI writes it. What is not here is not heeded.
type RunOptions struct {
	Image          string            `json:"image"`
	User           string            `json:"user"` // empty leaves it to the image
	Entrypoint     string            `json:"entrypoint"`
	Cmd            []string          `json:"cmd"`
	Env            map[string]string `json:"env"`
	Labels         []string          `json:"labels"` // KEY=VALUE
	WorkspaceMount *Mount            `json:"workspaceMount"`
	Mounts         []Mount           `json:"mounts"`
	Platform       string            `json:"platform"` // empty is the machine's own
	Privileged     bool              `json:"privileged"`
	CapAdd         []string          `json:"capAdd"`
	SecurityOpt    []string          `json:"securityOpt"`
	Userns         string            `json:"userns"`
	UIDMap         []string          `json:"uidMap"`
	GIDMap         []string          `json:"gidMap"`
}

// Mount is a mount of a workspace. A bind mount is a folder that the CLI itself copies into the
// machine; a volume is a folder that lives as long as the machine.
type Mount struct {
	Type   string `json:"type"`
	Source string `json:"source"`
	Target string `json:"target"`
}

// ParseRunOptions reads the options that a CLI has written.
func ParseRunOptions(text string) (RunOptions, error) {
	var o RunOptions
	trimmed := bytes.TrimSpace([]byte(text))
	if len(trimmed) == 0 || string(trimmed) == "null" {
		return o, fmt.Errorf("%s: expected what to run, in JSON, seen %q; the provider must not set canReprovision", EnvRunOptions, trimmed)
	}
	if err := json.Unmarshal(trimmed, &o); err != nil {
		return o, fmt.Errorf("%s: expected what to run, in JSON: %w; seen %.80q", EnvRunOptions, err, trimmed)
	}
	return o, nil
}

// Architecture is that of the machines: that of this machine.
func Architecture() string { return runtime.GOARCH }

// allMounts gives the mounts, save one that says nothing: a CLI gives that in place of none.
func (o RunOptions) allMounts() []Mount {
	all := o.Mounts
	if o.WorkspaceMount != nil {
		all = append(slices.Clone(all), *o.WorkspaceMount)
	}
	return slices.DeleteFunc(all, func(m Mount) bool { return m == Mount{} })
}

// privileges names the options that ask for more than a container's rights.
func (o RunOptions) privileges() (given []string) {
	if o.Privileged {
		given = append(given, "privileged")
	}
	for name, values := range map[string][]string{"capAdd": o.CapAdd, "securityOpt": o.SecurityOpt} {
		if len(values) > 0 {
			given = append(given, name+" "+strings.Join(values, " "))
		}
	}
	slices.Sort(given)
	return given
}

// state is what is to be known of the machine later.
func (o RunOptions) state() state {
	s := state{Labels: map[string]string{}, StartedAt: time.Now().UTC()}
	for _, label := range o.Labels {
		key, value, _ := strings.Cut(label, "=")
		s.Labels[key] = value
	}
	if o.Entrypoint != "" {
		s.Command = []string{o.Entrypoint}
	}
	s.Command = append(s.Command, o.Cmd...)
	for _, m := range o.allMounts() {
		if m.Type == "volume" {
			s.Folders = append(s.Folders, path.Clean(m.Target))
		}
	}
	return s
}
