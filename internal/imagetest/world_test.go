package imagetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/moby/moby/client"

	"dagger/parity/fixtures/artifacts"
	"dagger/parity/fixtures/docker"
	"dagger/parity/fixtures/images"
	"dagger/parity/fixtures/registry"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/subject"
)

func TestMain(m *testing.M) {
	labtest.Main(m, "dagger/parity/cmd/parity", "dagger/parity/cmd/parity-agent", "dagger/parity/cmd/parity-runtime")
}

const (
	runID     = "test-run"
	workspace = "w"
)

// world is what a workspace CLI finds: a Docker Engine, a registry, MicroSandbox, and a folder of the workspace.
type world struct {
	*testing.T
	docker   *docker.Engine
	registry *registry.Registry
	folder   string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Setenv("DOCKER_HOST", "")
	w := &world{T: t}
	cache, err := lab.CacheDir()
	w.must(err)
	short, err := os.MkdirTemp("", "") // sockets are below
	w.must(err)
	t.Cleanup(func() { os.RemoveAll(short) })
	w.docker, err = docker.Start(t.Context(), docker.Options{RunID: runID, Dir: filepath.Join(short, "e"), Programs: docker.ProgramsIn(cache)})
	w.must(err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.must(w.docker.Close(ctx))
	})
	w.registry, err = registry.Start(registry.Options{})
	w.must(err)
	t.Cleanup(func() { w.must(w.registry.Close()) })
	return w
}

// of is the world of a subtest, with a folder of the workspace of its own.
func (w *world) of(t *testing.T) *world {
	return &world{T: t, docker: w.docker, registry: w.registry, folder: filepath.Join(t.TempDir(), "app")}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// file writes a file of the workspace.
func (w *world) file(name, text string) {
	w.Helper()
	file := filepath.Join(w.folder, name)
	w.must(errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
}

func (w *world) devcontainer(text string) { w.file(".devcontainer/devcontainer.json", text) }

// The repositories of the images of a registry and of Docker. The registry's host is that of both.
const inRegistry, inDocker = "parity/registry", "parity/docker"

// ref is the reference of the image of a repository.
func (w *world) ref(repository string) string {
	return w.registry.Host() + "/" + repository + ":" + runID
}

// put puts an image with a nonce into the registry, or into Docker. Its user is dev.
func (w *world) put(repository, nonce string) {
	w.Helper()
	img, err := images.Build(images.Spec{Nonce: nonce, User: "dev", Env: map[string]string{"FROM_IMAGE": nonce},
		Files: map[string]string{"/etc/whose": w.Name() + " " + repository}}) // no two tests have the same image
	w.must(err)
	if repository == inDocker {
		w.must(w.docker.Load(w.Context(), w.ref(repository), img))
		return
	}
	tag, err := name.NewTag(w.ref(repository))
	w.must(err)
	w.must(remote.Write(tag, img))
}

// inDocker gives everything that the engine has: images with their tags, and containers.
func (w *world) inDocker() string {
	w.Helper()
	images, err := w.docker.Client().ImageList(w.Context(), client.ImageListOptions{All: true})
	w.must(err)
	containers, err := w.docker.Client().ContainerList(w.Context(), client.ContainerListOptions{All: true})
	w.must(err)
	var all []string
	for _, i := range images.Items {
		all = append(all, i.ID+" "+strings.Join(i.RepoTags, " ")+" "+strings.Join(i.RepoDigests, " "))
	}
	for _, c := range containers.Items {
		all = append(all, "container "+c.ID)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// cli is the reference CLI with a home and a MicroSandbox of its own, and a provider.
type cli struct {
	*world
	subject.CLI
}

const providerName = "p"

// manifest is the provider.yaml of parity-runtime.
const manifest = `
name: external
options:
  MICROSANDBOX_MEMORY: {default: 256}
agent:
  local: true
  driver: external
  external: {binary: RUNTIME, args: [serve]}
  binaries:
    RUNTIME:
      - {os: linux, arch: amd64, path: %q, checksum: "%x", name: runtime}
`

// cli makes a CLI with the provider "builtin" or "external", which misbehaves as a fault says.
func (w *world) cli(provider string, f fault.Fault) *cli {
	w.Helper()
	dir, err := os.MkdirTemp("", "") // a short path
	w.must(err)
	w.Cleanup(func() { os.RemoveAll(dir) })
	parity, bin := filepath.Join(labtest.Programs(), "parity"), filepath.Join(dir, "bin")
	w.must(errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(filepath.Join(dir, "m"), 0o755), os.Symlink(parity, filepath.Join(bin, "msb"))))
	home, err := subject.NewHome(subject.Home{Dir: filepath.Join(dir, "h"), MSBHome: filepath.Join(dir, "m"), Path: bin + ":" + os.Getenv("PATH"),
		Extra: []string{"DOCKER_HOST=" + w.docker.Host(), fault.Env + "=" + string(f)}})
	w.must(err)
	c := &cli{world: w, CLI: subject.CLI{Argv: []string{parity, "devsy"}, Home: home}}
	source := "microsandbox"
	if provider == "external" {
		runtime, err := os.ReadFile(filepath.Join(labtest.Programs(), "parity-runtime"))
		w.must(err)
		server, err := artifacts.Start(netip.MustParseAddrPort("127.0.0.1:0"), "runtime", runtime)
		w.must(err)
		w.Cleanup(func() { w.must(server.Close()) })
		source = filepath.Join(dir, "provider.yaml")
		w.must(os.WriteFile(source, fmt.Appendf(nil, manifest, server.URL(), sha256.Sum256(runtime)), 0o644))
	}
	w.must(c.ProviderAdd(w.Context(), source, providerName, nil))
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		w.must(c.Delete(ctx, workspace, true))
	})
	return c
}

// both runs a test with each provider.
func both(t *testing.T, test func(t *testing.T, provider string)) {
	for _, provider := range []string{"builtin", "external"} {
		t.Run(provider, func(t *testing.T) { test(t, provider) })
	}
}

func (c *cli) tryUp(recreate bool) (subject.UpResult, error) {
	c.Helper()
	return c.Up(c.Context(), subject.UpOptions{ID: workspace, Provider: providerName, Dir: c.folder, Recreate: recreate})
}

func (c *cli) up(recreate bool) subject.UpResult {
	c.Helper()
	res, err := c.tryUp(recreate)
	c.must(err)
	return res
}

// sh gives what a shell command in the workspace prints, which must be the same over both kinds of SSH.
func (c *cli) sh(command string) string {
	c.Helper()
	res, err := c.SSH(c.Context(), workspace, command, nil)
	c.must(err)
	session, err := c.Dial(c.Context(), workspace, "root")
	c.must(err)
	defer session.Close()
	over, err := session.Run(c.Context(), command, nil)
	c.must(err)
	if !bytes.Equal(res.Stdout, over.Stdout) {
		c.Errorf("%s prints %q, and over SSH %q", command, res.Stdout, over.Stdout)
	}
	return string(res.Stdout)
}

// nonce is that of the image of the workspace's guest.
func (c *cli) nonce() string { c.Helper(); return c.sh("cat " + images.NoncePath) }
