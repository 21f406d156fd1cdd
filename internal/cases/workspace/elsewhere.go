package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// elsewhere lists the processes of this lab that run sandboxes of another store than the one at home: those that hold a machine of KVM
// without that store in their environment, and those of the program msb with another one there. The second are there for the stand-in,
// whose guests are no machines.
func elsewhere(msb, home string) (list []string, err error) {
	own, err := os.Stat(msb)
	if err != nil {
		return nil, err
	}
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, dir := range folders {
		seen, err := runsElsewhere(dir, own, home)
		if err != nil {
			return nil, err
		}
		if seen != "" {
			list = append(list, seen)
		}
	}
	slices.Sort(list)
	return list, nil
}

// runsElsewhere describes the process with a folder in /proc where it is one for elsewhere; else it is empty.
func runsElsewhere(dir string, msb fs.FileInfo, home string) (string, error) {
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	if gone(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	store := storeIn(environ)
	if sameFile(store, home) {
		return "", nil
	}
	holds, err := holdsMachine(dir)
	if err != nil {
		return "", err
	}
	program, err := os.Stat(filepath.Join(dir, "exe")) // the kernel's own threads have none
	if isMSB := err == nil && os.SameFile(program, msb); !holds && (!isMSB || store == "") {
		return "", nil
	}
	command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may have ended
	return fmt.Sprintf("process %s with MSB_HOME=%q: %.200s", filepath.Base(dir), store, bytes.ReplaceAll(command, []byte{0}, []byte(" "))), nil
}

// storeIn gives the store that an environment names, as /proc has it.
func storeIn(environ []byte) string {
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if store, ok := strings.CutPrefix(entry, "MSB_HOME="); ok {
			return store
		}
	}
	return ""
}

// sameFile tells whether two paths lead to the same file.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, otherErr := os.Stat(b)
	return err == nil && otherErr == nil && os.SameFile(one, other)
}

// holdsMachine tells whether a process holds a machine of KVM.
func holdsMachine(dir string) (bool, error) {
	fds, err := filepath.Glob(filepath.Join(dir, "fd", "*")) // none, where the process is gone
	for _, fd := range fds {
		if target, linkErr := os.Readlink(fd); linkErr == nil && target == "anon_inode:kvm-vm" {
			return true, nil
		}
	}
	return false, err
}

// gone tells that a process is not there any more.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
