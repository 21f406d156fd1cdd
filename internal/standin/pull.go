package standin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/spf13/pflag"
)

// pullOptions are the flags of `msb pull`.
type pullOptions struct {
	insecure, force bool
	caCerts         string
}

func (o *pullOptions) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.insecure, "insecure", false, "")
	f.BoolVarP(&o.force, "force", "f", false, "")
	f.StringVar(&o.caCerts, "ca-certs", "", "")
}

// config is what the stand-in heeds of the config.json of MSB_HOME.
type config struct {
	Registries struct {
		CACerts string `json:"ca_certs"`
		Hosts   map[string]struct {
			Insecure bool `json:"insecure"`
		} `json:"hosts"`
	} `json:"registries"`
}

func (s store) config() (config, error) {
	c, err := readRecord[config](filepath.Join(s.home, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return config{}, nil
	}
	return c, err
}

// pull brings an image from its registry into the store. Without force, a reference that the store
// has is left as it is. The stand-in logs in nowhere.
func (s store) pull(text string, o pullOptions) error {
	ref, err := name.ParseReference(text)
	if err != nil {
		return fmt.Errorf("invalid image reference: %w", err)
	}
	refs, err := s.references()
	if err != nil {
		return err
	}
	if refs[text] != "" && !o.force {
		return nil
	}
	over, err := s.transport(ref.Context().RegistryStr(), o)
	if err != nil {
		return err
	}
	img, err := remote.Image(ref, remote.WithTransport(over), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		return fmt.Errorf("image error: registry error: %w", err)
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	id, err := s.keep(img)
	if err != nil {
		return fmt.Errorf("image error: %w", err)
	}
	if refs, err = s.references(); err != nil { // again: this time nobody else changes them
		return err
	}
	refs[text] = id
	return writeRecord(s.referencesFile(), refs)
}

// transport is the way to a registry: HTTPS with the authorities that are trusted, or plain HTTP
// where that was asked for, and there only. The library would take plain HTTP to loopback by
// itself.
func (s store) transport(host string, o pullOptions) (http.RoundTripper, error) {
	c, err := s.config()
	if err != nil {
		return nil, err
	}
	trusted, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	for _, file := range []string{o.caCerts, c.Registries.CACerts} {
		if file == "" {
			continue
		}
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("CA certificates: %w", err)
		}
		if !trusted.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA certificates: %s has no certificate in PEM", file)
		}
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSClientConfig = &tls.Config{RootCAs: trusted}
	scheme := "https"
	if o.insecure || c.Registries.Hosts[host].Insecure {
		scheme = "http"
	}
	return &fixedScheme{base: base, host: host, scheme: scheme}, nil
}

// fixedScheme sends what is for one host with one scheme, whatever is asked for.
type fixedScheme struct {
	base         http.RoundTripper
	host, scheme string
}

// RoundTrip implements http.RoundTripper.
func (f *fixedScheme) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == f.host && r.URL.Scheme != f.scheme {
		r = r.Clone(r.Context())
		r.URL.Scheme = f.scheme
	}
	return f.base.RoundTrip(r)
}
