package images_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/internal/msb"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/reference/images"
	source "dagger/parity/internal/reference/registry"
)

// deliverEnv names the image that this test program is to bring, in place of running tests.
const deliverEnv = "PARITY_TEST_DELIVER"

func TestMain(m *testing.M) {
	if ref := os.Getenv(deliverEnv); ref != "" {
		store := images.Store{MSB: &msb.Client{Path: os.Getenv("PARITY_MSB"), Home: os.Getenv("MSB_HOME")}}
		_, err := store.Deliver(context.Background(), ref, false)
		panic(err) // it was to be killed
	}
	os.Exit(m.Run())
}

// answer answers in place of the registry, and says so.
type answer func(w http.ResponseWriter, r *http.Request, registry http.Handler) bool

// bench is a store over a stand-in for msb, and a real registry that counts and can be made to answer otherwise.
type bench struct {
	*testing.T
	images.Store
	log  bytes.Buffer
	host string // the registry's

	mu    sync.Mutex
	reads []string // what was read, such as "manifests/1"
	wrong answer
	serve *httptest.Server
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t}
	script, err := os.ReadFile("../../msbdriver/testdata/msb.sh")
	b.must(err)
	path := filepath.Join(t.TempDir(), "msb")
	b.must(os.WriteFile(path, script, 0o755))
	b.Store = images.Store{MSB: &msb.Client{Path: path, Home: t.TempDir()}, Log: &b.log}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("DOCKER_HOST", "") // no engine has what is pushed to this test's own registry
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	b.serve = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		parts := strings.Split(r.URL.Path, "/")
		if r.Method == http.MethodGet && len(parts) > 5 {
			b.reads = append(b.reads, strings.Join(parts[len(parts)-2:], "/"))
		}
		if b.wrong == nil || !b.wrong(w, r, real) {
			real.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(b.serve.Close)
	b.host = strings.TrimPrefix(b.serve.URL, "http://")
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// answer sets what the registry does in place of answering.
func (b *bench) answer(wrong answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = wrong
}

// taken gives what was read of the registry since the last call.
func (b *bench) taken() (manifests, blobs int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, read := range b.reads {
		if strings.HasPrefix(read, "manifests/") {
			manifests++
		} else if strings.HasPrefix(read, "blobs/") {
			blobs++
		}
	}
	b.reads = nil
	return manifests, blobs
}

// image makes an image with random content for a platform.
func (b *bench) image(architecture string) v1.Image {
	b.Helper()
	img, err := random.Image(100_000, 3)
	b.must(err)
	config, err := img.ConfigFile()
	b.must(err)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.User = "linux", architecture, "dev:users"
	img, err = mutate.ConfigFile(img, config)
	b.must(err)
	return img
}

// push pushes an image, or an index, and gives its reference.
func (b *bench) push(what remote.Taggable, tag string) string {
	b.Helper()
	ref, err := name.NewTag(b.host + "/some/image:" + tag)
	b.must(err)
	b.must(remote.Push(ref, what))
	b.taken()
	return ref.String()
}

func (b *bench) deliver(ref string) (images.Image, error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	b.log.Reset()
	return b.Deliver(ctx, ref, false)
}

// loads gives how often msb loaded an archive.
func (b *bench) loads() int {
	text, _ := os.ReadFile(filepath.Join(b.MSB.Home, "log"))
	return strings.Count("\n"+string(text), "\nload ")
}

// loaded checks the archive that msb loaded last: an OCI layout with the image, of which every blob has its digest.
func (b *bench) loaded(img v1.Image, ref string) {
	b.Helper()
	f, err := os.Open(filepath.Join(b.MSB.Home, "loaded.tar"))
	b.must(err)
	defer f.Close()
	blobs := map[string]bool{}
	var index v1.IndexManifest
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		b.must(err)
		content, err := io.ReadAll(r)
		b.must(err)
		sum := sha256.Sum256(content)
		switch hex, isBlob := strings.CutPrefix(h.Name, "blobs/sha256/"); {
		case isBlob && hex != fmt.Sprintf("%x", sum):
			b.Errorf("%s has the digest %x", h.Name, sum)
		case isBlob:
			blobs[hex] = true
		case h.Name == "index.json":
			b.must(json.Unmarshal(content, &index))
		}
	}
	manifest, err := img.Manifest()
	b.must(err)
	digest, err := img.Digest()
	b.must(err)
	want := []string{digest.Hex, manifest.Config.Digest.Hex}
	for _, layer := range manifest.Layers {
		want = append(want, layer.Digest.Hex)
	}
	for _, blob := range want {
		if !blobs[blob] {
			b.Errorf("the archive lacks the blob %s", blob)
		}
	}
	if len(blobs) != len(want) || len(index.Manifests) != 1 || index.Manifests[0].Digest != digest ||
		index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != ref {
		b.Errorf("the archive has %d blobs, not %d, and the index %+v", len(blobs), len(want), index)
	}
}

