package probe

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Processes is what `parity-probe machines` and `parity-probe running` report.
type Processes struct {
	List []Process `json:"processes"` // in the order of their ids
}

// Process is a process.
type Process struct {
	PID     int    `json:"pid"`     // in the PID namespace of the program
	Command string `json:"command"` // its arguments with spaces between, up to 200 bytes of them
}

// Line is the line that the program prints, with its line feed.
func (p Processes) Line() []byte {
	var o object
	o.key("processes")
	o = append(o, '[')
	for i, one := range p.List {
		if i > 0 {
			o = append(o, ',')
		}
		var process object
		process.number("pid", int64(one.PID))
		process.text("command", one.Command)
		o = append(append(o, process...), '}')
	}
	o = append(o, ']')
	return o.line()
}

// maxCommand bounds what is reported of a process's arguments, in bytes.
const maxCommand = 200

// ListMachines lists the processes of this PID namespace that hold a machine of KVM open, as /proc has it. With an environ, KEY=VALUE, they are
// those that have it in their environment, as it was when they began their program. Without, who calls it must be allowed to see what all
// processes have open. A process that ends meanwhile is left out.
func ListMachines(environ string) (Processes, error) {
	return listProcesses(func(dir string) (bool, error) {
		if environ != "" {
			with, err := os.ReadFile(dir + "/environ")
			if errors.Is(err, os.ErrPermission) {
				return false, nil // it is of somebody else, who has not got the environment of this one's
			}
			if err != nil || !slices.Contains(strings.Split(string(with), "\x00"), environ) {
				return false, err
			}
		}
		return holdsMachine(dir)
	})
}

// ListRunning lists the processes of this PID namespace that run the very file at the absolute path, save those that the caller must not look at.
func ListRunning(path string) (Processes, error) {
	var file, program unix.Stat_t
	if err := unix.Stat(path, &file); err != nil {
		return Processes{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return listProcesses(func(dir string) (bool, error) {
		err := unix.Stat(dir+"/exe", &program)
		if errors.Is(err, os.ErrPermission) {
			return false, nil
		}
		return err == nil && program.Dev == file.Dev && program.Ino == file.Ino, err
	})
}

// listProcesses lists the processes of which wanted tells so, by their folder in /proc. One that it finds gone is left out.
func listProcesses(wanted func(dir string) (bool, error)) (Processes, error) {
	names, err := namesIn("/proc")
	if err != nil {
		return Processes{}, err
	}
	p := Processes{List: []Process{}}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue // it is no process
		}
		dir := "/proc/" + name
		its, err := wanted(dir)
		var command []byte
		if err == nil && its {
			command, err = os.ReadFile(dir + "/cmdline")
		}
		if err != nil && !gone(err) {
			return Processes{}, err
		}
		if err == nil && its {
			p.List = append(p.List, Process{PID: pid, Command: commandText(command)})
		}
	}
	slices.SortFunc(p.List, func(a, b Process) int { return a.PID - b.PID })
	return p, nil
}

// holdsMachine tells whether a process holds a machine of KVM.
func holdsMachine(dir string) (bool, error) {
	fds, err := namesIn(dir + "/fd")
	if err != nil {
		return false, err
	}
	for _, fd := range fds {
		target, err := os.Readlink(dir + "/fd/" + fd)
		if gone(err) {
			continue // it was closed
		}
		if err != nil || target == "anon_inode:kvm-vm" {
			return err == nil, err
		}
	}
	return false, nil
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
