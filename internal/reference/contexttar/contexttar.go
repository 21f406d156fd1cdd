// Package contexttar writes the context of an image build: a tar file of folders and of what is made up. Everything in it belongs to root, as
// with `docker build`.
package contexttar

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"time"
)

// ErrOmit is what an Edit returns for an entry that is left out.
var ErrOmit = errors.New("left out of the context")

// Edit is asked for each entry, by its path below the root: it may change the header. With ErrOmit the entry is left out, and with fs.SkipDir
// a folder and all that is below; another error ends the writing.
type Edit func(name string, h *tar.Header) error

// Writer writes a context. Its memory does not grow with the files.
type Writer struct{ tar *tar.Writer }

// NewWriter gives a Writer that writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar.NewWriter(w)} }

// Close ends the context.
func (w *Writer) Close() error { return w.tar.Close() }

// File writes a file with a fixed time: the same content is the same to a build cache.
func (w *Writer) File(name string, mode fs.FileMode, content string) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode.Perm()), Size: int64(len(content)), ModTime: time.Unix(0, 0)}
	if err := w.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.WriteString(w.tar, content)
	return err
}

// Tree writes what is below root under the folder to; "." is the context itself. Symbolic links stay links, and sockets are left out.
func (w *Writer) Tree(root *os.Root, to string, edit Edit) error {
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		h, err := header(root, name, d)
		if err != nil || h == nil {
			return err
		}
		h.Name = path.Join(to, name)
		if d.IsDir() {
			h.Name += "/"
		}
		if err := edit(name, h); errors.Is(err, ErrOmit) {
			return nil
		} else if err != nil {
			return err
		}
		if err := w.tar.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		return w.content(root, name)
	})
}

// header gives the header of an entry, without its name; nil for a socket.
func header(root *os.Root, name string, d fs.DirEntry) (*tar.Header, error) {
	info, err := d.Info()
	if err != nil || info.Mode()&fs.ModeSocket != 0 {
		return nil, err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = root.Readlink(name); err != nil {
			return nil, err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err == nil {
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	}
	return h, err
}

func (w *Writer) content(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w.tar, f)
	return err
}
