// Package labtest runs a package's tests in a native lab, for tests that make mounts, links or processes that must go with them.
package labtest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"dagger/parity/internal/lab"
)

// envPrograms names the folder with the programs, inside of the tests' lab.
const envPrograms = "PARITY_TEST_PROGRAMS"

// envBin names a folder with Parity's own programs, built from the same source as the tests.
const envBin = "PARITY_BIN"

// Programs is the folder with the programs that Main has built, or that PARITY_BIN names to tests which run in a lab already.
func Programs() string { return cmp.Or(os.Getenv(envPrograms), os.Getenv(envBin)) }

// Main is for a TestMain: it runs the tests in a native lab of their own, unless they are in a lab already, and ends this process. The
// programs of the given packages are built for them before, if there are any. A test program that is also run as something else calls
// lab.Reexec and looks for that first.
func Main(m *testing.M, packages ...string) {
	lab.Reexec()
	if os.Getenv(lab.EnvScratch) != "" {
		os.Exit(m.Run())
	}
	code, err := inLab(packages)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests' lab:", err)
		code = 1
	}
	os.Exit(code)
}

func inLab(packages []string) (int, error) {
	cache, err := os.MkdirTemp("", "parity-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(cache)
	env := os.Environ()
	if len(packages) > 0 {
		bin := filepath.Join(cache, "bin")
		if err := Build(bin, packages...); err != nil {
			return 0, err
		}
		env = append(env, envPrograms+"="+bin)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	res, err := lab.Run(context.Background(), lab.Options{
		KVM: lab.Native, Argv: append([]string{self}, os.Args[1:]...), Env: env, Dir: dir, Stdout: os.Stdout, Stderr: os.Stderr, Cache: cache,
	})
	return res.ExitCode, err
}

// Parity's own programs: the packages in which they are, and all of them.
const (
	ownPackages = "dagger/parity/cmd/"
	allPackages = ownPackages + "..."
)

// Build builds the programs of the packages into a folder, static as Parity's are. Those of Parity's
// own that the folder PARITY_BIN has are copied from there, as each takes seconds to link: scripts/test
// builds them once, for all packages' tests.
func Build(dir string, packages ...string) error {
	if from := os.Getenv(envBin); from != "" {
		var err error
		if packages, err = copyOwn(from, dir, packages); err != nil || len(packages) == 0 {
			return err
		}
	}
	build := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/"}, packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// copyOwn copies Parity's own programs of the packages, and gives the packages that are left.
func copyOwn(from, to string, packages []string) (left []string, err error) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	for _, p := range packages {
		name, own := strings.CutPrefix(p, ownPackages)
		switch {
		case p == allPackages:
			err = os.CopyFS(to, os.DirFS(from))
		case own:
			err = copyFile(filepath.Join(from, name), filepath.Join(to, name))
		default:
			left = append(left, p)
		}
		if err != nil {
			return nil, fmt.Errorf("copy the programs of %s, which %s names: %w", p, envBin, err)
		}
	}
	return left, nil
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}
