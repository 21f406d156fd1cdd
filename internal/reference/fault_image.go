package reference

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"

	"github.com/moby/moby/client"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/engine"
	"dagger/parity/internal/reference/features"
	"dagger/parity/internal/reference/imagebuild"
	delivery "dagger/parity/internal/reference/images"
	"dagger/parity/internal/reference/registry"
)

// misbehavingConfig does to a devcontainer.json, or to the places where its image is, what the fault asks for.
func misbehavingConfig(ctx context.Context, config devcontainer) (devcontainer, error) {
	var err error
	switch {
	case fault.On(fault.ImageRegistryDies) && !config.isBuilt():
		_, err = registry.Find(ctx, config.Image)
	case fault.On(fault.UserIgnored) && config.user() == "":
		config.RemoteUser = "root"
	case fault.On(fault.FeatureDropped):
		config.Features = nil
	case fault.On(fault.DockerfileIgnored) && config.Build != nil:
		config.Image, err = firstFrom(config.dockerfile())
		config.Build = nil
	case fault.On(fault.ImageThroughDocker) && !config.isBuilt():
		err = pullIntoDocker(ctx, config.Image)
	case fault.On(fault.RegistryNeverRead) && !config.isBuilt():
		err = makeUp(ctx, config.Image)
	case fault.On(fault.ImageThroughRegistry):
		err = pushFromDocker(ctx, config)
	case fault.On(fault.WrongImage) && !config.isBuilt():
		config.Image, err = wrongImage(ctx, config.Image)
	}
	return config, err
}

// misbehavingFeatures does to Features what the fault asks for.
func misbehavingFeatures(install []features.Feature) []features.Feature {
	for i := range install {
		if fault.On(fault.FeatureEnvDropped) {
			install[i].ContainerEnv = nil
		}
	}
	return install
}

// misbehavingArgv does to a command of `workspace ssh` what the fault asks for.
func misbehavingArgv(argv []string) []string {
	if fault.On(fault.SSHEnvDropped) || fault.On(fault.SSHCommandEnvDropped) && isCommand(argv) {
		return append([]string{"/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, argv...)
	}
	return argv
}

// isCommand tells whether the agent in the guest is to run a command, and not to serve a session.
func isCommand(argv []string) bool { return argv[1] == "run" }

var (
	fromLine = regexp.MustCompile(`(?mi)^\s*FROM\s+(\S+)`)
	argLine  = regexp.MustCompile(`(?mi)^\s*ARG\s+(\w+)=(\S+)`)
)

// firstFrom gives what the first FROM of a Dockerfile names.
func firstFrom(d imagebuild.Dockerfile) (string, error) {
	text, err := os.ReadFile(d.File)
	if err != nil {
		return "", err
	}
	from := fromLine.FindSubmatch(text)
	if from == nil {
		return "", errors.New("the Dockerfile has no FROM")
	}
	args := map[string]string{}
	for _, arg := range argLine.FindAllSubmatch(text, -1) {
		args[string(arg[1])] = string(arg[2])
	}
	maps.Copy(args, d.Args)
	return os.Expand(string(from[1]), func(arg string) string { return args[arg] }), nil
}

// pullIntoDocker has the Docker Engine pull an image, unless it has it.
func pullIntoDocker(ctx context.Context, ref string) error {
	docker, err := engine.Open(ctx)
	if err != nil {
		return err
	}
	defer docker.Close()
	if _, err := docker.ImageInspect(ctx, ref); err == nil {
		return nil
	}
	pull, err := docker.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	defer pull.Close()
	return pull.Wait(ctx)
}

// pushFromDocker has the Docker Engine push the image of a workspace, or the one that it is built on.
func pushFromDocker(ctx context.Context, config devcontainer) (err error) {
	ref := config.Image
	if config.Build != nil {
		if ref, err = firstFrom(config.dockerfile()); err != nil {
			return err
		}
	}
	docker, err := engine.Open(ctx)
	if err != nil {
		return err
	}
	defer docker.Close()
	push, err := docker.ImagePush(ctx, ref, client.ImagePushOptions{RegistryAuth: "e30="}) // {}: nobody's
	if err != nil {
		return err
	}
	defer push.Close()
	return push.Wait(ctx)
}

// makeUp puts an image that nobody asked for into MicroSandbox's store, under a reference.
func makeUp(ctx context.Context, ref string) error {
	msb, err := msbdriver.Locate()
	if err != nil {
		return err
	}
	img, err := images.Build(images.Spec{Nonce: "made up"})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(msb.Home, "made-up-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "image.tar")
	if err := images.WriteDockerArchive(archive, ref, img); err != nil {
		return err
	}
	return msb.Load(ctx, archive)
}

// wrongImage brings an image into MicroSandbox's store, and gives the reference of another one.
func wrongImage(ctx context.Context, ref string) (string, error) {
	msb, err := msbdriver.Locate()
	if err != nil {
		return "", err
	}
	if _, err := (delivery.Store{MSB: msb, Log: os.Stderr}).Deliver(ctx, ref, false); err != nil {
		return "", err
	}
	const wrong = "parity.test/wrong:1"
	return wrong, makeUp(ctx, wrong)
}
