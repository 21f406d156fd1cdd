package reference_test

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/internal/subject"
)

// pushed pushes an image whose user is dev:users to a registry of the test's own, and gives its reference.
func pushed(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	img, err := random.Image(1000, 1)
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{User: "dev:users"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/some/image:1")
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// Both providers bring the image of a registry into MicroSandbox's store, and have its user.
func TestImageOfARegistry(t *testing.T) {
	builtin := newBench(t)
	builtin.addProvider(nil)
	external := newExternalBench(t)
	external.must(external.ProviderAdd(bounded(t), external.manifest, "p", nil))
	for provider, b := range map[string]*bench{"builtin": builtin, "external": external.bench} {
		ref := pushed(t)
		b.devcontainer(`{"image": "` + ref + `"}`)
		res, code := b.run("workspace", "up", "--id", "w", "--provider", "p", b.dir)
		if code != 0 || !strings.Contains(string(res.Stdout), `"remoteUser":"dev"`) {
			t.Errorf("%s: up: %d, %s%s", provider, code, res.Stdout, res.Stderr)
		}
		if !strings.Contains(string(res.Stderr), "image "+ref+": 0 MiB from the registry") {
			t.Errorf("%s: it is not told where the image is from: %s", provider, res.Stderr)
		}
		create := b.asked("create")
		if len(create) != 1 || !strings.Contains(create[0], "--pull never") || !strings.Contains(create[0], "--user dev:users") {
			t.Errorf("%s: msb was asked for %q", provider, create)
		}
		// A user that devcontainer.json names goes before the image's, and the image is not brought again.
		b.devcontainer(`{"image": "` + ref + `", "containerUser": "other"}`)
		up, err := b.up(subject.UpOptions{Recreate: true})
		if err != nil || up.RemoteUser != "other" || len(b.asked("load")) != 1 {
			t.Errorf("%s: up --recreate: %+v, %v, after %q", provider, up, err, b.asked("load"))
		}
	}
}

// An image that is nowhere makes no machine, for both providers, and says where it was looked for.
func TestImageThatIsNowhere(t *testing.T) {
	builtin := newBench(t)
	builtin.addProvider(nil)
	external := newExternalBench(t)
	external.must(external.ProviderAdd(bounded(t), external.manifest, "p", nil))
	for provider, b := range map[string]*bench{"builtin": builtin, "external": external.bench} {
		ref := pushed(t)
		for image, want := range map[string]string{
			strings.TrimSuffix(ref, "1") + "2": "has no image " + strings.TrimSuffix(ref, "1") + "2",
			"127.0.0.1:1/some/image:1":         "the registry cannot be reached: 127.0.0.1:1",
			"Upper/case":                       "the image: ",
		} {
			b.devcontainer(`{"image": "` + image + `"}`)
			_, err := b.up(subject.UpOptions{Recreate: true})
			if err == nil || !strings.Contains(err.Error(), want) || len(b.asked("create")) > 0 {
				t.Errorf("%s: %s: got %v, want %q", provider, image, err, want)
			}
		}
		if left, _ := os.ReadDir(filepath.Join(b.msb, "images")); len(left) > 0 {
			t.Errorf("%s: images were brought: %v", provider, left)
		}
	}
}
