// Package images brings images into MicroSandbox's store, from where MicroSandbox makes machines of them: from the Docker Engine, or from a
// registry.
//
// Of a reference that was brought before, the place where it came from is asked each time what it stands for now; what is in the store
// already is not brought again. An image that somebody else has put into the store, as with `msb load`, is taken as it is, as `docker run`
// takes what Docker has.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/owned"
	"dagger/parity/internal/reference/registry"
)

// Store is MicroSandbox's store of images.
type Store struct {
	MSB *msb.Client
	Log io.Writer // what is done, for people; nil is nobody
}

// Image is an image of the store.
type Image struct {
	User string // as which it is to run; empty is root, or not known
}

// Deliver brings an image into the store under its reference. The Docker Engine is asked first, and has to have an image that was built
// locally: no registry is asked for that. Of other images that the engine does not have, the store is asked, and then the registry. When no
// registry can be reached, the image that was brought from there before is used, and Log is told.
func (s Store) Deliver(ctx context.Context, ref string, builtLocally bool) (Image, error) {
	if s.Log == nil {
		s.Log = io.Discard
	}
	if _, err := name.ParseReference(ref); err != nil {
		return Image{}, fmt.Errorf("the image: %w", err)
	}
	records := ledger{filepath.Join(s.MSB.Home, "devsy-images")}
	unlock, err := records.lock(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	r, err := records.read(ref)
	if err != nil {
		return Image{}, err
	}
	d := delivery{Store: s, ref: ref, records: records, record: r}
	image, err := d.deliver(ctx, builtLocally)
	if errors.Is(err, unix.ENOSPC) || err != nil && strings.Contains(err.Error(), "No space left on device") { // in msb's own words
		err = fmt.Errorf("the disk of %s has no room for the image %s: %w", s.MSB.Home, ref, err)
	}
	return image, err
}

// source is an image where it comes from.
type source struct {
	place    string // for people
	identity string // another one for another image
	user     string
	save     func(context.Context, *os.File) error // writes it as an archive that msb loads
}

// delivery is the delivery of one image.
type delivery struct {
	Store
	ref     string
	records ledger
	record  record
}

func (d delivery) deliver(ctx context.Context, builtLocally bool) (Image, error) {
	if stale, ok := d.stale(ctx); ok {
		return stale, nil
	}
	src, closeDocker, err := fromDocker(ctx, d.ref, builtLocally)
	if err != nil {
		return Image{}, err
	}
	defer closeDocker()
	if src == nil {
		return d.withoutDocker(ctx)
	}
	var stored msb.ImageDetails
	if d.record.Source == src.identity { // or it is another image, whatever the store has
		if stored, err = d.stored(ctx); err != nil {
			return Image{}, err
		}
	}
	return d.bring(ctx, *src, stored.Digest)
}

// withoutDocker delivers an image that the Docker Engine does not have.
func (d delivery) withoutDocker(ctx context.Context) (Image, error) {
	stored, err := d.stored(ctx)
	if err != nil {
		return Image{}, err
	}
	inStore := Image{User: stored.Config.User}
	if stored.Digest != "" && !d.record.isOf(stored.Digest) {
		fmt.Fprintf(d.Log, "image %s: MicroSandbox has it, and Docker does not\n", d.ref)
		return inStore, nil
	}
	src, err := fromRegistry(ctx, d.ref)
	if errors.Is(err, registry.ErrUnreachable) && stored.Digest != "" && stored.Digest == d.record.Digest {
		fmt.Fprintf(d.Log, "warning: image %s: %v; it is used as it was brought before, and may have changed since\n", d.ref, err)
		return inStore, nil
	}
	if err != nil {
		return Image{}, err
	}
	return d.bring(ctx, *src, stored.Digest)
}

// bring loads an image, unless it is the one that the store has, by its digest there.
func (d delivery) bring(ctx context.Context, src source, digest string) (Image, error) {
	if digest != "" && digest == d.record.Digest && src.identity == d.record.Source {
		fmt.Fprintf(d.Log, "image %s: MicroSandbox has it already from %s\n", d.ref, src.place)
		return Image{User: src.user}, nil
	}
	return Image{User: src.user}, d.load(ctx, src)
}

// stored gives what the store has under the reference; the digest is empty if there is nothing.
func (d delivery) stored(ctx context.Context) (msb.ImageDetails, error) {
	stored, err := d.MSB.InspectImage(ctx, d.ref)
	if errors.Is(err, msb.ErrNoImage) {
		return msb.ImageDetails{}, nil
	}
	return stored, err
}

// load brings an image into the store. It goes over a file beside the store: what breaks off in the middle never gets there, and msb reads
// an archive from its end.
func (d delivery) load(ctx context.Context, src source) (err error) {
	const prefix = "incoming-"
	if _, err := owned.Clean(d.records.dir, prefix, nil); err != nil {
		return err
	}
	folder, err := owned.Make(d.records.dir, prefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Remove()) }()
	archive := filepath.Join(folder.Path, "image.tar")
	began := time.Now()
	size, err := save(ctx, src, archive)
	if err != nil {
		return err
	}
	transferred := time.Since(began)

	// From here on, what the store has under the reference may be this image.
	d.record = record{Reference: d.ref, Source: src.identity}
	if err := d.records.write(d.record); err != nil {
		return err
	}
	began = time.Now()
	if err := d.MSB.LoadAs(ctx, archive, d.ref); err != nil {
		return err
	}
	stored, err := d.stored(ctx)
	if err != nil {
		return err
	}
	d.record.Digest = stored.Digest
	fmt.Fprintf(d.Log, "image %s: %d MiB from %s in %s, into MicroSandbox's store in %s\n", d.ref, size>>20, src.place,
		transferred.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return d.records.write(d.record)
}

// save writes the archive of an image to a file, and gives its size.
func save(ctx context.Context, src source, file string) (size int64, err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := src.save(ctx, f); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
