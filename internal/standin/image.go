package standin

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"dagger/parity/internal/fault"
)

// image is an image of the store. Its files are below root in its folder.
type image struct {
	Digest       string
	SizeBytes    int64
	Layers       int
	Architecture string
	OS           string
	Created      time.Time // when it was loaded
	Env          []string
	User         string
	Workdir      string
	Cmd          []string
	Entrypoint   []string
}

const (
	imageFile = "image.json"
	imageRoot = "root"
)

func (s store) imageDir(id string) string { return filepath.Join(s.dir, "images", id) }

func (s store) image(id string) (image, error) {
	return readRecord[image](filepath.Join(s.imageDir(id), imageFile))
}

func (s store) referencesFile() string { return filepath.Join(s.dir, "references.json") }

// references gives the id of the image of each reference.
func (s store) references() (map[string]string, error) {
	refs, err := readRecord[map[string]string](s.referencesFile())
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	return refs, err
}

// listImages is what `msb image ls` prints.
func (s store) listImages() ([]map[string]any, error) {
	refs, err := s.references()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for ref, id := range refs {
		img, err := s.image(id)
		if err != nil {
			return nil, err
		}
		list = append(list, map[string]any{"reference": ref, "digest": img.Digest, "size_bytes": img.SizeBytes, "layer_count": img.Layers,
			"architecture": img.Architecture, "os": img.OS, "created_at": img.Created})
	}
	slices.SortFunc(list, func(a, b map[string]any) int {
		return strings.Compare(a["reference"].(string), b["reference"].(string))
	})
	return list, nil
}

// inspectImage is what `msb image inspect` prints, without what nobody here reads.
func (s store) inspectImage(ref string) (map[string]any, error) {
	refs, err := s.references()
	if err != nil {
		return nil, err
	}
	id, ok := refs[ref]
	if !ok {
		return nil, fmt.Errorf("image not found: %s", ref)
	}
	img, err := s.image(id)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"reference": ref, "digest": img.Digest, "size_bytes": img.SizeBytes, "layer_count": img.Layers,
		"architecture": img.Architecture, "os": img.OS, "created_at": img.Created,
		"config": map[string]any{"user": null(img.User), "working_dir": null(img.Workdir), "env": img.Env, "cmd": img.Cmd, "entrypoint": img.Entrypoint},
	}, nil
}

// load puts the images of Docker's archive into the store and gives their references. A reference that was another image's moves.
func (s store) load(archive string) ([]string, error) {
	fail := func(err error) ([]string, error) { return nil, fmt.Errorf("cache error at %s: %w", archive, err) }
	if fault.On(fault.LoadFails) {
		return fail(fmt.Errorf("it cannot be loaded (%s)", fault.Env))
	}
	open := func() (io.ReadCloser, error) { return os.Open(archive) }
	manifest, err := tarball.LoadManifest(open)
	if err != nil {
		return fail(err)
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	refs, err := s.references()
	if err != nil {
		return nil, err
	}
	var loaded []string
	for _, entry := range manifest {
		for _, ref := range entry.RepoTags {
			tag, err := name.NewTag(ref)
			if err != nil {
				return fail(err)
			}
			img, err := tarball.Image(open, &tag)
			if err != nil {
				return fail(err)
			}
			if refs[ref], err = s.keep(img); err != nil {
				return fail(err)
			}
			loaded = append(loaded, ref)
		}
	}
	return loaded, writeRecord(s.referencesFile(), refs)
}

// keep unpacks an image, unless the store has it, and gives its id.
func (s store) keep(img v1.Image) (id string, err error) {
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(s.imageDir(digest.Hex)); err == nil {
		return digest.Hex, nil
	}
	config, err := img.ConfigFile()
	if err != nil {
		return "", err
	}
	layers, err := img.Layers()
	if err != nil {
		return "", err
	}
	made, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(made)
	record := image{
		Digest: digest.String(), Layers: len(layers), Architecture: config.Architecture, OS: config.OS, Created: time.Now().UTC(),
		Env: config.Config.Env, User: config.Config.User, Workdir: config.Config.WorkingDir,
		Cmd: config.Config.Cmd, Entrypoint: config.Config.Entrypoint,
	}
	rootPath := filepath.Join(made, imageRoot)
	if err := os.Mkdir(rootPath, 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(rootPath)
	if err != nil {
		return "", err
	}
	defer root.Close()
	times := map[string]time.Time{}
	for i, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return "", err
		}
		record.SizeBytes += size
		content, err := layer.Uncompressed()
		if err != nil {
			return "", err
		}
		err = errors.Join(unpack(root, content, times), content.Close())
		if err != nil {
			return "", fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	for dir, t := range times {
		if err := root.Chtimes(dir, t, t); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return "", err
	}
	if err := writeRecord(filepath.Join(made, imageFile), record); err != nil {
		return "", err
	}
	return digest.Hex, os.Rename(made, s.imageDir(digest.Hex))
}

const (
	whiteout = ".wh."
	opaque   = whiteout + whiteout + ".opq"
)

// unpack puts a layer over what is in root. Nothing outside of root is touched, whatever the layer's names and links say. The times of
// folders are put into times: what comes later changes them.
func unpack(root *os.Root, layer io.Reader, times map[string]time.Time) error {
	own := map[string]bool{} // what this layer has made: an opaque folder keeps it
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
			err = hideBelow(root, path.Clean(dir), own)
		case isWhiteout:
			err = root.RemoveAll(path.Join(dir, hidden))
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

// hideBelow removes what lower layers have in a folder.
func hideBelow(root *os.Root, dir string, own map[string]bool) error {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case !own[name]:
			err = errors.Join(err, root.RemoveAll(name))
		case e.IsDir():
			err = errors.Join(err, hideBelow(root, name, own))
		}
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
