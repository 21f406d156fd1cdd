// Package registry reads images from registries as this machine's user would: with the logins and credential helpers of the user's Docker
// config, the machine's certificate authorities, and plain HTTP on loopback and private addresses only.
package registry

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Platform is that of the images that are asked for.
var Platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// ErrUnreachable is what an error is when no registry answered: its name is not known, or nothing took the connection.
var ErrUnreachable = errors.New("the registry cannot be reached")

// Image is an image of a registry.
type Image struct {
	Reference name.Reference
	Digest    v1.Hash // of what the reference names: an image, or an index of images
	User      string  // as which it is to run; empty is root

	image v1.Image
}

// Find asks a registry for an image of the Platform: its manifest and its config. It downloads no layer.
func Find(ctx context.Context, ref string) (Image, error) {
	reference, err := name.ParseReference(ref)
	if err != nil {
		return Image{}, fmt.Errorf("the image: %w", err)
	}
	i := Image{Reference: reference}
	if err := i.find(ctx); err != nil {
		return i, explain(reference, err)
	}
	return i, nil
}

func (i *Image) find(ctx context.Context) error {
	found, err := get(ctx, i.Reference)
	if err != nil {
		return err
	}
	i.Digest = found.Digest
	if found.MediaType.IsIndex() {
		if err := hasPlatform(found); err != nil {
			return err
		}
	}
	if i.image, err = found.Image(); err != nil {
		return err
	}
	config, err := i.image.ConfigFile()
	if err != nil {
		return err
	}
	i.User = config.Config.User
	return CheckPlatform(config.OS, config.Architecture)
}

// CheckPlatform fails when an image is for another platform than this one. An image that does not say is taken.
func CheckPlatform(os, architecture string) error {
	if os != "" && os != Platform.OS || architecture != "" && architecture != Platform.Architecture {
		return fmt.Errorf("expected an image for %s, seen one for %s/%s", Platform, os, architecture)
	}
	return nil
}

// hasPlatform fails when an index has no image for this platform.
func hasPlatform(found *remote.Descriptor) error {
	index, err := found.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	var others []string
	for _, m := range manifest.Manifests {
		if m.Platform == nil {
			continue
		}
		if m.Platform.Satisfies(Platform) {
			return nil
		}
		others = append(others, m.Platform.String())
	}
	return fmt.Errorf("expected an image for %s among those of the index, seen %s", Platform, strings.Join(others, ", "))
}

// Resolve gives a reference by digest of what a reference names now.
func Resolve(ctx context.Context, ref string) (string, error) {
	reference, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("the image: %w", err)
	}
	found, err := get(ctx, reference)
	if err != nil {
		return "", explain(reference, err)
	}
	return reference.Context().Digest(found.Digest.String()).String(), nil
}

func get(ctx context.Context, ref name.Reference) (*remote.Descriptor, error) {
	return remote.Get(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(Platform),
		remote.WithUserAgent("parity"), remote.WithTransport(guarded))
}

// explain makes an error of a registry one that says what to do.
func explain(ref name.Reference, err error) error {
	host := ref.Context().RegistryStr()
	answer, answered := errors.AsType[*transport.Error](err)
	_, noName := errors.AsType[*net.DNSError](err)
	call, isCall := errors.AsType[*net.OpError](err)
	_, unknownCA := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case answered && answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the registry %s has no image %s: %w", host, ref, err)
	case answered && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return fmt.Errorf("the registry %s refuses the image %s with the login that it was given, if any; `docker login %s` keeps one: %w", host, ref, host, err)
	case unknownCA:
		return fmt.Errorf("the registry %s has a certificate of an authority that this machine does not trust; add that to the machine's, or name a file with it in SSL_CERT_FILE: %w", host, err)
	case noName || isCall && call.Op == "dial":
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, host, err)
	}
	return fmt.Errorf("the image %s from the registry %s: %w", ref, host, err)
}
