package msbtest

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/imagetree"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/tree"
)

func buildImage(t *testing.T, spec images.Spec) (img v1.Image, digest string) {
	t.Helper()
	img, err := images.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return img, hash.String()
}

// ociArchive writes the image as a tar file of an OCI layout, which has the reference for it unless that is empty.
func ociArchive(t *testing.T, ref string, img v1.Image) string {
	t.Helper()
	var options []layout.Option
	if ref != "" {
		options = append(options, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref}))
	}
	dir := t.TempDir()
	written, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = written.AppendImage(img, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// digests gives the digests of the image store, by reference.
func digests(t *testing.T, c *msb.Client) map[string]string {
	t.Helper()
	list, err := c.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, img := range list {
		m[img.Reference] = img.Digest
	}
	return m
}

// What the image store does with archives: nothing of it boots a sandbox.
func (b bench) store(t *testing.T) {
	c := b.newClient(t)
	ctx := t.Context()
	one, oneDigest := buildImage(t, images.Spec{Nonce: "one", User: "dev", WorkingDir: "/home/dev", Env: map[string]string{"FROM_IMAGE": "1"}})
	two, twoDigest := buildImage(t, images.Spec{Nonce: "two"})

	// Docker's archive keeps its tags, and has no digest to keep.
	if err := c.Load(ctx, b.archive); err != nil {
		t.Fatal(err)
	}
	docker := digests(t, c)[reference]
	if docker == "" {
		t.Fatal("the store does not have what was loaded")
	}
	if err := c.LoadAs(ctx, b.archive, "parity.test/also:1"); err != nil {
		t.Fatal(err)
	}
	if got := digests(t, c); len(got) != 2 || got[reference] != docker || got["parity.test/also:1"] != docker {
		t.Errorf("the image that was loaded again under another reference too: %v", got)
	}

	// An OCI layout keeps its digest. A reference that is loaded again moves, and no other does.
	if err := c.Load(ctx, ociArchive(t, "parity.test/also:1", one)); err != nil {
		t.Fatal(err)
	}
	if got := digests(t, c); len(got) != 2 || got[reference] != docker || got["parity.test/also:1"] != oneDigest {
		t.Errorf("an OCI layout of %s was loaded: %v", oneDigest, got)
	}
	if err := c.LoadAs(ctx, ociArchive(t, "", two), "127.0.0.1:5000/two:1"); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadAs(ctx, ociArchive(t, "parity.test/two:2", two), reference); err != nil {
		t.Fatal(err)
	}
	got := digests(t, c)
	if len(got) != 4 || got[reference] != twoDigest || got["127.0.0.1:5000/two:1"] != twoDigest || got["parity.test/two:2"] != twoDigest ||
		got["parity.test/also:1"] != oneDigest {
		t.Errorf("an OCI layout of %s was loaded as %s and as another reference: %v", twoDigest, reference, got)
	}
	if docker == twoDigest {
		t.Errorf("the digests of two images are both %s", docker)
	}
	b.fromStdin(t, c, ociArchive(t, "", one))

	res, err := b.command(t, c, "image", "inspect", "--format", "json", "parity.test/also:1")
	var inspected struct {
		Reference, Digest string
		Config            struct {
			User       string
			WorkingDir string `json:"working_dir"`
			Env        []string
		}
	}
	if err == nil {
		err = json.Unmarshal(res.Stdout, &inspected)
	}
	if config := inspected.Config; err != nil || inspected.Reference != "parity.test/also:1" || inspected.Digest != oneDigest ||
		config.User != "dev" || config.WorkingDir != "/home/dev" || !slices.Contains(config.Env, "FROM_IMAGE=1") {
		t.Errorf("image inspect says %s, %v", res.Stdout, err)
	}
	if details, err := c.InspectImage(ctx, "parity.test/also:1"); err != nil || details.Digest != oneDigest || details.Config.User != "dev" {
		t.Errorf("InspectImage gives %+v, %v", details, err)
	}
	if _, err := c.InspectImage(ctx, "parity.test/nobody:1"); !errors.Is(err, msb.ErrNoImage) {
		t.Errorf("InspectImage of an image that does not exist gives %v", err)
	}

	before := len(digests(t, c))
	if _, err := b.command(t, c, "image", "rm", "parity.test/also:1", "parity.test/nobody:1"); err == nil ||
		!strings.Contains(err.Error(), "image not found: parity.test/nobody:1") {
		t.Errorf("removing an image, and one that does not exist, gives %v", err)
	}
	if got := digests(t, c); len(got) != before-1 || got["parity.test/also:1"] != "" {
		t.Errorf("after an image was removed the store has %v", got)
	}

	for what, load := range map[string]func() error{
		"an archive without a name": func() error { return c.Load(ctx, ociArchive(t, "", one)) },
		"a folder":                  func() error { return c.Load(ctx, t.TempDir()) },
		"no archive":                func() error { return c.Load(ctx, b.probe) },
		"an empty file":             func() error { return c.Load(ctx, os.DevNull) },
		"a bad reference":           func() error { return c.LoadAs(ctx, b.archive, "Not A Reference") },
	} {
		err := load()
		if code, ok := proc.ExitCode(err); !ok || code != 1 {
			t.Errorf("loading %s gives %v", what, err)
		}
	}
	if after := digests(t, c); len(after) != before-1 {
		t.Errorf("after loads that failed the store has %v", after)
	}
}

// fromStdin loads an archive from standard input.
func (b bench) fromStdin(t *testing.T, c *msb.Client, archive string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	load := proc.Cmd{Argv: []string{c.Path, "load", "--tag", "parity.test/stdin:1"}, Env: append(os.Environ(), "MSB_HOME="+c.Home), Stdin: f}
	if _, err := proc.Run(t.Context(), load); err != nil {
		t.Error(err)
	}
	if got := digests(t, c); got["parity.test/stdin:1"] == "" {
		t.Errorf("after a load from standard input the store has %v", got)
	}
}

// What an image has arrives in the guest: its files, its environment, its user and its folder.
func (b bench) image(t *testing.T) {
	const hard = "parity.test/hard:1"
	spec := images.Spec{Nonce: "msb-hard", HardTree: true, User: "dev:dev", WorkingDir: "/home/dev", Entrypoint: []string{"/bin/false"},
		Env: map[string]string{"FROM_IMAGE": "a b", "HOME": "/opt"},
		Files: map[string]string{"/etc/hosts": "the image's", "/etc/hostname": "the image's", "/etc/profile": "# the image's\n",
			"/etc/resolv.conf": "# the image's\n", "/var/tmp/kept": "the image's", "/run/microsandbox/kept": "the image's"}}
	img, _ := buildImage(t, spec)
	archive := filepath.Join(t.TempDir(), "hard.tar")
	if err := images.WriteDockerArchive(archive, hard, img); err != nil {
		t.Fatal(err)
	}
	c := b.newClient(t)
	ctx := t.Context()
	if err := c.Load(ctx, archive); err != nil {
		t.Fatal(err)
	}
	b.createOf(t, c, "hard", hard, false)
	res, err := c.Exec(ctx, "hard", []string{"/bin/sh", "-c", "id -un; id -gn; pwd; echo $FROM_IMAGE $HOME"}, nil)
	if err != nil || string(res.Stdout) != "dev\ndev\n/home/dev\na b /opt\n" {
		t.Errorf("a command of the image's gives %q, %v", res.Stdout, err)
	}

	res, err = proc.Run(ctx, c.ExecCmdAs("hard", msb.ExecOptions{User: "root"}, append([]string{guestProbe}, probe.TreeArgs()...)))
	if err != nil {
		t.Fatal(err)
	}
	seen, err := probe.ParseTree(res.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	exactly := tree.Rules{Exactly: []string{images.TreePath}, Except: msb.OwnPaths()}
	for _, d := range tree.Compare(images.HardTree(spec.Nonce), seen.Entries, exactly) {
		t.Error(d)
	}
	all, err := imagetree.List(img)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range tree.Compare(all, seen.Entries, exactly) {
		t.Errorf("of the whole image, %s", d)
	}
	if len(seen.Entries) < len(all) {
		t.Errorf("the guest has %d files, the image %d", len(seen.Entries), len(all))
	}

	// The tag moves: what is created from it then has the new content.
	next, _ := buildImage(t, images.Spec{Nonce: "msb-next"})
	if err := c.LoadAs(ctx, ociArchive(t, "", next), hard); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(ctx, "hard"); err != nil {
		t.Fatal(err)
	}
	b.createOf(t, c, "hard", hard, false)
	if res, err = c.Exec(ctx, "hard", []string{"/bin/cat", images.NoncePath}, nil); err != nil || string(res.Stdout) != "msb-next" {
		t.Errorf("after its image's tag moved, a new sandbox has the nonce %q, %v", res.Stdout, err)
	}
	if _, err := b.command(t, c, "image", "rm", hard); err == nil {
		t.Error("an image that a sandbox has was removed without --force")
	}
}
