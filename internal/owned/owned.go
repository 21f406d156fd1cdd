// Package owned makes folders that belong to the process that made them, for as long as it lives: it holds a lock on each, which the
// kernel takes away when it dies, however it dies. So whoever comes later can tell what is in use from what a killed process left, and
// removes the latter only.
package owned

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld says that a live process holds a folder.
var ErrHeld = errors.New("a live process holds it")

// A folder that was made here has this user xattr, or, where the file system has none, this file. Without a mark a folder is somebody
// else's, whatever its name, unless it is empty: its maker was killed in between, or is about to mark it.
const (
	attr     = "user.parity"
	markFile = ".made-by-parity"
)

// markDeadline is how long a clean-up and those who are between the making of a folder and its mark wait for each other. It takes microseconds.
const markDeadline = time.Second

// endDeadline bounds the wait for a killed process to be gone. It takes the kernel milliseconds, but not on a machine that swaps.
const endDeadline = 10 * time.Second

// Folder is a folder of this process's.
type Folder struct {
	Path string
	lock *os.File
}

// Make makes a folder below parent, which is empty where the file system has user xattrs. Its name is the prefix and digits.
func Make(parent, prefix string) (*Folder, error) {
	making, err := lockSoon(parent, unix.LOCK_SH)
	if err == nil {
		defer making.Close()
	} else if !errors.Is(err, ErrHeld) { // as long as it is held, no clean-up gets it either
		return nil, err
	}
	for {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := Hold(dir)
		if errors.Is(err, ErrHeld) || errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(dir) // a clean-up looks at it: make another one
			continue
		}
		f := &Folder{Path: dir, lock: lock}
		if err == nil {
			err = mark(dir, "")
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mark the folder %s: %w", dir, err), f.Remove())
		}
		return f, nil
	}
}

// UsedBy says that the process uses the folder and everything that it starts does not outlive it, as it is with the init of a PID
// namespace. A clean-up waits for its end: it may come a moment later than this process's. It must be called before the process does
// anything in the folder.
func (f *Folder) UsedBy(pid int) error {
	started, err := startTime(pid)
	if err != nil {
		return err
	}
	return mark(f.Path, fmt.Sprintf("%d %s", pid, started))
}

func mark(dir, text string) error {
	err := unix.Setxattr(dir, attr, []byte(text), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return os.WriteFile(filepath.Join(dir, markFile), []byte(text), 0o600)
	}
	return err
}

// readMark gives the mark of a folder, and whether it has one.
func readMark(dir string) (text string, ok bool, err error) {
	var value [64]byte
	n, err := unix.Getxattr(dir, attr, value[:])
	switch {
	case err == nil:
		return string(value[:n]), true, nil
	case errors.Is(err, unix.ENODATA):
		return "", false, nil
	case !errors.Is(err, unix.ENOTSUP):
		return "", false, &fs.PathError{Op: "read the mark of", Path: dir, Err: err}
	}
	data, err := os.ReadFile(filepath.Join(dir, markFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return string(data), err == nil, err
}

// Remove removes the folder with all that is in it, and lets go of it.
func (f *Folder) Remove() error {
	err := os.RemoveAll(f.Path)
	if f.lock != nil {
		f.lock.Close()
	}
	return err
}

// lockFolder locks a folder until the file that it gives is closed, or this process dies. It is ErrHeld if another one's lock excludes that.
func lockFolder(dir string, how, flags int) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	if err := unix.Flock(fd, how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return f, nil
}

// lockSoon is lockFolder, with some patience.
func lockSoon(dir string, how int) (f *os.File, err error) {
	for deadline := time.Now().Add(markDeadline); ; time.Sleep(time.Millisecond) {
		if f, err = lockFolder(dir, how, 0); !errors.Is(err, ErrHeld) || time.Now().After(deadline) {
			return f, err
		}
	}
}

// makers tells whether a process may be making a folder below parent: each holds a lock on that until its folder has a mark.
func makers(parent string) bool {
	f, err := lockSoon(parent, unix.LOCK_EX)
	if err != nil {
		return true
	}
	f.Close()
	return false
}

// Hold locks a folder until the file that it gives is closed or this process dies. It is ErrHeld if it is locked already.
func Hold(dir string) (*os.File, error) {
	f, err := lockFolder(dir, unix.LOCK_EX, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	// The folder that was locked may have been removed in between.
	ours, err := f.Stat()
	if err == nil {
		var there fs.FileInfo
		if there, err = os.Lstat(dir); err == nil && !os.SameFile(ours, there) {
			err = &fs.PathError{Op: "lock", Path: dir, Err: fs.ErrNotExist}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Clean removes the folders below parent that dead processes made with the prefix, and nothing else. Before that it calls first for
// each of them, if there is such a function: it may remove more, and gives what. Clean gives all that was removed.
func Clean(parent, prefix string, first func(dir string) ([]string, error)) (removed []string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if digits, ok := strings.CutPrefix(e.Name(), prefix); !ok || !e.IsDir() || !isNumber(digits) {
			continue
		}
		list, err := cleanOne(filepath.Join(parent, e.Name()), first)
		removed = append(removed, list...)
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

func cleanOne(dir string, first func(string) ([]string, error)) ([]string, error) {
	lock, err := Hold(dir)
	if errors.Is(err, ErrHeld) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a live process's, or another clean-up was here
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	text, marked, err := readMark(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // its maker gave it up
	}
	if err != nil {
		return nil, err
	}
	if !marked {
		if makers(filepath.Dir(dir)) {
			return nil, nil // one of them may be about to mark it
		}
		if err := os.Remove(dir); err != nil {
			return nil, nil // its maker was here, or it is not empty: not one of these
		}
		return []string{dir}, nil
	}
	if err := awaitEnd(text); err != nil {
		return nil, fmt.Errorf("%s stays: %w; run `parity clean` again", dir, err)
	}
	var removed []string
	if first != nil {
		if removed, err = first(dir); err != nil {
			return removed, err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return removed, err
	}
	return append(removed, dir), nil
}

// awaitEnd waits until the process of a mark is gone.
func awaitEnd(mark string) error {
	number, started, ok := strings.Cut(mark, " ")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil {
		return nil // none was started
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it is gone
	}
	defer unix.Close(fd)
	// A number is given out again: it is the same process only if it started at the same time. The descriptor stays with the one that it
	// was opened for.
	if now, err := startTime(pid); err != nil || now != started {
		return nil
	}
	deadline := time.Now().Add(endDeadline)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(time.Until(deadline), 0).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case n > 0:
			return nil
		default:
			return fmt.Errorf("the process %d, which the killed one had started in it, has not ended %s later", pid, endDeadline)
		}
	}
}

// startTime gives the time at which a process started, as the kernel counts it: with its number it names the process for good.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name, in brackets, may have spaces and brackets in it. What follows begins with field 3; the start time is field 22.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has another shape: %q", pid, stat)
	}
	return string(fields[19]), nil
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
