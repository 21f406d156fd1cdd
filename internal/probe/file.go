package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/tree"
)

// File is what `parity-probe file` reports of what is at a path. A symbolic link at the path's end is described, and not followed.
type File struct {
	Path     string    `json:"path"`
	Type     tree.Type `json:"type"` // Missing, or one of tree.Types save tree.Mount
	Mode     uint32    `json:"mode"` // as in tree.Entry: the permission bits with setuid, setgid and sticky
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Size     int64     `json:"size"`   // of a regular file, in bytes
	SHA256   string    `json:"sha256"` // of a regular file's content, in hex
	Device   uint64    `json:"device"` // as in stat's st_dev
	Inode    uint64    `json:"inode"`
	Modified string    `json:"modified"` // when the content last changed, in the form of Born
	Born     string    `json:"born"`     // in UTC, RFC 3339 with nanoseconds; empty where the file system does not keep it
}

// Missing is the type of what does not exist. Nothing else is said of it.
const Missing tree.Type = "missing"

// timeForm is RFC 3339 with all nine digits of the nanoseconds.
const timeForm = "2006-01-02T15:04:05.000000000Z07:00"

// Line is the line that the program prints, with its line feed.
func (f File) Line() []byte {
	var o object
	o.text("path", f.Path)
	o.text("type", string(f.Type))
	o.number("mode", int64(f.Mode))
	o.number("uid", int64(f.UID))
	o.number("gid", int64(f.GID))
	o.number("size", f.Size)
	o.text("sha256", f.SHA256)
	o.unsigned("device", f.Device)
	o.unsigned("inode", f.Inode)
	o.text("modified", f.Modified)
	o.text("born", f.Born)
	return o.line()
}

// DescribeFile describes what is at the absolute path: one file, whatever has its name by the time that it was read. That there is nothing is
// no error.
func DescribeFile(name string) (File, error) {
	// O_PATH opens whatever it is, and does nothing to it: a FIFO does not wait, and a device does not act.
	opened, err := os.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return File{Path: name, Type: Missing}, nil
	}
	if err != nil {
		return File{}, err
	}
	defer opened.Close()
	f := File{Path: name}
	if err = f.describe(opened); err == nil && f.Type == tree.File {
		err = f.hash(opened)
	}
	if err != nil {
		return File{}, err
	}
	return f, nil
}

func (f *File) describe(opened *os.File) error {
	var st unix.Statx_t
	const mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	if err := unix.Statx(int(opened.Fd()), "", unix.AT_EMPTY_PATH, mask, &st); err != nil {
		return &os.PathError{Op: "statx", Path: f.Path, Err: err}
	}
	f.Type, f.Mode, f.UID, f.GID = tree.TypeOf(st.Mode), uint32(st.Mode)&0o7777, int(st.Uid), int(st.Gid)
	f.Device, f.Inode = unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino
	if f.Type == tree.File {
		f.Size = int64(st.Size)
	}
	f.Modified = moment(st.Mtime)
	if st.Mask&unix.STATX_BTIME != 0 {
		f.Born = moment(st.Btime)
	}
	return nil
}

func moment(t unix.StatxTimestamp) string {
	return time.Unix(t.Sec, int64(t.Nsec)).UTC().Format(timeForm)
}

// hash reads the file that was opened by its path alone. The kernel's link to it leads to that very file, whatever has its name by now.
func (f *File) hash(opened *os.File) error {
	content, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(opened.Fd())))
	if err != nil {
		return errors.New("read " + f.Path + ": " + err.Error())
	}
	defer content.Close()
	h := sha256.New()
	n, err := io.Copy(h, content)
	if err != nil {
		return errors.New("read " + f.Path + ": " + err.Error())
	}
	if n != f.Size {
		return errors.New("read " + f.Path + ": it has " + strconv.FormatInt(f.Size, 10) + " bytes, and " + strconv.FormatInt(n, 10) +
			" were read: it is being written, or is no file of a disk")
	}
	f.SHA256 = hex.EncodeToString(h.Sum(nil))
	return nil
}
