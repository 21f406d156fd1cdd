package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OfFolder lists the tree whose root is the given folder: all of it or, where paths are given, these and what is below them. Paths are
// absolute as seen from the root; one that does not exist has no entries. A folder is followed by what is in it, names in the order
// of their bytes. The list stays on the file system of the root: what is mounted on it is an entry of type Mount. Each file is read
// once, however many names it has. Who calls it must be allowed to read all of it. What vanishes meanwhile is left out.
func OfFolder(root string, below ...string) ([]Entry, error) {
	l := lister{root: root, seen: map[inode]Entry{}, buf: make([]byte, 256<<10)}
	st, err := l.stat("/")
	if err != nil {
		return nil, err
	}
	l.mount = st.Mnt_id
	if len(below) == 0 {
		err = l.folder("/")
	}
	tops := slices.Sorted(slices.Values(below))
	for i, top := range tops {
		if err == nil && !Under(top, tops[:i]) {
			err = l.add(path.Clean(top))
		}
	}
	if err != nil {
		return nil, errors.New("list " + root + ": " + err.Error())
	}
	return l.entries, nil
}

type lister struct {
	root    string
	mount   uint64
	entries []Entry
	seen    map[inode]Entry // the first entry of each file that has several names
	buf     []byte
}

// inode tells files apart.
type inode struct {
	major, minor uint32
	number       uint64
}

func (l *lister) stat(name string) (st unix.Statx_t, err error) {
	file := l.file(name)
	const mask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID
	if err := unix.Statx(unix.AT_FDCWD, file, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, mask, &st); err != nil {
		return st, &fs.PathError{Op: "statx", Path: file, Err: err}
	}
	// A device number would not do: the files of an overlay have those of its layers.
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return st, errors.New("this kernel does not tell which mount " + file + " is on: Linux 5.8 or later is needed")
	}
	return st, nil
}

// file is the path of an entry for the kernel.
func (l *lister) file(name string) string { return path.Join(l.root, name) }

// add lists the entry and, of a folder, what is in it.
func (l *lister) add(name string) error {
	st, err := l.stat(name)
	if err != nil {
		return unlessGone(err)
	}
	if len(l.entries) == MaxEntries {
		return errors.New("there are more than " + strconv.Itoa(MaxEntries) + " entries, the most that a list may have; the next one is " +
			strconv.Quote(name) + ": list a part of it")
	}
	if st.Mnt_id != l.mount {
		l.entries = append(l.entries, Entry{Path: Text(name), Type: Mount})
		return nil
	}
	e, err := l.entry(name, st)
	if err != nil {
		return unlessGone(err)
	}
	l.entries = append(l.entries, e)
	if e.Type == Folder {
		return unlessGone(l.folder(name))
	}
	return nil
}

// unlessGone passes over what the list was too late for.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// folder lists what is in a folder.
func (l *lister) folder(name string) error {
	d, err := os.Open(l.file(name))
	if err != nil {
		return err
	}
	defer d.Close()
	// One more than there is room for is enough to fail.
	children, err := d.Readdirnames(MaxEntries - len(l.entries) + 1)
	if err != nil && err != io.EOF {
		return err
	}
	slices.Sort(children)
	for _, child := range children {
		if err := l.add(path.Join(name, child)); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) entry(name string, st unix.Statx_t) (Entry, error) {
	e := Entry{Path: Text(name), Type: TypeOf(st.Mode), Mode: uint32(st.Mode) & 0o7777, UID: int(st.Uid), GID: int(st.Gid)}
	id := inode{st.Dev_major, st.Dev_minor, st.Ino}
	if first, ok := l.seen[id]; ok {
		first.Path, first.LinkTo = e.Path, first.Path
		return first, nil
	}
	var err error
	switch e.Type {
	case File:
		e.Size, e.SHA256, err = l.hash(name)
	case Symlink:
		e.Target, err = os.Readlink(l.file(name))
		e.Target = Text(e.Target)
	}
	if err == nil && e.Type != Folder && st.Nlink > 1 {
		l.seen[id] = e
	}
	return e, err
}

// TypeOf gives the type of a file that has this mode, as stat gives it.
func TypeOf(mode uint16) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return Folder
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFCHR:
		return CharDevice
	case unix.S_IFBLK:
		return BlockDevice
	case unix.S_IFIFO:
		return FIFO
	case unix.S_IFSOCK:
		return Socket
	}
	return File
}

func (l *lister) hash(name string) (size int64, sum string, err error) {
	f, err := os.OpenFile(l.file(name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.CopyBuffer(h, struct{ io.Reader }{f}, l.buf) // the file's own WriteTo would not use the buffer
	return size, hex.EncodeToString(h.Sum(nil)), err
}

// Under tells whether a path is one of the others, or below one.
func Under(name string, tops []string) bool {
	for _, top := range tops {
		if rest, ok := strings.CutPrefix(name, strings.TrimSuffix(top, "/")); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}
