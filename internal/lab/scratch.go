package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// scratch is the lab's own space: a folder (native), or the file of a sparse disk that has no name, so that the kernel frees it
// with the last process that has it open (emulated).
type scratch struct {
	path string   // the folder, or empty
	lock *os.File // held while the folder is in use; the kernel lets go of it when this process dies
	disk *os.File // the disk, or nil
}

// scratchPrefix begins the names of the folders that native labs make in the cache folder.
const scratchPrefix = "lab-"

func newScratch(o Options) (*scratch, error) {
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache folder: %w", err)
	}
	if o.KVM == Emulated {
		return newScratchDisk(o)
	}
	dir, err := os.MkdirTemp(o.Cache, scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the scratch folder: %w", err)
	}
	s := &scratch{path: dir}
	if s.lock, err = lockFolder(dir); err == nil {
		err = checkXattrs(dir)
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

func newScratchDisk(o Options) (*scratch, error) {
	fd, err := unix.Open(o.Cache, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	var disk *os.File
	if err == nil {
		disk = os.NewFile(uintptr(fd), filepath.Join(o.Cache, "scratch disk"))
	} else if disk, err = os.CreateTemp(o.Cache, "disk-"); err == nil { // this file system has no nameless files
		err = os.Remove(disk.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("make the scratch disk in %s: %w", o.Cache, err)
	}
	s := &scratch{disk: disk}
	if err := disk.Truncate(int64(o.DiskGiB) << 30); err != nil {
		s.remove()
		return nil, fmt.Errorf("make a sparse scratch disk of %d GiB in %s: %w", o.DiskGiB, o.Cache, err)
	}
	// No journal: the disk is gone after a crash anyway.
	mkfs := exec.Command("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-m", "0", "/proc/self/fd/3")
	mkfs.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	mkfs.Path = findProgram("mkfs.ext4")
	mkfs.ExtraFiles = []*os.File{disk}
	if out, err := mkfs.CombinedOutput(); err != nil {
		s.remove()
		return nil, fmt.Errorf("format the scratch disk: %w: %s (Debian package e2fsprogs)", err, strings.TrimSpace(string(out)))
	}
	return s, nil
}

// remove frees the scratch space. It is called once the lab has ended.
func (s *scratch) remove() {
	if s.disk != nil {
		s.disk.Close()
	}
	if s.path != "" {
		_ = os.RemoveAll(s.path)
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkXattrs(dir string) error {
	if err := unix.Setxattr(dir, "user.parity", []byte("1"), 0); err != nil {
		return fmt.Errorf("MicroSandbox needs a file system with user xattrs and %s has none (%w): set PARITY_CACHE to a folder on ext4, xfs or btrfs", dir, err)
	}
	return nil
}

// ScratchPrerequisite says whether a native lab's scratch folder can be in the cache folder: it takes user xattrs there. An emulated
// lab has a disk of its own, and takes nothing of the cache's file system.
func ScratchPrerequisite(cache string) Prerequisite {
	p := Prerequisite{Name: "native: user xattrs in the cache"}
	if _, err := os.Stat(cache); err != nil {
		p.Next = "run scripts/setup: it makes the cache folder " + cache
		return p
	}
	s, err := newScratch(Options{KVM: Native, Cache: cache})
	if err != nil {
		p.Next = err.Error()
		return p
	}
	s.remove()
	p.Found = cache
	return p
}

// Clean removes the scratch folders that killed runs left in the cache folder; a live run holds a lock on its own. It gives the
// folders that it removed.
func Clean(cache string) ([]string, error) {
	left, err := filepath.Glob(filepath.Join(cache, scratchPrefix+"*"))
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, dir := range left {
		lock, err := lockFolder(dir)
		if err != nil {
			continue // another run's, live
		}
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, err)
		} else {
			removed = append(removed, dir)
		}
		lock.Close()
	}
	return removed, errors.Join(errs...)
}
