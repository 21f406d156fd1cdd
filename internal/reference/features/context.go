package features

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"dagger/parity/internal/reference/contexttar"
)

// Users are those of the image over which Features are installed. A user is a name or a number; a group after a colon is allowed.
type Users struct {
	Image     string // the image's own; empty is root
	Container string // whom the machine's own process runs as
	Remote    string // whom the commands of people run as
}

// Dockerfile is the name of the Dockerfile in the context.
const Dockerfile = "Dockerfile"

// The places in the image where Features are while they are installed, and what installs one.
const (
	stage  = "/.dev-container-features"
	runner = "devcontainer-features-install.sh"
)

// optionsFile has a Feature's options, by the specification.
const optionsFile = "devcontainer-features.env"

// WriteContext writes the build context that installs Features, in their order, over an image that the engine has: a tar file with a
// Dockerfile and the Features' folders, of which dir is the parent. The image needs /bin/sh and rm.
func WriteContext(to io.Writer, dir, base string, users Users, install []Feature) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := contexttar.NewWriter(to)
	if err := w.File(Dockerfile, 0o644, dockerfile(base, users, install)); err != nil {
		return err
	}
	for i, f := range install {
		if err := writeFeature(w, root, strconv.Itoa(i), f, users); err != nil {
			return fmt.Errorf("the Feature %q: %w", "./"+f.Path, err)
		}
	}
	return w.Close()
}

// writeFeature writes a Feature's folder, with what installs it.
func writeFeature(w *contexttar.Writer, root *os.Root, to string, f Feature, users Users) error {
	from, err := root.OpenRoot(f.Path)
	if err != nil {
		return err
	}
	defer from.Close()
	err = w.Tree(from, to, func(name string, h *tar.Header) error {
		switch name {
		case installScript:
			h.Mode |= 0o111
		case runner, optionsFile: // the ones below take their places
			return contexttar.ErrOmit
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.File(path.Join(to, optionsFile), 0o644, environment(f.Options)); err != nil {
		return err
	}
	return w.File(path.Join(to, runner), 0o755, script(f, users))
}

// dockerfile is the Dockerfile. Each Feature is a layer of its own, and sees the variables of those before it.
func dockerfile(base string, users Users, install []Feature) string {
	var b strings.Builder
	user := users.Image
	if user == "" {
		user = "root"
	}
	fmt.Fprintf(&b, "FROM %s\n", base)
	if user != "root" {
		b.WriteString("USER root\n")
	}
	for i, f := range install {
		place := path.Join(stage, strconv.Itoa(i))
		for _, v := range f.ContainerEnv {
			fmt.Fprintf(&b, "ENV %s=\"%s\"\n", v.Name, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v.Value))
		}
		// In this form a shell that the image names has no say.
		run, _ := json.Marshal([]string{"/bin/sh", "-ec", fmt.Sprintf("cd %s; /bin/sh ./%s; cd /; rm -rf %s", place, runner, stage)})
		fmt.Fprintf(&b, "COPY %d/ %s/\nRUN %s\n", i, place, run)
	}
	if user != "root" {
		fmt.Fprintf(&b, "USER %s\n", user)
	}
	return b.String()
}

// environment is a file of variables for a shell to read.
func environment(values map[string]string) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text += name + "=" + shellescape.Quote(values[name]) + "\n"
	}
	return text
}

// script is what runs a Feature's install.sh, and says which one it was when that fails. The homes of the users are known in the image only.
func script(f Feature, users Users) string {
	return fmt.Sprintf(`set -e
home() {
	while IFS=: read -r name password uid gid comment home shell; do
		if [ "$name" = "$1" ] || [ "$uid" = "$1" ]; then
			echo "$home"
			break
		fi
	done </etc/passwd
}
set -a
_CONTAINER_USER=%[1]s
_REMOTE_USER=%[2]s
_CONTAINER_USER_HOME=$(home "$_CONTAINER_USER")
_REMOTE_USER_HOME=$(home "$_REMOTE_USER")
. ./%[3]s
set +a
echo %[4]s
code=0
./%[5]s || code=$?
if [ "$code" != 0 ]; then
	echo %[4]s": %[5]s exited with code $code" >&2
fi
exit "$code"
`, shellescape.Quote(userOnly(users.Container)), shellescape.Quote(userOnly(users.Remote)), optionsFile,
		shellescape.Quote("Feature ./"+f.Path+" ("+f.Name+")"), installScript)
}

// userOnly is a user without the group.
func userOnly(user string) string {
	if user, _, _ = strings.Cut(user, ":"); user == "" {
		return "root"
	}
	return user
}
