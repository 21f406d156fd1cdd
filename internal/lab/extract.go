package lab

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
)

// extract writes the folders and regular files of a tar stream below dir, which it makes if need be. What would lead out of dir,
// and whatever is not a folder or a regular file, is an error.
func extract(r io.Reader, dir string) error {
	archive := tar.NewReader(r)
	var root *os.Root
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if root == nil {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if root, err = os.OpenRoot(dir); err != nil {
				return err
			}
			defer root.Close()
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = extractFile(root, name, archive)
		default:
			err = fmt.Errorf("%s is neither a folder nor a regular file", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func extractFile(root *os.Root, name string, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