// nothingLeft checks that no archive was left.
func (b *bench) nothingLeft() {
	b.Helper()
	left, _ := filepath.Glob(filepath.Join(b.MSB.Home, "devsy-images", "incoming-*"))
	if len(left) > 0 {
		b.Errorf("%q was left", left)
	}
}

func TestFromARegistry(t *testing.T) {
	b := newBench(t)
	first := b.image("amd64")
	ref := b.push(first, "1")
	got, err := b.deliver(ref)
	manifests, blobs := b.taken()
	if err != nil || got.User != "dev:users" || b.loads() != 1 || manifests == 0 || blobs != 4 {
		t.Fatalf("%+v, %v, after %d loads, and reads of %d manifests and %d blobs", got, err, b.loads(), manifests, blobs)
	}
	b.loaded(first, ref)

	// It is asked for again, and not brought again.
	got, err = b.deliver(ref)
	manifests, blobs = b.taken()
	if err != nil || got.User != "dev:users" || b.loads() != 1 || manifests == 0 || blobs > 1 {
		t.Errorf("the same again: %+v, %v, after %d loads, and reads of %d manifests and %d blobs", got, err, b.loads(), manifests, blobs)
	}

	// The tag moves.
	second := b.image("amd64")
	b.push(second, "1")
	if _, err = b.deliver(ref); err != nil || b.loads() != 2 {
		t.Errorf("a moved tag: %v after %d loads", err, b.loads())
	}
	b.loaded(second, ref)
	b.nothingLeft()
}

// A reference by digest, and one to an index of images for several platforms.
func TestOtherReferences(t *testing.T) {
	b := newBench(t)
	img, other := b.image("amd64"), b.image("arm64")
	digest, err := img.Digest()
	b.must(err)
	b.push(img, "1")
	byDigest := b.host + "/some/image@" + digest.String()
	if _, err := b.deliver(byDigest); err != nil {
		t.Fatal(err)
	}
	b.loaded(img, byDigest)

	var index v1.ImageIndex = empty.Index
	for architecture, one := range map[string]v1.Image{"arm64": other, "amd64": img} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	multi := b.push(index, "multi")
	if _, err := b.deliver(multi); err != nil {
		t.Fatal(err)
	}
	b.loaded(img, multi)

	alone := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{
		Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	for ref, want := range map[string]string{
		b.push(alone, "alone"): "expected an image for linux/amd64 among those of the index, seen linux/arm64",
		b.push(other, "arm"):   "expected an image for linux/amd64, seen one for linux/arm64",
		"Upper:1":              "the image: ",
	} {
		if _, err := b.deliver(ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", ref, err, want)
		}
	}
}

func TestRegistriesThatMisbehave(t *testing.T) {
	const unauthorized = "refuses the image"
	login := func(user string) answer {
		return func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if name, password, _ := r.BasicAuth(); name == user && password == "secret" {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	always := func(status int) answer {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool { w.WriteHeader(status); return true }
	}
	// cut breaks off the first n answers with a layer in the middle; fewer than 0: all.
	cut := func(n int) answer {
		return func(w http.ResponseWriter, r *http.Request, registry http.Handler) bool {
			layer := layerOf(r, registry)
			if layer == nil || n == 0 {
				return false
			}
			n--
			w.Header().Set("Content-Length", strconv.Itoa(len(layer)))
			_, _ = w.Write(layer[:len(layer)/2])
			panic(http.ErrAbortHandler)
		}
	}
	once := func(status int) answer {
		done := false
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
			if done {
				return false
			}
			done = true
			w.WriteHeader(status)
			return true
		}
	}
	for name, c := range map[string]struct {
		answer answer
		ref    string // what follows the repository
		want   string // empty: it is delivered
	}{
		"no such tag":       {ref: ":2", want: "has no image"},
		"no such digest":    {ref: "@sha256:" + strings.Repeat("0", 64), want: "has no image"},
		"the right login":   {answer: login("right")},
		"the wrong login":   {answer: login("other"), want: unauthorized},
		"busy once":         {answer: once(http.StatusTooManyRequests)},
		"broken":            {answer: always(http.StatusInternalServerError), want: "500 Internal Server Error"},
		"breaks off once":   {answer: cut(1)},
		"always breaks off": {answer: cut(-1), want: "unexpected EOF"},
		"another manifest":  {ref: "@sha256:" + strings.Repeat("1", 64), answer: otherManifest, want: "does not match"},
		"another layer":     {answer: otherLayer, want: "error verifying sha256"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.must(os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(`{"auths": {"`+b.host+`": {"auth": "`+
				base64.StdEncoding.EncodeToString([]byte("right:secret"))+`"}}}`), 0o600))
			img := b.image("amd64")
			b.push(img, "1")
			b.answer(c.answer)
			if c.ref == "" {
				c.ref = ":1"
			}
			_, err := b.deliver(b.host + "/some/image" + c.ref)
			b.nothingLeft()
			if c.want == "" {
				b.must(err)
				b.loaded(img, b.host+"/some/image"+c.ref)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), b.host) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if n := b.loads(); n != 0 {
				t.Errorf("msb loaded %d archives", n)
			}
		})
	}
}

