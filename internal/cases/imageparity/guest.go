package imageparity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/cases"
	"dagger/parity/internal/cases/workspace"
	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/report"
	"dagger/parity/internal/subject"
	"dagger/parity/internal/tree"
)

// What a broken promise of an image means.
const (
	nextContent     = "the guest does not have what the image has: see what the subject made of the image, with `msb image ls` and the Docker Engine"
	nextStale       = "the workspace was recreated from another image than the one that its name has now"
	nextEnvironment = "the image's environment did not arrive in an SSH command"
)

// nonce shows that the guest has the present version of the image.
func (s *scenario) nonce(phase string, g *workspace.Guest) cases.Finding {
	next := nextContent
	if phase == catalogue.Recreated {
		next = nextStale
	}
	return s.says(phase, "nonce", g, "cat "+images.NoncePath, s.current.nonce, next)
}

// markers makes the checks of what marks the image, each in its files or in its environment.
func (s *scenario) markers(phase string, g *workspace.Guest) {
	check := func(check, command, want, next string) {
		s.own(phase, check, func() cases.Finding { return s.says(phase, check, g, command, want, next) })
	}
	environment := func(check string, v variable, next string) {
		s.own(phase, check, func() cases.Finding {
			return s.says(phase, check, g, fmt.Sprintf(`printf %%s "$%s"`, v.name), v.value, next)
		})
	}
	switch s.name {
	case catalogue.ImageRegistry:
		check("os-release", "sed -n s/^ID=//p /etc/os-release", images.ID+"\n", nextContent)
		environment("environment", s.ofImage(), nextEnvironment)
	case catalogue.ImageDocker:
		check("marker", "cat "+images.MarkerPath, s.name+" "+s.current.nonce, nextContent)
		environment("environment", s.ofImage(), nextEnvironment)
	case catalogue.ImageFeature:
		check("dockerfile/file", "cat "+dockerfilePath, s.dockerfileMarker(), "the guest was not made of what the Dockerfile builds")
		environment("dockerfile/environment", s.ofDockerfile(), nextEnvironment)
		check("feature/file", "cat "+featurePath, s.featureMarker(), "the Feature was not installed as the Dev Container Features specification has it")
		environment("feature/environment", s.ofFeature(), "the Feature's containerEnv did not arrive in an SSH command")
	}
}

// identity prints the user and the group that a command runs as, and isUser is what it has to print.
const identity = "id -u; id -g"

var isUser = fmt.Sprintf("%d\n%d\n", userID, userID)

// user shows that commands run as the image's user.
func (s *scenario) user(phase string, g *workspace.Guest) cases.Finding {
	return s.says(phase, "user", g, identity, isUser, "neither devcontainer.json nor the command line names a user: the image's USER holds")
}

// command shows that what is true of a command in an SSH session is true of one of `ssh --command` too:
// its user and its environment.
func (s *scenario) command(phase string) cases.Finding {
	command, want := identity, isUser
	for _, v := range s.environment() {
		command += fmt.Sprintf(`; printf '%%s\n' "$%s"`, v.name)
		want += v.value + "\n"
	}
	var res proc.Result
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		res, err = s.Bench.Subject.SSH(ctx, targetID, command, nil)
		return err
	})
	_, exited := proc.ExitCode(err)
	if err != nil && !exited {
		return cases.Unclear("", err.Error(), workspace.NextGuest)
	}
	const next = "the user or the environment of `ssh --command` is not that of the image: a session over --stdio has both"
	return s.printed(phase, "ssh/command", command, string(res.Stdout), err, want, next)
}

// variable is one of the environment.
type variable struct{ name, value string }

// What the image, the Dockerfile and the Feature put into the environment.
func (s *scenario) ofImage() variable { return variable{environmentName, s.current.nonce + hard} }
func (s *scenario) ofDockerfile() variable {
	return variable{dockerfileName, s.dockerfileMarker() + hard}
}
func (s *scenario) ofFeature() variable {
	return variable{featureName, "feature-" + s.dockerfileMarker() + hard}
}

// environment returns what the image, and what was built on it, puts into the environment.
func (s *scenario) environment() []variable {
	if s.name == catalogue.ImageFeature {
		return []variable{s.ofImage(), s.ofDockerfile(), s.ofFeature()}
	}
	return []variable{s.ofImage()}
}

