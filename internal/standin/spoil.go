package standin

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/fault"
)

// longName is how many bytes of a name a plain tar header has room for.
const longName = 100

// spoil does to the hard tree of an image what a fault asks for. The rest of the image is spared: the guest must boot.
func spoil(root *os.Root) error {
	var names []string
	err := fs.WalkDir(root.FS(), strings.TrimPrefix(images.TreePath, "/"), func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = spoilMarks(root)
	}
	for i := len(names) - 1; i >= 0 && err == nil; i-- { // what is in a folder comes before it
		err = spoilFile(root, names[i])
	}
	return err
}

// spoilMarks does to the small files by which an image is known what a fault asks for.
func spoilMarks(root *os.Root) error {
	const another = "ID=another\n" // a line of os-release, and no nonce
	switch fault.Asked() {
	case fault.ImageNonceChanged:
		return root.WriteFile(images.NoncePath[1:], []byte(another), 0o644)
	case fault.ImageReleaseChanged:
		return root.WriteFile("etc/os-release", []byte(another), 0o644)
	case fault.ImageMarkerLost:
		return root.RemoveAll(images.MarkerPath[1:])
	}
	return nil
}

func spoilFile(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	regular, symlink := info.Mode().IsRegular(), info.Mode()&fs.ModeSymlink != 0
	switch fault.Asked() {
	case fault.ImageByteFlipped:
		if regular && info.Size() >= images.LargeSize {
			return flipByte(root, name, info.Size()/2)
		}
	case fault.ImageHardLinkBroken:
		if regular && stat.Nlink > 1 {
			return replaceByCopy(root, name)
		}
	case fault.ImageSetuidLost:
		if regular {
			return root.Chmod(name, info.Mode()&^fs.ModeSetuid)
		}
	case fault.ImageOwnerLost:
		if err := root.Lchown(name, 0, 0); err != nil || symlink {
			return err
		}
		return root.Chmod(name, info.Mode()) // a change of the owner clears setuid
	case fault.ImageSymlinkFollowed:
		if target, err := root.Stat(name); symlink && err == nil && target.Mode().IsRegular() {
			return replaceByCopy(root, name)
		}
	case fault.ImageDanglingLost:
		if _, err := root.Stat(name); symlink && errors.Is(err, fs.ErrNotExist) {
			return root.Remove(name)
		}
	case fault.ImageEmptyFolderLost:
		if content, err := fs.ReadDir(root.FS(), name); info.IsDir() && err == nil && len(content) == 0 {
			return root.Remove(name)
		}
	case fault.ImageLongNameCut:
		if dir, base := path.Split(name); len(base) > longName {
			return root.Rename(name, dir+base[:longName])
		}
	}
	return nil
}

func flipByte(root *os.Root, name string, at int64) error {
	f, err := root.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	if err == nil {
		b[0] ^= 1
		_, err = f.WriteAt(b, at)
	}
	return errors.Join(err, f.Close())
}

// replaceByCopy replaces a name by a file of its own with what it leads to.
func replaceByCopy(root *os.Root, name string) error {
	info, err := root.Stat(name)
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	content, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	if err := root.Remove(name); err != nil {
		return err
	}
	if err := root.WriteFile(name, content, 0o600); err != nil {
		return err
	}
	return errors.Join(root.Lchown(name, int(stat.Uid), int(stat.Gid)), root.Chmod(name, info.Mode()))
}
