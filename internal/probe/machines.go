package probe

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machines is what `parity-probe machines` reports: the processes that hold a machine of KVM open.
type Machines struct {
	Processes []Machine `json:"processes"` // in the order of their ids
}

// Machine is a process that holds a machine of KVM open.
type Machine struct {
	PID     int    `json:"pid"`     // in the PID namespace of the program
	Command string `json:"command"` // its arguments with spaces between, up to 200 bytes of them
}

// Line is the line that the program prints, with its line feed.
func (m Machines) Line() []byte {
	var o object
	o.key("processes")
	o = append(o, '[')
	for i, p := range m.Processes {
		if i > 0 {
			o = append(o, ',')
		}
		var process object
		process.number("pid", int64(p.PID))
		process.text("command", p.Command)
		o = append(append(o, process...), '}')
	}
	o = append(o, ']')
	return o.line()
}

// maxCommand bounds what is reported of a process's arguments, in bytes.
const maxCommand = 200

// ListMachines looks for machines of KVM among the files that each process of this PID namespace has open, as /proc has them. Who calls it
// must be allowed to see those of all; a process that ends meanwhile is left out.
func ListMachines() (Machines, error) {
	names, err := namesIn("/proc")
	if err != nil {
		return Machines{}, err
	}
	m := Machines{Processes: []Machine{}}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue // it is no process
		}
		process, found, err := machineOf(pid)
		if err != nil && !gone(err) {
			return Machines{}, err
		}
		if err == nil && found {
			m.Processes = append(m.Processes, process)
		}
	}
	slices.SortFunc(m.Processes, func(a, b Machine) int { return a.PID - b.PID })
	return m, nil
}

// machineOf tells whether the process holds a machine.
func machineOf(pid int) (m Machine, found bool, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	fds, err := namesIn(dir + "/fd")
	if err != nil {
		return m, false, err
	}
	for _, fd := range fds {
		target, err := os.Readlink(dir + "/fd/" + fd)
		if gone(err) {
			continue // it was closed
		}
		if err != nil {
			return m, false, err
		}
		if target == "anon_inode:kvm-vm" {
			command, err := os.ReadFile(dir + "/cmdline")
			return Machine{PID: pid, Command: commandText(command)}, true, err
		}
	}
	return m, false, nil
}

// commandText gives the arguments of a /proc/PID/cmdline, which end with a NUL each, as one text.
func commandText(cmdline []byte) string {
	text := strings.ReplaceAll(strings.TrimRight(string(cmdline), "\x00"), "\x00", " ")
	return text[:min(len(text), maxCommand)]
}

func namesIn(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// gone tells that a process or a file descriptor is not there any more.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }
