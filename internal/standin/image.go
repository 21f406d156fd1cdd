package standin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

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

// listed is what msb prints of an image under a reference.
func (s store) listed(ref, id string) (map[string]any, error) {
	img, err := s.image(id)
	return map[string]any{"reference": ref, "digest": img.Digest, "size_bytes": img.SizeBytes, "layer_count": img.Layers,
		"architecture": img.Architecture, "os": img.OS, "created_at": img.Created}, err
}

// listImages is what `msb image ls` prints.
func (s store) listImages() ([]map[string]any, error) {
	refs, err := s.references()
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		line, err := s.listed(ref, refs[ref])
		if err != nil {
			return nil, err
		}
		list = append(list, line)
	}
	return list, nil
}

// inspectImage is what `msb image inspect` prints, without its layers.
func (s store) inspectImage(ref string) (map[string]any, error) {
	refs, err := s.references()
	if err != nil {
		return nil, err
	}
	id, known := refs[ref]
	if !known {
		return nil, imageNotFound(ref)
	}
	img, err := s.image(id)
	if err != nil {
		return nil, err
	}
	all, err := s.listed(ref, id)
	all["config"] = map[string]any{"env": img.Env, "user": null(img.User), "working_dir": null(img.Workdir), "cmd": img.Cmd,
		"entrypoint": img.Entrypoint}
	return all, err
}

func imageNotFound(ref string) error { return fmt.Errorf("image not found: %s", ref) }

// load puts the images of an archive into the store and gives the references that they are under: those of the archive and, for the first
// image, the tag, unless that is empty. A reference that was another image's moves. No input is standard input.
func (s store) load(input, tag string) ([]string, error) {
	fail := func(err error) ([]string, error) { return nil, fmt.Errorf("cache error at %s: %w", input, err) }
	if fault.On(fault.LoadFails) {
		return fail(fmt.Errorf("it cannot be loaded (%s)", fault.Env))
	}
	if tag != "" {
		if _, err := name.ParseReference(tag); err != nil {
			return nil, fmt.Errorf("manifest parse error: invalid image reference %s: %w", tag, err)
		}
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	archive, err := spool(input, dir)
	if err != nil {
		return fail(err)
	}
	images, err := openArchive(archive, dir)
	if err == nil && len(images) == 0 {
		err = errors.New("it has no image")
	}
	if err != nil {
		return fail(err)
	}
	if tag != "" {
		images[0].references = slices.Insert(images[0].references, 0, tag)
	}
	refs, err := s.references()
	if err != nil {
		return nil, err
	}
	var loaded []string
	for _, one := range images {
		if len(one.references) == 0 {
			return fail(errors.New("the archive has no name for an image; pass --tag to name it"))
		}
		id, err := s.keep(one.image)
		if err != nil {
			return fail(err)
		}
		for _, ref := range one.references {
			if refs[ref] == "" || !fault.On(fault.LoadKeepsTag) {
				refs[ref] = id
			}
			loaded = append(loaded, ref)
		}
	}
	return loaded, writeRecord(s.referencesFile(), refs)
}

// removeImages removes images by their references. An image goes once it has none; one that a sandbox has is refused.
func (s store) removeImages(references []string) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	refs, err := s.references()
	if err != nil {
		return err
	}
	machines, err := s.machines()
	if err != nil {
		return err
	}
	for _, ref := range references {
		id, known := refs[ref]
		switch {
		case !known:
			err = errors.Join(err, imageNotFound(ref))
		case slices.ContainsFunc(machines, func(m machine) bool { return m.ImageID == id }):
			err = errors.Join(err, fmt.Errorf("image in use by sandbox(es): %s", ref))
		default:
			delete(refs, ref)
			if !slices.Contains(slices.Collect(maps.Values(refs)), id) {
				err = errors.Join(err, os.RemoveAll(s.imageDir(id)))
			}
		}
	}
	return errors.Join(err, writeRecord(s.referencesFile(), refs))
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
	if fault.On(fault.ImageEnvDropped) {
		record.Env = slices.DeleteFunc(record.Env, func(entry string) bool { return !strings.HasPrefix(entry, "PATH=") })
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
	if err := spoil(root); err != nil {
		return "", err
	}
	if fault.On(fault.ProbeForged) {
		if err := forgeProbe(root); err != nil {
			return "", err
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
