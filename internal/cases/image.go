package cases

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/fault"
)

// imageRepository is the repository of the plain image in the registry of a case.
const imageRepository = "parity/base"

// plainImage is the plain image of a Bench, and where it is.
type plainImage struct {
	tag   string // the run's
	probe string // the probe program, which the image has too; empty means that it has none
	// bare is the reference by which Healthy makes a sandbox. Only MicroSandbox's store has it: no
	// registry is asked for it.
	bare   string
	loaded bool // MicroSandbox's store has bare

	registry *registry.Registry // nil until ServeImage starts it
	digest   v1.Hash            // what the registry has
	client   *http.Transport    // by which this program asks the registry, without a proxy
}

// ask is how this program asks the registry. What is on this machine is not asked again when it
// fails.
func (p plainImage) ask(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(p.client), remote.WithRetryBackoff(remote.Backoff{Steps: 1})}
}

// ServeImage builds the plain image and publishes it in a registry of the case's own, which the
// clean-up of NewBench closes. It also loads it into MicroSandbox's store under the same reference;
// where the workspaces are to be elsewhere, into that of each side. Then Image is set.
func (b *Bench) ServeImage(ctx context.Context) error {
	img, err := b.buildImage()
	if err != nil {
		return err
	}
	if err := b.startRegistry(ctx); err != nil {
		return fmt.Errorf("the image's registry: %w", err)
	}
	ref := fmt.Sprintf("%s/%s:%s", b.image.registry.Host(), imageRepository, b.image.tag)
	if err := b.publish(ctx, ref, img); err != nil {
		return fmt.Errorf("publish the image %s: %w", ref, err)
	}
	if err := b.load(ctx, img, ref); err != nil {
		return err
	}
	b.Image = ref
	if err := b.ImageServed(ctx); err != nil {
		return err
	}
	if fault.On(fault.ImageRegistryDies) && b.elsewhere == nil { // else once the other side was seen to read it
		return b.image.registry.Close()
	}
	return nil
}

// ImageServed shows that the registry answers, and that it has the plain image. It returns nil
// where ServeImage was not called.
func (b *Bench) ImageServed(ctx context.Context) error {
	if b.Image == "" {
		return nil
	}
	tag, err := name.NewTag(b.Image)
	if err != nil {
		return err
	}
	found, err := remote.Head(tag, b.image.ask(ctx)...)
	if err == nil && found.Digest != b.image.digest {
		err = fmt.Errorf("expected the manifest %s, seen %s", b.image.digest, found.Digest)
	}
	if err != nil {
		return fmt.Errorf("the registry of the image %s is broken: %w", b.Image, err)
	}
	return nil
}

// ImageManifest gives the URL of the plain image's manifest in a registry that serves HTTPS, and
// the digest of what is there.
func (b *Bench) ImageManifest() (url string, digest v1.Hash) {
	return fmt.Sprintf("https://%s/v2/%s/manifests/%s", b.image.registry.Host(), imageRepository, b.image.tag), b.image.digest
}

// buildImage builds the plain image.
func (b *Bench) buildImage() (v1.Image, error) {
	defer b.timed("image build")()
	return images.Build(images.Spec{Nonce: Nonce("image"), Probe: b.image.probe})
}

// startRegistry starts the registry: on loopback over HTTP, or as the Bench's Elsewhere has it.
func (b *Bench) startRegistry(ctx context.Context) (err error) {
	b.image.client = &http.Transport{DisableKeepAlives: true} // else the registry would wait for it when it is closed
	folder := filepath.Join(b.dir, "i")
	if b.elsewhere == nil {
		if b.image.registry, err = registry.Start(registry.Options{Dir: folder}); err != nil {
			return err
		}
		return b.allowHTTP(b.image.registry.Host())
	}
	bundle, err := os.ReadFile(b.elsewhere.Bundle)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return fmt.Errorf("%s: expected certificates in PEM", b.elsewhere.Bundle)
	}
	b.image.client.TLSClientConfig = &tls.Config{RootCAs: roots}
	b.image.registry, err = b.elsewhere.Registry(ctx, folder)
	return err
}

// allowHTTP has MicroSandbox pull from a registry without TLS.
func (b *Bench) allowHTTP(host string) error {
	type settings map[string]any
	text, err := json.Marshal(settings{"registries": settings{"hosts": settings{host: settings{"insecure": true}}}})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.MSB.Home, "config.json"), text, 0o644)
}

// publish puts the plain image into the registry.
func (b *Bench) publish(ctx context.Context, ref string, img v1.Image) error {
	defer b.timed("image publish")()
	if fault.On(fault.RegistryRefuses) {
		b.image.registry.Misbehave(registry.Broken)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	if b.image.digest, err = img.Digest(); err != nil {
		return err
	}
	return remote.Write(tag, img, b.image.ask(ctx)...)
}

// load puts an image into MicroSandbox's store under a reference, and as that of Healthy's sandbox.
func (b *Bench) load(ctx context.Context, img v1.Image, ref string) error {
	archive := filepath.Join(b.dir, "image.tar")
	if err := images.WriteDockerArchive(archive, ref, img); err != nil {
		return err
	}
	there, err := b.carry(ctx, archive)
	if err != nil {
		return err
	}
	if err := b.MSB.LoadAs(ctx, there, b.image.bare); err != nil {
		return err
	}
	if b.Here != nil { // so that a subject that makes the workspace here can, and is found out
		if err := b.Here.LoadAs(ctx, archive, b.image.bare); err != nil {
			return err
		}
	}
	b.image.loaded = true
	return os.Remove(archive)
}

// loadBare has MicroSandbox's store have the image of Healthy's sandbox.
func (b *Bench) loadBare(ctx context.Context) error {
	if b.image.loaded {
		return nil
	}
	img, err := b.buildImage()
	if err != nil {
		return err
	}
	return b.load(ctx, img, b.image.bare)
}

// closeRegistry closes the registry of the plain image, if there is one.
func (b *Bench) closeRegistry(context.Context) error {
	if b.image.registry == nil {
		return nil
	}
	return b.image.registry.Close()
}
