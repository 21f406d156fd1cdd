package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Placement says where a provider's workspaces run, and from where its programs are downloaded.
type Placement struct {
	Local      bool   // on this machine: what follows for a remote one must be empty
	Exec       string // for a remote machine: exec.command, which reaches it
	AgentPath  string // for a remote machine: agent.path; empty leaves it
	AgentURL   string // for a remote machine: agent.downloadURL; empty takes it out
	RuntimeURL string // the path of the runtime for linux/amd64
	SHA256     string // its checksum, in hex; empty leaves it
	Runtime    string // the key of agent.binaries that is the runtime; empty: the manifest says so
}

// Place gives the same manifest with its provider placed elsewhere. A local one loses
// agent.downloadURL; its exec stays as it is, as CLIs ask for one in every manifest, and call it
// for a remote machine alone. All that a Placement does not name stays: unknown keys, order, and
// comments save those of what is taken out. Anchors and merge keys are written out, as a change
// behind one would be a change in all places that refer to it, and lines end with a line feed. What
// it gives was parsed, and says what was asked for.
func Place(source []byte, p Placement) ([]byte, error) {
	if p.Local && p.Exec+p.AgentPath+p.AgentURL != "" {
		return nil, fmt.Errorf("a provider on this machine has no exec.command, agent.path and agent.downloadURL, seen %q, %q and %q",
			p.Exec, p.AgentPath, p.AgentURL)
	}
	root, err := document(source)
	if err != nil {
		return nil, fmt.Errorf("not a provider.yaml: %w", err)
	}
	if err := p.apply(root.Content[0]); err != nil {
		return nil, err
	}
	var placed bytes.Buffer
	enc := yaml.NewEncoder(&placed)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(root), enc.Close()); err != nil {
		return nil, fmt.Errorf("write the placed manifest: %w", err)
	}
	if err := p.verify(placed.Bytes()); err != nil {
		return nil, fmt.Errorf("the placed manifest: %w", err)
	}
	return placed.Bytes(), nil
}

// document reads YAML whose root is a mapping, with no alias in it.
func document(source []byte) (*yaml.Node, error) {
	// The library refuses only here what would have no end written out, or a huge one.
	var values map[string]any
	if err := yaml.Unmarshal(source, &values); err != nil {
		return nil, err
	}
	var root yaml.Node
	// With the other line ends, comments would get one more each.
	if err := yaml.Unmarshal(bytes.ReplaceAll(source, []byte("\r\n"), []byte("\n")), &root); err != nil {
		return nil, err
	}
	if len(root.Content) == 0 || root.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("expected a mapping, seen none")
	}
	return writeOut(&root), nil
}

// writeOut gives a copy of a node in which aliases and merge keys are replaced by what they stand for.
func writeOut(n *yaml.Node) *yaml.Node {
	c := *n
	if n.Kind == yaml.AliasNode {
		c = *writeOut(n.Alias)
		c.HeadComment, c.LineComment, c.FootComment = n.HeadComment, n.LineComment, n.FootComment
		return &c
	}
	c.Anchor, c.Content = "", nil
	for _, child := range n.Content {
		c.Content = append(c.Content, writeOut(child))
	}
	if c.Kind == yaml.MappingNode {
		c.Content = merged(&c)
	}
	return &c
}

// merged gives the keys and values of a mapping, with those that come by a merge key in its place. A mapping's own keys take precedence
// over these, and of several mappings that are merged an earlier one.
func merged(m *yaml.Node) (content []*yaml.Node) {
	named := map[string]bool{}
	for i := 0; i < len(m.Content); i += 2 {
		named[m.Content[i].Value] = true
	}
	for i := 0; i < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		if key.ShortTag() != "!!merge" {
			content = append(content, key, value)
			continue
		}
		from := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			from = value.Content
		}
		for _, other := range from {
			for j := 0; j < len(other.Content); j += 2 {
				if name := other.Content[j].Value; !named[name] {
					named[name] = true
					content = append(content, other.Content[j], other.Content[j+1])
				}
			}
		}
	}
	return content
}