// otherManifest answers a reference by digest with something else.
func otherManifest(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
	if !strings.Contains(r.URL.Path, "/manifests/") {
		return false
	}
	w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	_, _ = io.WriteString(w, `{"schemaVersion": 2}`)
	return true
}

// otherLayer answers with a layer of which one byte is another.
func otherLayer(w http.ResponseWriter, r *http.Request, registry http.Handler) bool {
	layer := layerOf(r, registry)
	if layer == nil {
		return false
	}
	layer[len(layer)/2]++
	_, _ = w.Write(layer)
	return true
}

// layerOf gives the layer that is asked for; nil if something else is.
func layerOf(r *http.Request, registry http.Handler) []byte {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		return nil
	}
	recorded := httptest.NewRecorder()
	registry.ServeHTTP(recorded, r)
	if recorded.Body.Len() < 100_000 { // a config
		return nil
	}
	return recorded.Body.Bytes()
}

func TestTheCertificateOfAnUnknownAuthority(t *testing.T) {
	b := newBench(t)
	secure := httptest.NewUnstartedServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	_, err := b.deliver(secure.Listener.Addr().String() + "/some/image:1")
	if err == nil || !strings.Contains(err.Error(), "an authority that this machine does not trust") || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("got %v", err)
	}
}

func TestARegistryThatCannotBeReached(t *testing.T) {
	b := newBench(t)
	ref := b.push(b.image("amd64"), "1")
	if _, err := b.deliver(ref); err != nil {
		t.Fatal(err)
	}
	b.serve.Close()
	got, err := b.deliver(ref)
	if err != nil || got.User != "dev:users" || b.loads() != 1 || !strings.Contains(b.log.String(), "warning: image "+ref+": the registry cannot be reached") {
		t.Errorf("what was brought before: %+v, %v, %s", got, err, b.log.String())
	}
	other := strings.TrimSuffix(ref, "1") + "2"
	if _, err := b.deliver(other); !errors.Is(err, source.ErrUnreachable) {
		t.Errorf("what was not brought before: %v", err)
	}
}

// What somebody else has put into the store is used, whatever the registry has; what has been put there by an earlier delivery that did not
// come to its end is not trusted.
func TestWhatTheStoreHas(t *testing.T) {
	b := newBench(t)
	img := b.image("amd64")
	ref := b.push(img, "1")
	archive := filepath.Join(t.TempDir(), "a.tar")
	b.must(os.WriteFile(archive, []byte("somebody's"), 0o644))
	b.must(b.MSB.LoadAs(t.Context(), archive, ref))
	if _, err := b.deliver(ref); err != nil || b.loads() != 1 {
		t.Errorf("%v, after %d loads", err, b.loads())
	}
	if manifests, blobs := b.taken(); manifests+blobs > 0 {
		t.Errorf("the registry was read: %d, %d", manifests, blobs)
	}

	records, err := filepath.Glob(filepath.Join(b.MSB.Home, "devsy-images", "*.json"))
	b.must(err)
	if len(records) > 0 {
		t.Errorf("there are records of what was not brought: %q", records)
	}
	next := b.push(img, "next")
	if _, err := b.deliver(next); err != nil || b.loads() != 2 {
		t.Fatalf("%v, after %d loads", err, b.loads())
	}
	records, _ = filepath.Glob(filepath.Join(b.MSB.Home, "devsy-images", "*.json"))
	text, err := os.ReadFile(slices.Concat(records)[0])
	b.must(err)
	var record map[string]string
	b.must(json.Unmarshal(text, &record))
	delete(record, "digest") // as it is while msb loads
	text, err = json.Marshal(record)
	b.must(err)
	b.must(os.WriteFile(records[0], text, 0o600))
	if _, err := b.deliver(next); err != nil || b.loads() != 3 {
		t.Errorf("%v, after %d loads", err, b.loads())
	}

	// Somebody loads something else under a reference that was delivered: that is theirs now.
	b.must(b.MSB.LoadAs(t.Context(), archive, next))
	if _, err := b.deliver(next); err != nil || b.loads() != 4 {
		t.Errorf("%v, after %d loads", err, b.loads())
	}
}

