package imageparity

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/fault"
	"dagger/parity/internal/imagetree"
	"dagger/parity/internal/tree"
)

// What marks the content of an image, in files and in its environment.
const (
	environmentName = "PARITY_IMAGE"
	builtFolder     = "/opt/parity"
	dockerfilePath  = builtFolder + "/dockerfile"
	contextFile     = "content/word" // in the context of the build
	dockerfileName  = "PARITY_DOCKERFILE"
	featurePath     = "/usr/local/share/parity/feature"
	featureName     = "PARITY_FEATURE"
	user            = "dev"
	userID          = 1000 // and of its group
)

// hard is what the values of environment variables end with: all that a shell, a Dockerfile or a list of KEY=VALUE gives a meaning.
const hard = ` a=b 'c' "d" \e $HOME ${PATH} #f;*`

// version is one content of the image: every version of a case is published under the same reference.
type version struct {
	nonce string
	tree  []tree.Entry // of the whole image; in the feature's case, of the base image
}

// publish builds the next version of the image and puts it where the case's subject is to find it.
func (s *scenario) publish() cases.Finding {
	nonce := cases.Nonce("image")
	done := s.Timed("image build")
	img, err := images.Build(images.Spec{
		Nonce: nonce, User: user, HardTree: true, Probe: s.Probe,
		Env: map[string]string{environmentName: nonce + hard}, Files: map[string]string{images.MarkerPath: s.name + " " + nonce},
	})
	if err != nil {
		return cases.Unclear("", err.Error(), "see `parity doctor`: the image is made of the machine's static busybox")
	}
	s.current = version{nonce: nonce}
	if s.current.tree, err = imagetree.List(img); err != nil {
		return cases.Unclear("", err.Error(), "the image is the test's own: run it again")
	}
	// What is to be hard to carry is declared apart from the code that packs it.
	if wrong := tree.Compare(images.HardTree(nonce), s.current.tree, tree.Rules{Exactly: []string{images.TreePath}}); len(wrong) > 0 {
		return cases.Unclear("", some(wrong), "the image is not what it was to be: this is a fault of Parity's own, report it")
	}
	done()
	defer s.Timed("image publish")()
	s.misbehaveBefore()
	err = s.Bounded(publishDeadline, func(ctx context.Context) error {
		put := s.engine.Load
		switch {
		case s.name == catalogue.ImageRegistry:
			put = push
		case fault.On(fault.DockerRefuses):
			return fault.ErrAsked
		}
		return errors.Join(put(ctx, s.ref, img), s.misbehaveAfter(ctx, img))
	})
	if err != nil {
		return cases.Unclear("", err.Error(), "see the free space of the lab's scratch disk (--disk)")
	}
	s.registry.Clear()
	return cases.Passed(s.ref)
}

// push puts an image into the registry that its reference names.
func push(ctx context.Context, ref string, img v1.Image) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return remote.Write(tag, img, remote.WithContext(ctx))
}

// repository is the image's repository in the registry.
func (s *scenario) repository() string { return "parity/" + s.name }

//go:embed feature
var feature embed.FS

// writeFolder writes the workspace's folder, for the present version of the image.
func (s *scenario) writeFolder(folder string) error {
	if s.name != catalogue.ImageFeature {
		return cases.WriteDevcontainer(folder, map[string]any{"image": s.ref})
	}
	err := cases.WriteDevcontainer(folder, map[string]any{
		"build":    map[string]any{"dockerfile": "Dockerfile", "context": ".."},
		"features": map[string]any{"./features/parity": map[string]any{"word": s.current.nonce}},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, contextFile)), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, contextFile), []byte(s.current.nonce), 0o644); err != nil {
		return err
	}
	config := filepath.Join(folder, ".devcontainer")
	if err := os.WriteFile(filepath.Join(config, "Dockerfile"), []byte(s.dockerfile()), 0o644); err != nil {
		return err
	}
	target := filepath.Join(config, "features", "parity")
	if err := os.RemoveAll(target); err != nil { // which CopyFS does not write over
		return err
	}
	files, err := fs.Sub(feature, "feature")
	if err != nil {
		return err
	}
	return os.CopyFS(target, files)
}

func (s *scenario) dockerfile() string {
	return strings.Join([]string{
		"FROM " + s.ref,
		"USER root",
		"ENV " + dockerfileName + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(s.dockerfileMarker()+hard) + `"`,
		"COPY " + contextFile + " " + builtFolder + "/copied",
		// One RUN for all: each is a container of its own, which takes seconds where KVM is emulated.
		"RUN cd " + builtFolder + " && printf %s " + s.dockerfileMarker() + " >dockerfile && ln dockerfile linked && rm " + images.MarkerPath +
			fmt.Sprintf(" && cp dockerfile owned && chown %d:%d owned && chmod 4755 owned", userID, userID),
		"USER " + user,
	}, "\n") + "\n"
}

func (s *scenario) dockerfileMarker() string { return "dockerfile-" + s.current.nonce }

// built gives what the guest is to have of an image's tree once the Dockerfile and the Feature have been at it.
func (s *scenario) built(base []tree.Entry) []tree.Entry {
	folder := func(path string) tree.Entry { return tree.Entry{Path: path, Type: tree.Folder, Mode: 0o755} }
	file := func(path, content string) tree.Entry {
		sum := sha256.Sum256([]byte(content))
		return tree.Entry{Path: path, Type: tree.File, Mode: 0o644, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	}
	linked := file(builtFolder+"/linked", s.dockerfileMarker())
	linked.LinkTo = dockerfilePath
	owned := file(builtFolder+"/owned", s.dockerfileMarker())
	owned.UID, owned.GID, owned.Mode = userID, userID, 0o4755
	want := slices.DeleteFunc(slices.Clone(base), func(e tree.Entry) bool { return e.Path == images.MarkerPath })
	return append(want, folder(filepath.Dir(builtFolder)), folder(builtFolder), file(builtFolder+"/copied", s.current.nonce),
		file(dockerfilePath, s.dockerfileMarker()), linked, owned, folder(filepath.Dir(featurePath)), file(featurePath, s.featureMarker()))
}

// featureMarker is what the Feature's install.sh leaves: the option, and what the specification has it be given.
func (s *scenario) featureMarker() string {
	const home = "/home/" + user
	return fmt.Sprintf("word=%s id=0 remote=%s:%s container=%s:%s\n", s.current.nonce, user, home, user, home)
}
