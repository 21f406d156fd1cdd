// Package pipelines composes the containers in which Parity runs on a Dagger engine: images, builds and one privileged step. It asserts
// nothing: the step decides.
package pipelines

import (
	"dagger/parity/internal/dagger"
)

// Options are what all pipelines share. What is empty or nil is left out.
type Options struct {
	Source *dagger.Directory // this project's

	Debian, Golang string // references of the two base images
	Platform       dagger.Platform

	KVM                string // auto, native or emulated
	Subject            *dagger.File
	MicroSandbox       *dagger.Directory // with bin/msb; nil means the pinned one
	MicroSandboxSHA256 string
	ExternalProvider   *dagger.File // a provider.yaml
	ExternalBinary     string       // the key of its runtime; empty: it says so
	ExternalRuntime    *dagger.File // in place of one

	Adapter       *dagger.File
	Agent         *dagger.File // of the scenario remote-agent
	SubjectPath   *dagger.Directory
	BuiltinSource string
	Patience      float64
}

// Pipelines makes containers on the engine of a client.
type Pipelines struct {
	dag *dagger.Client
	o   Options
}

// New gives the pipelines for these options.
func New(dag *dagger.Client, o Options) Pipelines { return Pipelines{dag: dag, o: o} }

// Where things are in the containers.
const (
	home       = "/opt/parity" // Parity's scripts and programs, as in a checkout
	cache      = home + "/cache"
	pinnedMSBs = cache + "/microsandbox" // a folder for each version
	givenMSB   = "/opt/microsandbox"
)

// Debian is the base image for all but building.
func (p Pipelines) Debian() *dagger.Container { return p.from(p.o.Debian) }

func (p Pipelines) from(image string) *dagger.Container {
	return p.dag.Container(dagger.ContainerOpts{Platform: p.o.Platform}).From(image)
}

// Programs builds Parity's programs as scripts/build does on any machine. Only what they are made of is an input: another text in docs/
// builds nothing.
func (p Pipelines) Programs() *dagger.Directory {
	source := p.o.Source.Filter(dagger.DirectoryFilterOpts{
		Include: []string{"go.mod", "go.sum", "cmd/**", "fixtures/**", "internal/**", "scripts/build"},
		Exclude: []string{"**/*_test.go", "**/testdata/**", "internal/dagger/**"},
	})
	const modules, builds = "/go/pkg/mod", "/root/.cache/go-build"
	return p.from(p.o.Golang).
		WithEnvVariable("GOMODCACHE", modules).
		WithMountedCache(modules, p.dag.CacheVolume("parity-go-modules")).
		WithEnvVariable("GOCACHE", builds).
		WithMountedCache(builds, p.dag.CacheVolume("parity-go-builds")).
		WithWorkdir(home).
		WithDirectory(".", source).
		WithExec([]string{"scripts/build"}).
		Directory("bin")
}

// Microsandbox is a Debian container with msb in its PATH, and what msb needs beside it.
func (p Pipelines) Microsandbox() *dagger.Container {
	c := p.Debian().With(p.install("ca-certificates"))
	if p.o.MicroSandbox != nil {
		return c.WithDirectory(givenMSB, p.o.MicroSandbox).WithSymlink(givenMSB+"/bin/msb", "/usr/local/bin/msb")
	}
	return c.WithDirectory(pinnedMSBs, p.pinned()).
		WithExec([]string{"sh", "-c", "ln -s " + pinnedMSBs + "/*/bin/msb /usr/local/bin/msb"})
}

// Machine makes a Debian container a machine that Parity runs on: with what scripts/setup installs, and Parity's programs in its PATH.
func (p Pipelines) Machine(c *dagger.Container) *dagger.Container {
	setup := []string{"--kvm", p.o.KVM}
	if p.o.MicroSandbox != nil {
		c = c.WithDirectory(givenMSB, p.o.MicroSandbox)
		setup = append(setup, "--microsandbox", givenMSB)
	} else {
		c = c.WithDirectory(pinnedMSBs, p.pinned())
	}
	return p.withPrograms(c.With(p.setup(setup...)))
}

// withPrograms puts Parity's programs into the PATH of a container.
func (p Pipelines) withPrograms(c *dagger.Container) *dagger.Container {
	return c.WithDirectory(home+"/bin", p.Programs()).
		WithEnvVariable("PATH", home+"/bin:${PATH}", dagger.ContainerWithEnvVariableOpts{Expand: true})
}

// pinned is the folder of the pinned MicroSandbox in Parity's cache. It is fetched in a container of its own, so that the machine, which
// finds it in its cache, needs no npm.
func (p Pipelines) pinned() *dagger.Directory {
	return p.Debian().
		With(p.install("npm")).
		WithMountedCache("/root/.npm", p.dag.CacheVolume("parity-npm")).
		With(p.setup("--kvm", "native")).
		Directory(pinnedMSBs)
}

// setup runs scripts/setup.
func (p Pipelines) setup(args ...string) dagger.WithContainerFunc {
	source := p.o.Source.Filter(dagger.DirectoryFilterOpts{Include: []string{"scripts/setup", "internal/msb/release.env", "fixtures/remote/root.list"}})
	return func(c *dagger.Container) *dagger.Container {
		return c.
			WithDirectory(home, source).
			WithEnvVariable("PARITY_CACHE", cache).
			With(p.apt(append([]string{home + "/scripts/setup", "--no-build"}, args...)...))
	}
}

// install installs a Debian package.
func (p Pipelines) install(name string) dagger.WithContainerFunc {
	const script = `apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$0"`
	return p.apt("sh", "-c", script, name)
}

// apt runs a command that installs Debian packages. What apt downloads is in caches of the engine's, and not in the container.
func (p Pipelines) apt(argv ...string) dagger.WithContainerFunc {
	const clean, lists, packages = "/etc/apt/apt.conf.d/docker-clean", "/var/lib/apt/lists", "/var/cache/apt"
	// The images' rule to throw each download away gives way to none.
	none := p.dag.Directory().WithNewFile("none", "").File("none")
	oneAtATime := dagger.ContainerWithMountedCacheOpts{Sharing: dagger.CacheSharingModeLocked} // apt does not wait for its locks
	return func(c *dagger.Container) *dagger.Container {
		return c.
			WithMountedFile(clean, none).
			WithMountedCache(lists, p.dag.CacheVolume("parity-apt-lists"), oneAtATime).
			WithMountedCache(packages, p.dag.CacheVolume("parity-apt-packages"), oneAtATime).
			WithExec(argv).
			WithoutMount(packages).
			WithoutMount(lists).
			WithoutMount(clean)
	}
}
