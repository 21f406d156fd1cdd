package catalogue

import (
	"slices"

	"dagger/parity/internal/msb"
)

// The names of the cases of image-parity: where the workspace's image comes from.
const (
	ImageRegistry = "registry"
	ImageDocker   = "docker"
	ImageFeature  = "feature"
)

// imageParityChecks are the checks of a case of image-parity in the order in which they are evaluated.
func imageParityChecks(provider, name string) []Check {
	checks := []Check{
		linkCheck,
		{Name: "fixture/registry", Sentence: "The registry answers."},
		{Name: "fixture/docker", Sentence: "The Docker Engine answers."},
		{Name: "fixture/image", Sentence: map[string]string{
			ImageRegistry: "The image is built and pushed to the registry, which has forgotten the requests so far.",
			ImageDocker:   "The image is built and loaded into the Docker Engine, under a reference of the registry, which does not have it.",
			ImageFeature:  "The base image of the Dockerfile is built and loaded into the Docker Engine.",
		}[name]},
	}
	if name == ImageRegistry {
		checks = append(checks, Check{Name: "docker/absent-before", Sentence: "Before the workspace is made, the Docker Engine does not have the image."})
	}
	checks = append(checks, providerCheck)
	for _, phase := range []string{Created, Restarted, Recreated} {
		if phase == Recreated {
			checks = append(checks, Check{Phase: phase, Name: "fixture/image", Sentence: "The image is rebuilt with another nonce, and published under the same name."})
		}
		checks = append(checks, phaseChecks(provider, phase, imageOutside(name, phase), imageInside(name, phase))...)
	}
	return checks
}

// imageOutside are the checks of where the image came from. A restart makes no promise about that.
func imageOutside(name, phase string) []Check {
	switch {
	case phase == Restarted:
		return nil
	case name == ImageRegistry:
		return []Check{
			{Name: "registry/read", Sentence: "The registry has served the image's manifest and its blobs."},
			{Name: "docker/absent-after", Sentence: "Once the workspace is made, the Docker Engine still does not have the image."},
		}
	}
	return []Check{{Name: "registry/unread", Sentence: "The registry has served no image, and was given none."}}
}

func imageInside(name, phase string) []Check {
	nonce := Check{Name: "nonce", Sentence: "The guest has the nonce that the case put into the image."}
	if phase == Recreated {
		nonce = Check{Name: "fresh", Sentence: "The guest has the nonce of the image that was rebuilt under the same name, and not the old one."}
	}
	checks := map[string][]Check{
		ImageRegistry: {
			{Name: "os-release", Sentence: "The guest's /etc/os-release has the image's ID."},
			{Name: "environment", Sentence: "An SSH command has the image's environment."},
		},
		ImageDocker: {
			{Name: "marker", Sentence: "The guest has the file that marks the image."},
			{Name: "environment", Sentence: "An SSH command has the image's environment."},
		},
		ImageFeature: {
			{Name: "dockerfile/file", Sentence: "The guest has the file that the Dockerfile made."},
			{Name: "dockerfile/environment", Sentence: "An SSH command has the environment that the Dockerfile set."},
			{Name: "feature/file", Sentence: "The guest has the file that the Feature's install.sh made, with the option and the user that it was given."},
			{Name: "feature/environment", Sentence: "An SSH command has the environment that the Feature set."},
		},
	}[name]
	return slices.Concat([]Check{nonce}, checks, []Check{
		{Name: "user", Sentence: "An SSH command runs as the image's user, in the user's group.", Shared: true},
		{Name: "ssh/command", Sentence: "`workspace ssh --command` runs as the image's user, in the user's group, with the environment of the image and of what was built on it.", Shared: true},
		{Name: "tree", Sentence: "Below /parity-tree the guest has exactly what the image has; elsewhere each path of the image is there and equal."},
	})
}

// TreeExceptions are the paths at and below which a guest need not have what its image has: MicroSandbox puts something of its own there.
func TreeExceptions() []string { return msb.OwnPaths() }
