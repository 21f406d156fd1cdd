package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cenkalti/backoff/v5"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sourcegraph/conc/pool"
	"golang.org/x/sys/unix"
)

// attempts is how often a layer is downloaded at most, and atOnce how many are.
const attempts, atOnce = 4, 3

// copySize is how much of a layer is read at a time: with io.Copy's own 32 KiB a download takes half as much processor time again.
const copySize = 256 << 10

// Save downloads the image into a file, as a tar file of an OCI layout that keeps the image's digest: what is in the registry is in the file,
// byte for byte. Memory does not grow with the image.
func (i Image) Save(ctx context.Context, f *os.File) error {
	if err := i.save(ctx, f); err != nil {
		return explain(i.Reference, err)
	}
	return nil
}

func (i Image) save(ctx context.Context, f *os.File) error {
	digest, err := i.image.Digest()
	if err != nil {
		return err
	}
	manifest, err := i.image.RawManifest()
	if err != nil {
		return err
	}
	mediaType, err := i.image.MediaType()
	if err != nil {
		return err
	}
	config, err := i.image.RawConfigFile()
	if err != nil {
		return err
	}
	configName, err := i.image.ConfigName()
	if err != nil {
		return err
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{{
		MediaType: mediaType, Digest: digest, Size: int64(len(manifest)), Platform: &Platform,
		Annotations: map[string]string{ocispec.AnnotationRefName: i.Reference.String()},
	}}})
	if err != nil {
		return err
	}
	a := archive{f: f}
	for _, entry := range []struct {
		name    string
		content []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index}, {blobName(digest), manifest}, {blobName(configName), config},
	} {
		if err := a.write(entry.name, entry.content); err != nil {
			return err
		}
	}
	return i.saveLayers(ctx, &a)
}

// saveLayers downloads the layers, some at once, each to its place.
func (i Image) saveLayers(ctx context.Context, a *archive) error {
	layers, err := i.image.Layers()
	if err != nil {
		return err
	}
	downloads := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(atOnce)
	seen := map[v1.Hash]bool{}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		if seen[digest] {
			continue
		}
		seen[digest] = true
		size, err := layer.Size()
		if err != nil {
			return err
		}
		at, err := a.reserve(blobName(digest), size)
		if err != nil {
			return err
		}
		downloads.Go(func(ctx context.Context) error {
			if err := download(ctx, layer, io.NewOffsetWriter(a.f, at), size); err != nil {
				return fmt.Errorf("layer %s: %w", digest, err)
			}
			return nil
		})
	}
	if err := downloads.Wait(); err != nil {
		return err
	}
	return a.end()
}

// download downloads a layer, and begins again when it breaks off. What the registry answers with an error has been tried again already.
func download(ctx context.Context, layer v1.Layer, to *io.OffsetWriter, size int64) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := downloadOnce(ctx, layer, to, size)
		_, answered := errors.AsType[*transport.Error](err)
		if err != nil && (answered || ctx.Err() != nil || errors.Is(err, unix.ENOSPC)) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxTries(attempts), backoff.WithBackOff(backoff.NewConstantBackOff(time.Second)))
	return err
}

func downloadOnce(ctx context.Context, layer v1.Layer, to *io.OffsetWriter, size int64) error {
	if _, err := to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	content, err := layer.Compressed() // it fails at its end if the digest is another one
	if err != nil {
		return err
	}
	defer content.Close()
	defer context.AfterFunc(ctx, func() { content.Close() })()
	n, err := io.CopyBuffer(to, content, make([]byte, copySize))
	if err == nil && n != size {
		err = fmt.Errorf("expected %d bytes, seen %d", size, n)
	}
	return err
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// archive is a tar file whose entries can be written in any order, once their places are known.
type archive struct {
	f  *os.File
	at int64 // where the next entry begins
}

const block = 512

// reserve makes place for an entry, and gives where its content goes.
func (a *archive) reserve(name string, size int64) (at int64, err error) {
	var header bytes.Buffer
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatGNU}
	if err := tar.NewWriter(&header).WriteHeader(h); err != nil {
		return 0, err
	}
	if _, err := a.f.WriteAt(header.Bytes(), a.at); err != nil {
		return 0, err
	}
	at = a.at + int64(header.Len())
	a.at = at + (size+block-1)/block*block
	return at, nil
}

func (a *archive) write(name string, content []byte) error {
	at, err := a.reserve(name, int64(len(content)))
	if err == nil {
		_, err = a.f.WriteAt(content, at)
	}
	return err
}

// end ends the archive: with two empty blocks.
func (a *archive) end() error { return a.f.Truncate(a.at + 2*block) }
