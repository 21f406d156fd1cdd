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
func machines(t *testing.T, stdin io.Reader, script string, args ...string) probe.Processes {
	t.Helper()
	result, err := proc.Run(t.Context(), proc.Cmd{
		Argv: append([]string{"sh", "-c", script, program}, args...), Stdin: stdin, Namespaces: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := probe.ParseProcesses(result.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ownProc runs the program among the processes of the namespace alone, which are the shell and it. The shell's standard input is not the
// program's.
const ownProc = `mount -t proc proc /proc && "$0" machines </dev/null; exit $?`

func TestMachinesWithoutKVM(t *testing.T) {
	if got := machines(t, nil, ownProc); len(got.List) != 0 {
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
	want := []probe.Process{{PID: 1, Command: "sh -c " + ownProc + " " + program}}
	if got := machines(t, vm, ownProc); !reflect.DeepEqual(got.List, want) {
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
	want := []probe.Process{{PID: 9, Command: strings.Repeat("x", 200)}, {PID: 10, Command: "msb sandbox --name a"}}
	if got := machines(t, nil, `mount --bind "$1" /proc && exec "$0" machines`, fake); !reflect.DeepEqual(got.List, want) {
		t.Errorf("expected %+v, got %+v", want, got)
	}
}

// With an entry of the environment, machines of processes without it are not listed, and those of others, who may not be looked at, neither.
func TestMachinesOfAnEnvironment(t *testing.T) {
	fake := t.TempDir()
	for pid, environ := range map[string]string{"3": "A=1\x00RUN=mine\x00", "4": "RUN=mine2\x00A=1\x00", "5": "", "6": "RUN=mine\x00"} {
		dir := filepath.Join(fake, pid)
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "fd"), 0o755), os.WriteFile(filepath.Join(dir, "cmdline"), []byte("vm "+pid+"\x00"), 0o600),
			os.WriteFile(filepath.Join(dir, "environ"), []byte(environ), 0o600))
		if pid != "6" { // which holds none
			err = errors.Join(err, os.Symlink("anon_inode:kvm-vm", filepath.Join(dir, "fd", "7")))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []probe.Process{{PID: 3, Command: "vm 3"}}
	if got := machines(t, nil, `mount --bind "$1" /proc && exec "$0" machines --env RUN=mine`, fake); !reflect.DeepEqual(got.List, want) {
		t.Errorf("expected %+v, got %+v", want, got)
	}
	result, err := proc.Run(t.Context(), proc.Cmd{
		Argv: append([]string{"setpriv", "--reuid=1000", "--clear-groups", ownProgram(t)}, probe.MachinesArgs("NOBODY=has this")...),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := probe.ParseProcesses(result.Stdout); err != nil || len(got.List) > 0 {
		t.Errorf("expected no process, got %+v, %v", got, err)
	}
}

// A process runs the file that it was started from, whatever has its name by now, and no copy of it.
func TestRunning(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	sleep, err := os.ReadFile("/bin/sleep")
	if err = errors.Join(err, os.WriteFile(in("a"), sleep, 0o755), os.WriteFile(in("copy"), sleep, 0o755)); err != nil {
		t.Fatal(err)
	}
	held, err := proc.Start(t.Context(), proc.Cmd{Argv: []string{in("a"), "600"}})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Stop()
	if err := errors.Join(os.Rename(in("a"), in("b")), os.Rename(in("copy"), in("a"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]probe.Process{"a": {}, "b": {{PID: held.PID(), Command: in("a") + " 600"}}} {
		stdout, _ := run(t, 0, probe.RunningArgs(in(name))...)
		if got, err := probe.ParseProcesses([]byte(stdout)); err != nil || !reflect.DeepEqual(got.List, want) {
			t.Errorf("%s: expected %+v, got %+v, %v", name, want, got, err)
		}
	}
	if stdout, stderr := run(t, 1, probe.RunningArgs(in("none"))...); stdout != "" || !strings.Contains(stderr, in("none")) {
		t.Errorf("expected an error that names the file, got %q and %q", stdout, stderr)
	}
}

// ownProgram is a copy of the program that any user may run.
func ownProgram(t *testing.T) string {
	t.Helper()
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
	return own
}

// Whoever may not see what all processes have open cannot list the machines.
func TestMachinesAreRefusedWhatIsHidden(t *testing.T) {
	result, err := proc.Run(t.Context(), proc.Cmd{Argv: append([]string{"setpriv", "--reuid=1000", "--clear-groups", ownProgram(t)}, probe.MachinesArgs("")...)})
	if result.ExitCode != 1 || !strings.Contains(string(result.Stderr), "permission denied") || len(result.Stdout) > 0 {
		t.Errorf("expected to be refused, got %v and %q", err, result.Stdout)
	}
}

func TestParseProcessesIsStrict(t *testing.T) {
	good := probe.Processes{List: []probe.Process{{PID: 1, Command: "a \"b\""}, {PID: 22}}}
	if got, err := probe.ParseProcesses(good.Line()); err != nil || !reflect.DeepEqual(got, good) {
		t.Fatalf("expected %+v, got %+v, %v", good, got, err)
	}
	for name, line := range map[string]string{
		"nothing":                  "",
		"no list":                  "{}\n",
		"null":                     `{"processes":null}` + "\n",
		"a process of no fields":   `{"processes":[{}]}` + "\n",
		"a process of no id":       string(probe.Processes{List: []probe.Process{{Command: "x"}}}.Line()),
		"a command that is longer": string(probe.Processes{List: []probe.Process{{PID: 1, Command: strings.Repeat("x", 601)}}}.Line()),
		"another command's":        string(probe.Tree{}.Line()),
		"a second line":            string(good.Line()) + "\n",
	} {
		if _, err := probe.ParseProcesses([]byte(line)); err == nil {
			t.Errorf("%s: expected an error", name)
		}
	}
}
