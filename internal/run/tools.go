package run

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/remote"
	"dagger/parity/internal/adapter"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/report"
	"dagger/parity/internal/standin"
	"dagger/parity/internal/step"
)

// Tools are the programs that a run needs.
type Tools struct {
	Self  string      // parity
	Agent string      // parity-agent, for the reference CLI
	Cases cases.Tools // those that the cases use; Patience is the run's

	// What the report's head says of them.
	Subject      report.Subject
	MicroSandbox report.MicroSandbox
	External     *report.External // the external provider; nil if the run has none
	Served       *report.Agent    // what remote-agent serves as the agent; nil if that is the subject itself
	Visit        string           // the URL of the remote machine, if it is not Parity's own

	speak *adapter.Adapter // how the subject is spoken to
	used  []usedProgram    // those that the run stands on, as they were when it began
}

// usedProgram is a program and the SHA-256 that it had when it was looked at.
type usedProgram struct {
	what, path, sha256 string
}

// changed holds the programs that the run used against the hashes that they had when it began: one that is another now may have been
// another for some of the run's cases, and the report names only one hash.
func (t Tools) changed() []string {
	var problems []string
	for _, p := range t.used {
		now, err := HashFile(p.path)
		const next = "run again, and leave the program alone until the run has ended"
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s %s had the SHA-256 %s when the run began, and cannot be read any more (%v): "+
				"the report may be of two programs; %s", p.what, p.path, p.sha256, err, next))
		} else if now != p.sha256 {
			problems = append(problems, fmt.Sprintf("%s %s was replaced during the run: it had the SHA-256 %s when the run began, and has %s now: "+
				"the report may be of two programs; %s", p.what, p.path, p.sha256, now, next))
		}
	}
	return problems
}

// ToolOptions say which programs a run uses instead of its own.
type ToolOptions struct {
	Programs           string   // a folder with Parity's own programs; empty means this program, and those beside it
	Cache              string   // Parity's cache folder, with the pinned MicroSandbox
	MicroSandbox       string   // a folder with bin/msb; empty means the pinned one
	MicroSandboxSHA256 string   // what its msb must have; empty means that it is unpinned
	StandIn            bool     // use the stand-in for msb
	Subject            string   // a workspace CLI; empty means the reference CLI
	Adapter            string   // the file of the adapter by which Subject is spoken to; empty: the contract
	SubjectPath        []string // folders of programs for the subject's PATH
	BuiltinSource      string   // the SOURCE of the built-in provider; empty: the adapter's

	External        bool   // the run has cases of the external provider
	ExternalSource  string // a file, a folder or a URL of its provider.yaml; empty means the reference one
	ExternalBinary  string // the key of the runtime in the agent.binaries of that; empty means that it says so itself
	ExternalRuntime string // a runtime around which a manifest is made, in place of ExternalSource
	Egress          bool   // the run has cases of egress, which need the provider's options to deny it
	Folder          string // an existing folder for what is made for it

	AgentFile string // what is served as the subject's agent to a remote machine; empty means the subject's own program file

	Docker     bool   // the run has cases with a Docker Engine
	Remote     bool   // the run has cases with a remote machine, in an engine of their own
	Visit      Visit  // the remote machine; without a URL, one of the cases' own
	DockerHost string // an existing one, as DOCKER_HOST has it; empty means engines of the cases' own
}

// ErrOption is what an error about a program that the user named is.
var ErrOption = errors.New("bad option")

