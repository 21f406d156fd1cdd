package probe_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
)

// machines runs the script, which has the program in $0, in a PID namespace of its own, and gives what the program printed.
func machines(t *testing.T, stdin io.Reader, script string, args ...string) probe.Machines {
	t.Helper()
	result, err := proc.Run(t.Context(), proc.Cmd{
		Argv: append([]string{"sh", "-c", script, program}, args...), Stdin: stdin, Namespaces: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := probe.ParseMachines(result.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ownProc runs the program among the processes of the namespace alone, which are the shell and it. The shell's standard input is not the
// program's.
const ownProc = `mount -t proc proc /proc && "$0" machines </dev/null; exit $?`

func TestMachinesWithoutKVM(t *testing.T) {
	if got := machines(t, nil, ownProc); len(got.Processes) != 0 {
		t.Errorf("expected no machine, got %+v", got)
	}
}

// A machine that this test makes is held by the shell as its standard input. Where there is no KVM, TestMachinesOfAFakedProc has to do.
func TestMachinesOfKVM(t *testing.T) {
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Log("this machine has no /dev/kvm: nothing was tested")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer kvm.Close()
	const createVM = 0xAE01 // KVM_CREATE_VM
	fd, err := unix.IoctlRetInt(int(kvm.Fd()), createVM)
	if err != nil {
		t.Fatalf("make a machine of KVM: %v", err)
	}
	vm := os.NewFile(uintptr(fd), "kvm-vm")
	defer vm.Close()
	want := []probe.Machine{{PID: 1, Command: "sh -c " + ownProc + " " + program}}
	if got := machines(t, vm, ownProc); !reflect.DeepEqual(got.Processes, want) {
		t.Errorf("expected %+v, got %+v", want, got)
	}
}

// The kernel's own links are faked, so that this needs no KVM: they are symbolic links that lead nowhere.
func TestMachinesOfAFakedProc(t *testing.T) {
	fake := t.TempDir()
	process := func(pid, cmdline string, links ...string) {
		t.Helper()
		fds := filepath.Join(fake, pid, "fd")
		err := errors.Join(os.MkdirAll(fds, 0o755), os.WriteFile(filepath.Join(fake, pid, "cmdline"), []byte(cmdline), 0o600))
		for i, link := range links {
			err = errors.Join(err, os.Symlink(link, filepath.Join(fds, string(rune('0'+i)))))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	process("10", "msb\x00sandbox\x00--name a\x00", "/dev/null", "anon_inode:kvm-vm", "anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0")
	process("9", strings.Repeat("x", 300)+"\x00", "anon_inode:kvm-vm")
	process("8", "a VMM that has no machine\x00", "/dev/kvm", "anon_inode:kvm-vcpu:0")
	process("self", "no process\x00", "anon_inode:kvm-vm")
	if err := os.Mkdir(filepath.Join(fake, "7"), 0o755); err != nil { // it ended between two looks
		t.Fatal(err)
	}
	want := []probe.Machine{{PID: 9, Command: strings.Repeat("x", 200)}, {PID: 10, Command: "msb sandbox --name a"}}
	if got := machines(t, nil, `mount --bind "$1" /proc && exec "$0" machines`, fake); !reflect.DeepEqual(got.Processes, want) {
		t.Errorf("expected %+v, got %+v", want, got)
	}
}

// Whoever may not see what all processes have open cannot list the machines.
func TestMachinesAreRefusedWhatIsHidden(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Dir(dir)} { // which are the test's own
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(dir, "probe")
	content, err := os.ReadFile(program)
	if err := errors.Join(err, os.WriteFile(own, content, 0o755)); err != nil {
		t.Fatal(err)
	}
	result, err := proc.Run(t.Context(), proc.Cmd{Argv: append([]string{"setpriv", "--reuid=1000", "--clear-groups", own}, probe.MachinesArgs()...)})
	if result.ExitCode != 1 || !strings.Contains(string(result.Stderr), "permission denied") || len(result.Stdout) > 0 {
		t.Errorf("expected to be refused, got %v and %q", err, result.Stdout)
	}
}

func TestParseMachinesIsStrict(t *testing.T) {
	good := probe.Machines{Processes: []probe.Machine{{PID: 1, Command: "a \"b\""}, {PID: 22}}}
	if got, err := probe.ParseMachines(good.Line()); err != nil || !reflect.DeepEqual(got, good) {
		t.Fatalf("expected %+v, got %+v, %v", good, got, err)
	}
	for name, line := range map[string]string{
		"nothing":                  "",
		"no list":                  "{}\n",
		"null":                     `{"processes":null}` + "\n",
		"a process of no fields":   `{"processes":[{}]}` + "\n",
		"a process of no id":       string(probe.Machines{Processes: []probe.Machine{{Command: "x"}}}.Line()),
		"a command that is longer": string(probe.Machines{Processes: []probe.Machine{{PID: 1, Command: strings.Repeat("x", 601)}}}.Line()),
		"another command's":        string(probe.Tree{}.Line()),
		"a second line":            string(good.Line()) + "\n",
	} {
		if _, err := probe.ParseMachines([]byte(line)); err == nil {
			t.Errorf("%s: expected an error", name)
		}
	}
}
