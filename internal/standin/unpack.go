package standin

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"dagger/parity/internal/fault"
)

const (
	whiteout = ".wh."
	opaque   = whiteout + whiteout + ".opq"
)

// unpack puts a layer over what is in root. Nothing outside of root is touched, whatever the layer's names and links say. The times of
// folders are put into times: what comes later changes them.
func unpack(root *os.Root, layer io.Reader, times map[string]time.Time) error {
	own := map[string]bool{} // what this layer has made: it hides nothing of that
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name := clean(h.Name)
		dir, base := path.Split(name)
		hidden, isWhiteout := strings.CutPrefix(base, whiteout)
		switch {
		case base == opaque:
			if !fault.On(fault.ImageOpaqueIgnored) {
				err = hideBelow(root, path.Clean(dir), own)
			}
		case isWhiteout:
			if !fault.On(fault.ImageWhiteoutIgnored) {
				err = hide(root, path.Join(dir, hidden), own)
			}
		default:
			err = put(root, name, h, r)
			if h.Typeflag == tar.TypeDir {
				times[name] = h.ModTime
			}
			for ; name != "."; name = path.Dir(name) {
				own[name] = true
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}

// clean is a name in an archive as a path below the root.
func clean(name string) string {
	if name = path.Clean("/" + name)[1:]; name == "" {
		return "."
	}
	return name
}

// hide removes what lower layers have of a name.
func hide(root *os.Root, name string, own map[string]bool) error {
	if !own[name] {
		return root.RemoveAll(name)
	}
	info, err := root.Lstat(name)
	if err == nil && info.IsDir() {
		err = hideBelow(root, name, own)
	}
	return err
}

// hideBelow removes what lower layers have in a folder.
func hideBelow(root *os.Root, dir string, own map[string]bool) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, hide(root, path.Join(dir, e.Name()), own))
	}
	return err
}

// put makes one entry of a layer.
func put(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	present, err := root.Lstat(name)
	if err == nil && !(present.IsDir() && h.Typeflag == tar.TypeDir) {
		err = root.RemoveAll(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		err = putFile(root, name, content)
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return root.Lchown(name, h.Uid, h.Gid)
	case tar.TypeLink:
		return root.Link(clean(h.Linkname), name) // owner and mode are the other name's
	default:
		err = fmt.Errorf("entries of type %q are not supported by the stand-in for msb", h.Typeflag)
	}
	if err != nil {
		return err
	}
	if err := root.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := root.Chmod(name, h.FileInfo().Mode()); err != nil { // after the owner: a change of that clears setuid
		return err
	}
	return root.Chtimes(name, h.ModTime, h.ModTime)
}

func putFile(root *os.Root, name string, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
