package msbtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
)

func startRegistry(t *testing.T, o registry.Options) *registry.Registry {
	t.Helper()
	r, err := registry.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// push pushes an image to a registry.
func push(t *testing.T, r *registry.Registry, ref string, img v1.Image) {
	t.Helper()
	trusting := x509.NewCertPool()
	trusting.AppendCertsFromPEM(r.CA())
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		over := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusting}, DisableKeepAlives: true}
		err = remote.Write(to, img, remote.WithContext(t.Context()), remote.WithTransport(over))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// configure writes the config.json of MSB_HOME.
func configure(t *testing.T, c *msb.Client, registries map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"registries": registries})
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Home, "config.json"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What the image store does with registries: nothing of it boots a sandbox.
func (b bench) pull(t *testing.T) {
	r := startRegistry(t, registry.Options{})
	one, oneDigest := buildImage(t, images.Spec{Nonce: "pull-one", User: "dev"})
	two, twoDigest := buildImage(t, images.Spec{Nonce: "pull-two"})
	const repository = "parity/pull"
	ref := r.Host() + "/" + repository + ":1"
	push(t, r, ref, one)
	c := b.newClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	plain := msb.PullOptions{Insecure: true}
	refused := func(what string, err error, words ...string) {
		t.Helper()
		code, ok := proc.ExitCode(err)
		if !ok || code != 1 {
			t.Errorf("%s gives %v", what, err)
			return
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: no %q in %v", what, word, err)
			}
		}
	}

	// Plain HTTP has to be asked for, of loopback too.
	refused("a registry without TLS", c.Pull(ctx, ref, msb.PullOptions{}))
	if got := digests(t, c); len(got) > 0 {
		t.Errorf("after a pull that was refused the store has %v", got)
	}
	before := r.Reads(repository)
	if err := c.Pull(ctx, ref, plain); err != nil {
		t.Fatal(err)
	}
	if got := digests(t, c); len(got) != 1 || got[ref] != oneDigest {
		t.Errorf("%s was pulled: %v", oneDigest, got)
	}
	if details, err := c.InspectImage(ctx, ref); err != nil || details.Config.User != "dev" {
		t.Errorf("the pulled image is %+v, %v", details, err)
	}
	if after := r.Reads(repository); after == before {
		t.Errorf("the registry was not asked: %+v", after)
	}

	// The tag moves. The reference moves when that is forced, and no earlier.
	push(t, r, ref, two)
	if err := c.Pull(ctx, ref, plain); err != nil {
		t.Fatal(err)
	}
	if got := digests(t, c); len(got) != 1 || got[ref] != oneDigest {
		t.Errorf("the tag moved to %s, and was pulled without force: %v", twoDigest, got)
	}
	if err := c.Pull(ctx, ref, msb.PullOptions{Insecure: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	if got := digests(t, c); len(got) != 1 || got[ref] != twoDigest {
		t.Errorf("the tag moved to %s, and was pulled with force: %v", twoDigest, got)
	}

	refused("a tag that there is not", c.Pull(ctx, r.Host()+"/"+repository+":none", plain))
	refused("a bad reference", c.Pull(ctx, "Not A Reference", plain))

	// The config of MSB_HOME takes the place of the flag, for its host alone.
	byDigest := r.Host() + "/" + repository + "@" + oneDigest
	configure(t, c, map[string]any{"hosts": map[string]any{"127.0.0.1:1": map[string]bool{"insecure": true}}})
	refused("a registry without TLS, another being configured", c.Pull(ctx, byDigest, msb.PullOptions{}))
	configure(t, c, map[string]any{"hosts": map[string]any{r.Host(): map[string]bool{"insecure": true}}})
	if err := c.Pull(ctx, byDigest, msb.PullOptions{}); err != nil {
		t.Error(err)
	}
	if got := digests(t, c); got[byDigest] != oneDigest {
		t.Errorf("%s was pulled: %v", byDigest, got)
	}
	b.pullOverTLS(t, ctx, one, oneDigest)
}

// pullOverTLS pulls from a registry whose certificate is of a CA that nobody knows.
func (b bench) pullOverTLS(t *testing.T, ctx context.Context, img v1.Image, digest string) {
	t.Helper()
	r := startRegistry(t, registry.Options{TLS: true})
	ref := r.Host() + "/parity/tls:1"
	push(t, r, ref, img)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, r.CA(), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, pull := range map[string]func(*msb.Client) error{
		"with --ca-certs": func(c *msb.Client) error { return c.Pull(ctx, ref, msb.PullOptions{CACerts: ca}) },
		"with a configured CA": func(c *msb.Client) error {
			configure(t, c, map[string]any{"ca_certs": ca})
			return c.Pull(ctx, ref, msb.PullOptions{})
		},
	} {
		c := b.newClient(t)
		err := c.Pull(ctx, ref, msb.PullOptions{})
		if code, ok := proc.ExitCode(err); !ok || code != 1 {
			t.Errorf("a CA that nobody knows gives %v", err)
		}
		if err := pull(c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := digests(t, c); len(got) != 1 || got[ref] != digest {
			t.Errorf("%s, %s was pulled: %v", what, digest, got)
		}
	}
}