// says shows that a shell command in the guest prints what the image has it print. A command that fails says that it is not there;
// one that cannot be run says nothing.
func (s *scenario) says(phase, what string, g *workspace.Guest, command, want, next string) cases.Finding {
	var res subject.Result
	err := s.Bounded(workspace.GuestDeadline, func(ctx context.Context) (err error) {
		if g.Session == nil {
			return errors.New("no SSH session")
		}
		res, err = g.Session.Run(ctx, command, nil)
		return err
	})
	var ended *subject.RunError
	if err != nil && !errors.As(err, &ended) {
		return cases.Unclear("", err.Error(), workspace.NextGuest)
	}
	return s.printed(phase, what, command, string(res.Stdout), err, want, next)
}

// printed judges what a command in the guest printed. err is that of a command that failed.
func (s *scenario) printed(phase, what, command, seen string, err error, want, next string) cases.Finding {
	s.Observe(phase, what, "%s", map[bool]string{true: "the image's", false: "another"}[err == nil && seen == want])
	if err != nil {
		return cases.Broken(fmt.Sprintf("%q of `%s`", want, command), err.Error(), next)
	}
	if seen != want {
		return cases.Broken(fmt.Sprintf("%q of `%s`", want, command), fmt.Sprintf("%q", seen), next)
	}
	return cases.Passed(fmt.Sprintf("%q", strings.TrimSpace(seen)))
}

// tree holds the guest's files against the image's. The listing is made as root, which the image's user is not: by MicroSandbox's own
// exec, of the probe program that the guest was seen to have.
func (s *scenario) tree(phase string, g *workspace.Guest) cases.Finding {
	got, err := s.list(g)
	if err != nil {
		return cases.Unclear("", err.Error(), workspace.NextGuest)
	}
	except := catalogue.TreeExceptions()
	for _, e := range got {
		if e.Type == tree.Mount && slices.Contains(volatile, e.Path) { // where a system mounts a file system of its own
			except = append(except, e.Path)
		}
	}
	want, exactly := s.current.tree, []string{images.TreePath}
	if s.name == catalogue.ImageFeature {
		want, exactly = s.built(want), append(exactly, builtFolder, images.MarkerPath, filepath.Dir(featurePath))
	}
	differences := tree.Compare(want, got, tree.Rules{Exactly: exactly, Except: except})
	s.Observe(phase, "added", "%s", s.anonymous(summary(added(s.current.tree, got))))
	s.Observe(phase, "tree", "%s", map[bool]string{true: "whole", false: "not whole"}[len(differences) == 0])
	if len(differences) > 0 {
		return cases.Broken("", some(differences), nextContent)
	}
	return cases.Passed(report.Count(len(want), "path") + " of the image, each there and equal")
}

// volatile are folders in which what is there changes from run to run.
var volatile = []string{"/run", "/tmp"}

// added are the paths of the guest that its image does not have.
func added(image, guest []tree.Entry) (paths []string) {
	has := map[string]bool{}
	for _, e := range image {
		has[e.Path] = true
	}
	not := slices.Concat(volatile, catalogue.TreeExceptions())
	for _, e := range guest {
		if !has[e.Path] && !tree.Under(e.Path, not) {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// anonymous is a text without what differs from run to run: the workspace's uid, and the run's ID.
func (s *scenario) anonymous(text string) string {
	text = strings.NewReplacer(s.sandbox, "SANDBOX", s.RunID, "RUN").Replace(text)
	if uid := s.Listed().UID; uid != "" {
		text = strings.ReplaceAll(text, uid, "UID")
	}
	return text
}

// summary is a list in one line: all of it when it is short, else its start and a checksum of the whole.
func summary(list []string) string {
	const most = 40
	if len(list) <= most {
		return strings.Join(list, " ")
	}
	sum := sha256.Sum256([]byte(strings.Join(list, "\n")))
	return fmt.Sprintf("%s and %d more, SHA-256 %x", strings.Join(list[:most], " "), len(list)-most, sum)
}

// list lists the files of the guest.
func (s *scenario) list(g *workspace.Guest) ([]tree.Entry, error) {
	defer s.Timed("tree")()
	var res proc.Result
	err := s.Bounded(treeDeadline, func(ctx context.Context) (err error) {
		res, err = s.Bench.MSB.ExecAs(ctx, s.sandbox, msb.ExecOptions{User: "root"}, append([]string{g.Probe}, probe.TreeArgs()...), nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	t, err := probe.ParseTree(res.Stdout)
	return t.Entries, err
}

// some gives the first differences, and how many there are.
func some(differences []tree.Difference) string {
	const most = 5
	var lines []string
	for _, d := range differences[:min(most, len(differences))] {
		lines = append(lines, d.String())
	}
	if more := len(differences) - most; more > 0 {
		lines = append(lines, report.Count(more, "more path"))
	}
	return strings.Join(lines, "; ")
}
