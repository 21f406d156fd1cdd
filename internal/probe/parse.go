package probe

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"dagger/parity/internal/tree"
)

// VersionArgs are the arguments by which the program reports its version.
func VersionArgs() []string { return []string{"--version"} }

// TCPArgs are the arguments by which the program dials addr and asks for nonce (letters, digits, '-', '_' and '.', up to 128). The
// timeout is for all of it.
func TCPArgs(addr netip.AddrPort, nonce string, timeout time.Duration) []string {
	return []string{"tcp", "--address", addr.String(), "--nonce", nonce, "--timeout", timeout.String()}
}

// SweepArgs are the arguments by which the program tries all targets with a nonce, which is fit for a DNS label too. A TCP try has the
// timeout, any other is over after the silence.
func SweepArgs(targets []Target, nonce string, timeout, silence time.Duration) []string {
	args := []string{"sweep", "--nonce", nonce, "--timeout", timeout.String(), "--silence", silence.String()}
	for _, t := range targets {
		addr := t.Addr.String()
		if t.AtResolver {
			addr = fmt.Sprintf("%s:%d", Resolver, t.Addr.Port())
		}
		args = append(args, "--try", fmt.Sprintf("%s=%s:%s", t.Name, t.Kind, addr))
	}
	return args
}

// BootIDArgs are the arguments by which the program reports the boot id.
func BootIDArgs() []string { return []string{"boot-id"} }

// MarkerWriteArgs are the arguments by which the program writes value to path (absolute) and reports it.
func MarkerWriteArgs(path, value string) []string { return []string{"marker", "write", path, value} }

// MarkerReadArgs are the arguments by which the program reports the marker at path (absolute).
func MarkerReadArgs(path string) []string { return []string{"marker", "read", path} }

// TreeArgs are the arguments by which the program lists the root file system: what is at and below the paths (absolute), or all of it.
func TreeArgs(below ...string) []string {
	args := []string{"tree"}
	for _, path := range below {
		args = append(args, "--below", path)
	}
	return args
}

// FileArgs are the arguments by which the program describes the file at path (absolute).
func FileArgs(path string) []string { return []string{"file", path} }

// MachinesArgs are the arguments by which the program lists the processes that hold a machine of KVM: only those with the environ (KEY=VALUE)
// in their environment, unless it is empty.
func MachinesArgs(environ string) []string {
	if environ == "" {
		return []string{"machines"}
	}
	return []string{"machines", "--env", environ}
}

// RunningArgs are the arguments by which the program lists the processes that run the very file at path (absolute).
func RunningArgs(path string) []string { return []string{"running", path} }

// ParseVersion reads what the program printed for VersionArgs. Like all Parse functions it accepts exactly the one line that the
// program of this version prints for some result; the error of anything else shows its first 200 bytes.
func ParseVersion(stdout []byte) (v Version, err error) {
	err = parse("--version", stdout, &v, func() bool { return v.Program == Program })
	return v, err
}

// ParseTCP reads what the program printed for TCPArgs; see ParseVersion.
func ParseTCP(stdout []byte) (t TCP, err error) {
	err = parse("tcp", stdout, &t, func() bool {
		return slices.Contains(Outcomes, t.Outcome) && slices.Contains([]Stage{StageConnect, StageWrite, StageRead}, t.Stage)
	})
	return t, err
}

// ParseSweep reads what the program printed for SweepArgs; see ParseVersion.
func ParseSweep(stdout []byte) (s Sweep, err error) {
	err = parse("sweep", stdout, &s, func() bool {
		return !slices.ContainsFunc(s.Tries, func(t Try) bool { return t.Name == "" || !slices.Contains(SweepOutcomes, t.Outcome) })
	})
	return s, err
}

// ParseBootID reads what the program printed for BootIDArgs; see ParseVersion.
func ParseBootID(stdout []byte) (b BootID, err error) {
	err = parse("boot-id", stdout, &b, func() bool { return b.BootID != "" })
	return b, err
}

// ParseMarker reads what the program printed for MarkerWriteArgs or MarkerReadArgs; see ParseVersion.
func ParseMarker(stdout []byte) (m Marker, err error) {
	err = parse("marker", stdout, &m, func() bool { return m.Path != "" && m.MountPoint != "" })
	return m, err
}

// ParseTree reads what the program printed for TreeArgs; see ParseVersion.
func ParseTree(stdout []byte) (t Tree, err error) {
	err = parse("tree", stdout, &t, func() bool {
		return !slices.ContainsFunc(t.Entries, func(e tree.Entry) bool {
			return !strings.HasPrefix(e.Path, "/") || !slices.Contains(tree.Types, e.Type)
		})
	})
	return t, err
}

// ParseFile reads what the program printed for FileArgs; see ParseVersion.
func ParseFile(stdout []byte) (f File, err error) {
	err = parse("file", stdout, &f, func() bool { return f.known() })
	return f, err
}

// known says whether the program could print this.
func (f *File) known() bool {
	if f.Type == Missing {
		return path.IsAbs(f.Path) && *f == File{Path: f.Path, Type: Missing}
	}
	_, notHex := hex.DecodeString(f.SHA256)
	_, notTime := time.Parse(timeForm, f.Born)
	_, notModified := time.Parse(timeForm, f.Modified)
	regular := len(f.SHA256) == 64 && notHex == nil
	return path.IsAbs(f.Path) && slices.Contains(tree.Types, f.Type) && f.Type != tree.Mount && f.Mode <= 0o7777 && f.Inode != 0 &&
		(f.Type == tree.File && regular || f.Type != tree.File && f.SHA256 == "" && f.Size == 0) && (f.Born == "" || notTime == nil) && notModified == nil
}

// ParseProcesses reads what the program printed for MachinesArgs or RunningArgs; see ParseVersion.
func ParseProcesses(stdout []byte) (p Processes, err error) {
	err = parse("machines or running", stdout, &p, func() bool {
		return !slices.ContainsFunc(p.List, func(one Process) bool { return one.PID <= 0 || len(one.Command) > 3*maxCommand })
	})
	return p, err
}

// parse decodes stdout into result. Encoding the result again and comparing catches at once what encoding/json lets pass: unknown,
// missing and repeated keys, keys in another case, a second line.
func parse(command string, stdout []byte, result interface{ Line() []byte }, known func() bool) error {
	if err := json.Unmarshal(stdout, result); err != nil {
		return unusable(command, stdout, err.Error())
	}
	if !bytes.Equal(result.Line(), stdout) {
		return unusable(command, stdout, "it is not what this version of the program would print")
	}
	if !known() {
		return unusable(command, stdout, "a field has a value that is not known")
	}
	return nil
}

func unusable(command string, stdout []byte, why string) error {
	shown, more := stdout, ""
	if len(stdout) > 200 {
		shown, more = stdout[:200], fmt.Sprintf(" and %d bytes more", len(stdout)-200)
	}
	return fmt.Errorf("expected the one JSON line of `%s %s`, got %q%s: %s", Program, command, shown, more, why)
}