// What a killed process had half brought goes when the next image is brought.
func TestAKilledDelivery(t *testing.T) {
	b := newBench(t)
	ref := b.push(b.image("amd64"), "1")
	arrived, done := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(arrived) })
	b.answer(func(w http.ResponseWriter, r *http.Request, registry http.Handler) bool {
		if layerOf(r, registry) == nil {
			return false
		}
		arrive()
		<-done
		return true
	})
	self, err := os.Executable()
	b.must(err)
	child, err := proc.Start(t.Context(), proc.Cmd{Argv: []string{self},
		Env: append(os.Environ(), deliverEnv+"="+ref, "PARITY_MSB="+b.MSB.Path, "MSB_HOME="+b.MSB.Home)})
	b.must(err)
	<-arrived
	b.must(child.Signal(syscall.SIGKILL))
	_, _ = child.Wait()
	close(done)
	b.answer(nil)
	if left, _ := filepath.Glob(filepath.Join(b.MSB.Home, "devsy-images", "incoming-*", "image.tar")); len(left) != 1 {
		t.Errorf("the killed process left %q", left)
	}
	if _, err := b.deliver(ref); err != nil {
		t.Fatal(err)
	}
	b.nothingLeft()
}

// A full disk is named, and nothing is left on it.
func TestLoadThatFails(t *testing.T) {
	b := newBench(t)
	ref := b.push(b.image("amd64"), "1")
	b.must(os.WriteFile(b.MSB.Path, []byte(`#!/bin/sh
[ $1 = load ] && echo 'error: io error: No space left on device (os error 28)' >&2 || echo "error: image not found: x" >&2
exit 1
`), 0o755))
	_, err := b.deliver(ref)
	if err == nil || !strings.Contains(err.Error(), "the disk of "+b.MSB.Home+" has no room for the image "+ref) {
		t.Errorf("got %v", err)
	}
	b.nothingLeft()
}

// The engine that a test makes up, to break it at will: it has one image, and breaks off in the middle of it.
func TestTheDockerEngineBreaksOff(t *testing.T) {
	b := newBench(t)
	const id = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		switch {
		case strings.HasSuffix(r.URL.Path, "/images/here:1/json"):
			fmt.Fprintf(w, `{"Id": %q, "Os": "linux", "Architecture": "amd64", "Config": {"User": "dev"}}`, id)
		case strings.HasSuffix(r.URL.Path, "/images/arm:1/json"):
			fmt.Fprintf(w, `{"Id": %q, "Os": "linux", "Architecture": "arm64"}`, id)
		case strings.HasSuffix(r.URL.Path, "/images/get"):
			_, _ = w.Write(make([]byte, 100_000))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case strings.HasSuffix(r.URL.Path, "/json"):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message": "No such image"}`)
		}
	}))
	defer engine.Close()
	t.Setenv("DOCKER_HOST", strings.Replace(engine.URL, "http", "tcp", 1))
	deliver := func(ref string, builtLocally bool) string {
		_, err := b.Deliver(t.Context(), ref, builtLocally)
		return fmt.Sprint(err)
	}
	if got := deliver("here:1", false); !strings.Contains(got, "save the image here:1 from the Docker Engine: unexpected EOF") || b.loads() != 0 {
		t.Errorf("got %s after %d loads", got, b.loads())
	}
	b.nothingLeft()
	if got := deliver("arm:1", false); !strings.Contains(got, "the image arm:1 of the Docker Engine: expected an image for linux/amd64, seen one for linux/arm64") {
		t.Errorf("got %s", got)
	}
	ref := b.push(b.image("amd64"), "1")
	if got := deliver(ref, true); !strings.Contains(got, "was built locally, and the Docker Engine at") {
		t.Errorf("got %s", got)
	}
	if manifests, blobs := b.taken(); manifests+blobs > 0 {
		t.Error("the registry was asked for an image that was built locally")
	}
	engine.Close()
	if got := deliver(ref, false); !strings.Contains(got, "the Docker Engine that DOCKER_HOST names does not answer") {
		t.Errorf("got %s", got)
	}
}
