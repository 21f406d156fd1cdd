package standin

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archived is an image of an archive, with the references that the archive has for it.
type archived struct {
	image      v1.Image
	references []string
}

// openArchive gives the images of an archive of Docker's or, where it is none, of a tar file of an OCI layout, which is unpacked into dir.
func openArchive(file, dir string) ([]archived, error) {
	isDocker, isLayout, err := kindOf(file)
	switch {
	case err != nil:
		return nil, err
	case isDocker:
		return openDocker(file)
	case isLayout:
		return openLayout(file, dir)
	}
	return nil, errors.New("manifest parse error: archive missing manifest.json or oci-layout")
}

func kindOf(file string) (isDocker, isLayout bool, err error) {
	err = eachEntry(file, func(name string, _ io.Reader) error {
		isDocker = isDocker || name == "manifest.json"
		isLayout = isLayout || name == "oci-layout"
		return nil
	})
	return isDocker, isLayout, err
}

// eachEntry calls do with each regular file of a tar file.
func eachEntry(file string, do func(name string, content io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		switch {
		case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF): // of one that is cut off, msb looks at what there is
			return nil
		case err != nil:
			return err
		}
		if h.Typeflag == tar.TypeReg {
			if err := do(clean(h.Name), r); err != nil {
				return err
			}
		}
	}
}

func openDocker(file string) (images []archived, err error) {
	open := func() (io.ReadCloser, error) { return os.Open(file) }
	manifest, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, err
	}
	for _, entry := range manifest {
		var tag *name.Tag // which says which one, of several
		if len(entry.RepoTags) > 0 {
			first, err := name.NewTag(entry.RepoTags[0])
			if err != nil {
				return nil, err
			}
			tag = &first
		}
		image, err := tarball.Image(open, tag)
		if err != nil {
			return nil, err
		}
		// There is no manifest in the archive. The new one is another one than the image had, as msb's is.
		images = append(images, archived{mutate.MediaType(image, types.OCIManifestSchema1), entry.RepoTags})
	}
	return images, nil
}

func openLayout(file, dir string) (images []archived, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	err = eachEntry(file, func(name string, content io.Reader) error {
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		return putFile(root, name, content)
	})
	if err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, m := range manifest.Manifests {
		image, err := imageOf(index, m)
		if err != nil {
			return nil, err
		}
		one := archived{image: image}
		if ref := m.Annotations[ocispec.AnnotationRefName]; ref != "" {
			one.references = []string{ref}
		}
		images = append(images, one)
	}
	return images, nil
}

// imageOf gives the image that a manifest of the index describes: of an index again, the one for this machine.
func imageOf(index v1.ImageIndex, m v1.Descriptor) (v1.Image, error) {
	if !m.MediaType.IsIndex() {
		return index.Image(m.Digest)
	}
	inner, err := index.ImageIndex(m.Digest)
	if err != nil {
		return nil, err
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, m := range manifest.Manifests {
		if m.Platform != nil && m.Platform.OS == "linux" && m.Platform.Architecture == runtime.GOARCH {
			return inner.Image(m.Digest)
		}
	}
	return nil, fmt.Errorf("the index has no image for linux/%s", runtime.GOARCH)
}

// spool gives the file that holds the archive: the named one or, when there is none, one in dir with what standard input has.
func spool(input, dir string) (file string, err error) {
	if input != "" {
		return input, nil
	}
	f, err := os.Create(filepath.Join(dir, "archive.tar"))
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, os.Stdin)
	return f.Name(), errors.Join(err, f.Close())
}