// FindTools finds the programs and checks them: each is there, is for this machine, and msb has the SHA-256 that is expected of it.
func FindTools(ctx context.Context, o ToolOptions) (Tools, error) {
	self, err := os.Executable()
	if o.Programs != "" {
		self, err = filepath.Join(o.Programs, "parity"), nil
	}
	if err != nil {
		return Tools{}, err
	}
	t := Tools{Self: self, Agent: beside(self, "parity-agent")}
	t.Cases.Probe, t.Cases.StandIn = beside(self, "parity-probe"), o.StandIn
	sums := map[string]string{}
	for _, path := range []string{t.Self, t.Cases.Probe, t.Agent} {
		if sums[path], err = checkProgram(path); err != nil {
			return t, fmt.Errorf("%w: %w: build it with scripts/build", ErrTool, err)
		}
	}
	if err := t.findMicroSandbox(ctx, o, sums[t.Self]); err != nil {
		if o.MicroSandbox != "" {
			return t, fmt.Errorf("%w --microsandbox: %w", ErrOption, err)
		}
		return t, fmt.Errorf("%w: %w: run scripts/setup", ErrTool, err)
	}
	t.Cases.Subject, t.Subject = []string{self, "devsy"}, report.Subject{Kind: "reference", Name: "parity devsy"}
	if o.Subject != "" {
		path, err := filepath.Abs(o.Subject)
		if err != nil {
			return t, err
		}
		t.Cases.Subject, t.Subject = []string{path}, report.Subject{Kind: "file", Name: filepath.Base(path)}
	}
	if err := t.findAdapter(o); err != nil {
		return t, fmt.Errorf("%w %w", ErrOption, err)
	}
	if t.Subject.SHA256, err = checkProgram(t.Cases.Subject[0]); err != nil {
		return t, fmt.Errorf("%w --subject: %w", ErrOption, err)
	}
	t.used = append(t.used, usedProgram{"parity", t.Self, sums[t.Self]}, usedProgram{"parity-probe", t.Cases.Probe, sums[t.Cases.Probe]})
	if !o.StandIn { // which is in parity
		t.used = append(t.used, usedProgram{"MicroSandbox's msb", t.Cases.MSB, t.MicroSandbox.SHA256})
	}
	if o.Subject == "" { // the reference CLI brings the agent into its guests
		t.used = append(t.used, usedProgram{"parity-agent", t.Agent, sums[t.Agent]})
	} else {
		t.used = append(t.used, usedProgram{"the subject", t.Cases.Subject[0], t.Subject.SHA256})
	}
	t.Cases.AgentFile = t.Cases.Subject[0]
	if o.AgentFile != "" {
		if err := t.serveAgent(o.AgentFile); err != nil {
			return t, fmt.Errorf("%w --agent: %w", ErrOption, err)
		}
	}
	if o.DockerHost != "" {
		if err := docker.CheckHost(o.DockerHost); err != nil {
			return t, fmt.Errorf("%w --docker-host %q: %w", ErrOption, o.DockerHost, err)
		}
	}
	own := o.Remote && o.Visit.URL == ""
	if o.Docker || own {
		programs := docker.ProgramsIn(o.Cache)
		if err := programs.Check(); err != nil {
			return t, fmt.Errorf("%w: %w", ErrTool, err)
		}
		t.Cases.Docker = cases.Docker{Programs: programs, Host: o.DockerHost}
	}
	if own {
		root := remote.RootIn(o.Cache)
		if err := root.Check(); err != nil {
			return t, fmt.Errorf("%w: %w", ErrTool, err)
		}
		t.Cases.Remote.Root = root
	}
	if o.Visit.URL != "" {
		target, err := o.Visit.target()
		if err != nil {
			return t, fmt.Errorf("%w --remote %q: %w", ErrOption, o.Visit.Redacted(), err)
		}
		t.Visit, t.Cases.Remote.Target = fmt.Sprintf("ssh://%s@%s", target.User, target.Address), filepath.Join(o.Folder, "remote.json")
		if err := target.WriteFile(t.Cases.Remote.Target); err != nil {
			return t, err
		}
	}
	if o.External {
		e, head, err := findExternal(ctx, o, beside(self, runtimeName), t.speak, t.Self)
		if err != nil {
			return t, err
		}
		t.Cases.External, t.External = e, &head
		t.used = append(t.used, usedProgram{"the external provider's runtime", e.Runtime, head.SHA256})
	}
	return t, nil
}

// findAdapter reads the adapter, and takes what else the user says of how the subject is spoken to.
// The error goes on after "bad option".
func (t *Tools) findAdapter(o ToolOptions) error {
	for _, dir := range o.SubjectPath {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fmt.Errorf("--subject-path %q: %w", dir, err)
		}
		if info, err := os.Stat(abs); dir == "" || err != nil || !info.IsDir() || strings.Contains(abs, ":") {
			return fmt.Errorf("--subject-path %q: expected an existing folder of programs, without a colon in its name", dir)
		}
		t.Cases.Path = append(t.Cases.Path, abs)
	}
	t.Cases.Builtin = o.BuiltinSource
	if o.Adapter == "" {
		t.speak = adapter.Contract()
		return nil
	}
	if o.Subject == "" {
		return fmt.Errorf("--adapter %q: it goes with --subject, the CLI that it is for: the reference CLI speaks the contract", o.Adapter)
	}
	text, a, err := adapter.Load(o.Adapter)
	if err != nil {
		return fmt.Errorf("--adapter: %w; see docs/adapters.md, and `parity adapter check FILE`", err)
	}
	if o.Egress && len(a.Deny) == 0 {
		return fmt.Errorf("--adapter %q: deny: expected the provider's options with which the cases of egress deny it, seen none; add them, or run other scenarios", o.Adapter)
	}
	sum := sha256.Sum256(text)
	t.speak, t.Cases.Adapter, t.Cases.AgentName = a, string(text), a.Agent
	t.Subject.Adapter = &report.Adapter{Name: filepath.Base(o.Adapter), For: a.Name, SHA256: hex.EncodeToString(sum[:])}
	for _, d := range a.Deviations() {
		t.Subject.Adapter.Deviations = append(t.Subject.Adapter.Deviations, d.Text)
	}
	t.used = append(t.used, usedProgram{"the adapter", o.Adapter, t.Subject.Adapter.SHA256})
	return nil
}

// serveAgent has a file served as the subject's agent.
func (t *Tools) serveAgent(file string) error {
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	sum, err := checkProgram(path)
	if err != nil {
		return err
	}
	t.Cases.AgentFile, t.Served = path, &report.Agent{Name: filepath.Base(path), SHA256: sum}
	t.used = append(t.used, usedProgram{"the agent", path, sum})
	return nil
}