// apply makes the changes in the root mapping of a manifest.
func (p Placement) apply(root *yaml.Node) error {
	agent := get(root, "agent")
	runtime, err := p.runtimeNode(agent)
	if err != nil {
		return err
	}
	setText(runtime, "path", p.RuntimeURL)
	if p.SHA256 != "" {
		setText(runtime, "checksum", p.SHA256)
	}
	set(agent, "local", fmt.Sprint(p.Local), "!!bool", 0)
	if p.AgentURL == "" {
		remove(agent, "downloadURL")
	} else {
		setText(agent, "downloadURL", p.AgentURL)
	}
	if p.AgentPath != "" {
		setText(agent, "path", p.AgentPath)
	}
	if p.Local {
		return nil
	}
	exec := get(root, "exec")
	if exec == nil || exec.Kind != yaml.MappingNode {
		remove(root, "exec")
		exec = &yaml.Node{Kind: yaml.MappingNode}
		root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "exec"}, exec)
	}
	setText(exec, "command", p.Exec)
	return nil
}

// runtimeNode finds the entry of the runtime for linux/amd64.
func (p Placement) runtimeNode(agent *yaml.Node) (*yaml.Node, error) {
	binaries := get(agent, "binaries")
	key, where := p.Runtime, "the runtime's key"
	switch {
	case key != "":
	case textOf(agent, "driver") != DriverCustom:
		key, where = textOf(get(agent, "external"), "binary"), "the key in agent.external.binary"
	case binaries != nil && binaries.Kind == yaml.MappingNode && len(binaries.Content) == 2:
		key = binaries.Content[0].Value
	default:
		return nil, ErrNoChoice
	}
	if list := get(binaries, key); list != nil {
		for _, entry := range list.Content {
			if textOf(entry, "os") == "linux" && textOf(entry, "arch") == "amd64" {
				return entry, nil
			}
		}
	}
	return nil, fmt.Errorf("agent.binaries: expected an entry for linux/amd64 below %q, %s; seen none", key, where)
}

// verify checks that a manifest is one and says what was asked for.
func (p Placement) verify(placed []byte) error {
	m, err := Parse(placed)
	if err == nil && p.Runtime != "" {
		err = m.Choose(p.Runtime)
	}
	if err != nil {
		return err
	}
	_, runtime, err := m.Runtime("linux", "amd64")
	if err != nil {
		return err
	}
	for _, said := range []struct{ what, want, seen string }{
		{"agent.local", fmt.Sprint(p.Local), fmt.Sprint(m.Agent.Local)},
		{"exec.command", p.Exec, m.Exec},
		{"agent.path", cmp.Or(p.AgentPath, m.Agent.Path), m.Agent.Path},
		{"agent.downloadURL", p.AgentURL, m.Agent.URL},
		{"the runtime's path", p.RuntimeURL, runtime.URL},
		{"the runtime's checksum", cmp.Or(strings.ToLower(p.SHA256), runtime.SHA256), runtime.SHA256},
	} {
		if said.seen != said.want {
			return fmt.Errorf("%s: expected %q, seen %q", said.what, said.want, said.seen)
		}
	}
	return nil
}

// find gives the place of a key in the content of a mapping; -1 when it is not there, or n is no mapping.
func find(n *yaml.Node, key string) int {
	if n != nil && n.Kind == yaml.MappingNode {
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				return i
			}
		}
	}
	return -1
}

// get gives the value of a key of a mapping; nil when there is none.
func get(n *yaml.Node, key string) *yaml.Node {
	if i := find(n, key); i >= 0 {
		return n.Content[i+1]
	}
	return nil
}

func textOf(n *yaml.Node, key string) string {
	if value := get(n, key); value != nil && value.Kind == yaml.ScalarNode {
		return value.Value
	}
	return ""
}

// setText gives a key of a mapping a text, quoted: else a checksum could be a number.
func setText(n *yaml.Node, key, text string) { set(n, key, text, "!!str", yaml.DoubleQuotedStyle) }

// set gives a key of a mapping a scalar. A comment of the one that it had stays.
func set(n *yaml.Node, key, value, tag string, style yaml.Style) {
	v := get(n, key)
	if v == nil {
		v = &yaml.Node{}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, v)
	}
	v.Kind, v.Tag, v.Value, v.Style, v.Content = yaml.ScalarNode, tag, value, style, nil
}

func remove(n *yaml.Node, key string) {
	if i := find(n, key); i >= 0 {
		n.Content = append(n.Content[:i], n.Content[i+2:]...)
	}
}
