package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/owned"
)

// scratch is the lab's own space: a folder (native), or the file of a sparse disk that has no name, so that the kernel frees it
// with the last process that has it open (emulated).
type scratch struct {
	folder *owned.Folder // or nil
	disk   *os.File      // or nil
}

// What begins the names of what labs make in the cache folder.
const (
	scratchPrefix = "lab-"  // the folders of native labs
	diskPrefix    = "disk-" // the disks of emulated ones, for a moment, where the file system has no nameless files
)

func newScratch(o Options) (*scratch, error) {
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache folder: %w", err)
	}
	if o.KVM == Emulated {
		return newScratchDisk(o)
	}
	dir, err := owned.Make(o.Cache, scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("make the scratch folder: %w", err)
	}
	s := &scratch{folder: dir}
	if err := checkXattrs(dir.Path); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

func checkXattrs(dir string) error {
	if err := unix.Setxattr(dir, "user.parity.test", nil, 0); err != nil {
		return fmt.Errorf("MicroSandbox needs a file system with user xattrs and %s has none (%w): set PARITY_CACHE to a folder on ext4, xfs or btrfs", dir, err)
	}
	return nil
}

// path is the folder, or empty.
func (s *scratch) path() string {
	if s.folder == nil {
		return ""
	}
	return s.folder.Path
}

func newScratchDisk(o Options) (*scratch, error) {
	fd, err := unix.Open(o.Cache, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	var disk *os.File
	if err == nil {
		disk = os.NewFile(uintptr(fd), filepath.Join(o.Cache, "scratch disk"))
	} else if disk, err = os.CreateTemp(o.Cache, diskPrefix); err == nil { // this file system has no nameless files
		if err = os.Remove(disk.Name()); errors.Is(err, fs.ErrNotExist) {
			err = nil // a clean-up was faster
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make the scratch disk in %s: %w", o.Cache, err)
	}
	if err := disk.Truncate(int64(o.DiskGiB) << 30); err != nil {
		disk.Close()
		return nil, fmt.Errorf("make a sparse scratch disk of %d GiB in %s: %w", o.DiskGiB, o.Cache, err)
	}
	// No journal: the disk is gone after a crash anyway.
	mkfs := exec.Command("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-m", "0", "/proc/self/fd/3")
	mkfs.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	mkfs.Path = findProgram("mkfs.ext4")
	mkfs.ExtraFiles = []*os.File{disk}
	mkfs.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	if out, err := mkfs.CombinedOutput(); err != nil {
		disk.Close()
		return nil, fmt.Errorf("format the scratch disk: %w: %s (Debian package e2fsprogs)", err, strings.TrimSpace(string(out)))
	}
	return &scratch{disk: disk}, nil
}

// remove frees the scratch space. It is called once the lab has ended.
func (s *scratch) remove() error {
	if s.disk != nil {
		s.disk.Close()
	}
	if s.folder == nil {
		return nil
	}
	return errors.Join(RemoveCgroup(cgroupOf(s.folder.Path)), s.folder.Remove())
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

// Clean removes what labs of killed processes left in the cache folder, and nothing of a live one's: package owned says how it tells. It
// gives what it removed.
func Clean(cache string) ([]string, error) {
	removed, err := owned.Clean(cache, scratchPrefix, func(dir string) ([]string, error) { return nil, RemoveCgroup(cgroupOf(dir)) })
	disks, _ := filepath.Glob(filepath.Join(cache, diskPrefix+"*"))
	for _, path := range disks {
		// It loses its name before anything is written to it. One that a live lab has just made may lose it here as well.
		info, statErr := os.Lstat(path)
		number := strings.TrimPrefix(filepath.Base(path), diskPrefix)
		if statErr != nil || !info.Mode().IsRegular() || info.Size() > 0 || strings.Trim(number, "0123456789") != "" {
			continue
		}
		if removeErr := os.Remove(path); removeErr == nil {
			removed = append(removed, path)
		} else if !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return removed, err
}