// versionDeadline bounds `msb --version`, which takes milliseconds.
const versionDeadline = 30 * time.Second

// findMicroSandbox finds msb, or the stand-in for it, which is in parity: self is the SHA-256 of that.
func (t *Tools) findMicroSandbox(ctx context.Context, o ToolOptions, self string) error {
	if o.StandIn {
		t.MicroSandbox = report.MicroSandbox{Version: standin.Version(), SHA256: self, Pin: "unpinned", StandIn: true}
		return nil
	}
	pinned := msb.PinnedRelease()
	path, want, pin := filepath.Join(o.MicroSandbox, "bin", "msb"), o.MicroSandboxSHA256, "pinned"
	switch {
	case o.MicroSandbox == "":
		path, want = pinned.Path(o.Cache), pinned.SHA256
	case want == "":
		pin = "unpinned"
	}
	var err error
	if t.Cases.MSB, err = filepath.Abs(path); err != nil {
		return err
	}
	sum, err := checkProgram(t.Cases.MSB)
	if err != nil {
		return err
	}
	if want != "" && !strings.EqualFold(sum, want) {
		return fmt.Errorf("%s is not the msb that was asked for: expected SHA-256 %s, seen %s", t.Cases.MSB, want, sum)
	}
	client := msb.Client{Path: t.Cases.MSB, Home: filepath.Join(o.Cache, "msb-home")} // --version makes no home
	ctx, cancel := context.WithTimeout(ctx, versionDeadline)
	defer cancel()
	version, err := client.Version(ctx)
	if err != nil {
		return err
	}
	if strings.Contains(version, "standin") || self == sum {
		return fmt.Errorf("%s is Parity's stand-in for msb, and no MicroSandbox: ask for it with --standin", t.Cases.MSB)
	}
	t.MicroSandbox = report.MicroSandbox{Version: version, SHA256: sum, Pin: pin}
	return nil
}

// patient returns what deadlines are multiplied by: the run's patience times the adapter's. 0 is 1.
func (t Tools) patient(patience float64) float64 {
	patience = cmp.Or(patience, 1)
	if t.speak != nil {
		patience *= t.speak.Patience
	}
	return patience
}

// AdapterPatience returns the patience of an adapter in a file; 1 if there is none. What is wrong with
// the file is for FindTools to say.
func AdapterPatience(file string) float64 {
	if _, a, err := adapter.Load(file); file != "" && err == nil {
		return a.Patience
	}
	return 1
}

// step returns the command of a step. It completes the step's setup and writes it to a file in
// folder, which exists.
func (t Tools) step(folder string, patience float64, setup step.Setup) (argv []string, err error) {
	setup.Tools = t.Cases
	setup.Patience = t.patient(patience)
	file, err := os.CreateTemp(folder, "setup-*.json")
	if err != nil {
		return nil, err
	}
	err = errors.Join(file.Close(), setup.WriteFile(file.Name()))
	return []string{t.Self, "step", "--setup", file.Name()}, err
}

func beside(program, name string) string { return filepath.Join(filepath.Dir(program), name) }

// checkProgram checks that path is an executable file, a script or a program for this machine, and gives its SHA-256 in hex.
func checkProgram(path string) (string, error) {
	info, err := os.Stat(path) // before it is opened: opening a named pipe would wait
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s is not an executable file (%s)", path, info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := checkFormat(f); err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	return HashFile(path)
}

// checkFormat checks that the kernel can run f: a program for this machine, or a script whose interpreter is there. The error goes
// on after the file's name.
func checkFormat(f *os.File) error {
	head := make([]byte, 256) // the kernel reads no more of a script's first line
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cannot be read: %w", err)
	}
	head = head[:n]
	const expected = "expected an ELF program for x86-64, or a script that begins with #! and its interpreter"
	switch {
	case len(head) == 0:
		return errors.New("is empty: " + expected)
	case bytes.HasPrefix(head, []byte("#!")):
		line, _, _ := strings.Cut(string(head[2:]), "\n")
		words := strings.Fields(line)
		if len(words) == 0 {
			return errors.New("is a script that names no interpreter after #!: " + expected)
		}
		if _, err := os.Stat(words[0]); err != nil {
			return fmt.Errorf("is a script whose interpreter is not there: %w", err)
		}
		return nil
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		program, err := elf.NewFile(f)
		switch {
		case err != nil:
			return fmt.Errorf("is a broken ELF file: %w; %s", err, expected)
		case program.Machine != elf.EM_X86_64:
			return fmt.Errorf("is for another machine (%s), and this one is %s", program.Machine, elf.EM_X86_64)
		case program.Type != elf.ET_EXEC && program.Type != elf.ET_DYN:
			return fmt.Errorf("is an ELF file that is no program (%s): %s", program.Type, expected)
		}
		return nil
	}
	return fmt.Errorf("is neither a program nor a script, it begins with %.24q: %s", head, expected)
}

// HashFile gives the SHA-256 of a file in hex.
func HashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
