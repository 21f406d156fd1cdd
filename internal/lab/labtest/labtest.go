// Package labtest runs a package's tests in a native lab, for tests that make mounts, links or processes that must go with them.
package labtest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"dagger/parity/internal/lab"
)

// envPrograms names the folder with the programs, inside of the tests' lab.
const envPrograms = "PARITY_TEST_PROGRAMS"

// Programs is the folder with the programs that Main has built, or that PARITY_BIN names to tests which run in a lab already.
func Programs() string { return cmp.Or(os.Getenv(envPrograms), os.Getenv("PARITY_BIN")) }

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

// Build builds the programs of the packages into a folder, static as Parity's are.
func Build(dir string, packages ...string) error {
	build := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/"}, packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
