package killtest

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/lab"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/report"
)

// The tests run in a native lab.
func TestMain(m *testing.M) {
	// What this process ignores, its children ignore too, as under nohup. What it asks for has its default for them.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	labtest.Main(m, "dagger/parity/cmd/...")
}

// world is this machine as a test has it: folders of its own for all that a run writes, and all else that it could write to watched.
type world struct {
	dir                        string
	cache, home, report, other string
	roots                      []string
}

// shared are the folders into which programs write without being told to. The tests have empty ones of their own over them.
var shared = []string{"/tmp", "/var/tmp", "/run", "/dev/shm"}

var cover = sync.OnceValue(func() error {
	keep := []string{os.Getenv(lab.EnvScratch), labtest.Programs()}
	for _, dir := range shared {
		if err := coverFolder(dir, keep); err != nil {
			return fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	return nil
})

// coverFolder mounts an empty file system over dir, in which the folders to keep are where they were.
func coverFolder(dir string, keep []string) error {
	kept := map[string]int{}
	for _, path := range keep {
		if strings.HasPrefix(path, dir+"/") {
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			kept[path] = fd
		}
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777"); err != nil {
		return err
	}
	for path, fd := range kept {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// newWorld gives a test its folders, with empty ones over those that all programs share.
func newWorld(t *testing.T) *world {
	t.Helper()
	if err := cover(); err != nil {
		t.Fatal(err)
	}
	return newFolders(t, shared)
}

// newFolders gives a test its folders. The others are watched as well. MicroSandbox makes sockets below the cache: its path is short.
func newFolders(t *testing.T, others []string) *world {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(lab.EnvScratch), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w := &world{dir: dir, cache: filepath.Join(dir, "c"), home: filepath.Join(dir, "home"),
		report: filepath.Join(dir, "report"), other: filepath.Join(dir, "other")}
	for _, d := range []string{w.cache, w.home, w.report, w.other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.roots = append([]string{dir}, others...)
	return w
}

// volatile tells the files whose content is another one after each run.
func (w *world) volatile(path string) bool {
	switch filepath.Base(path) {
	case report.JSONFile, report.JUnitFile, report.SummaryFile:
		return strings.HasPrefix(path, w.report)
	}
	return false
}

// ignored tells the transcripts that a run writes, each whole: which they are depends on its cases.
func (w *world) ignored(path string) bool {
	folder := filepath.Join(w.report, report.TranscriptFolder)
	whole := strings.HasSuffix(path, ".txt") && !strings.HasPrefix(filepath.Base(path), ".")
	return path == folder || filepath.Dir(path) == folder && whole
}

func (w *world) look(t *testing.T) state {
	t.Helper()
	return look(t, w.roots, w.volatile, w.ignored)
}

// removeReport removes a run's report, which stays after it.
func (w *world) removeReport(t *testing.T) {
	t.Helper()
	for _, name := range []string{report.JSONFile, report.JUnitFile, report.SummaryFile} {
		if err := os.Remove(filepath.Join(w.report, name)); err != nil {
			t.Errorf("the run left no report: %v", err)
		}
	}
	if err := os.RemoveAll(filepath.Join(w.report, report.TranscriptFolder)); err != nil {
		t.Error(err)
	}
}

// program gives the path of one of Parity's programs.
func program(name string) string {
	return filepath.Join(labtest.Programs(), name)
}

// command gives a run of parity that is not started yet.
func (w *world) command(args ...string) *exec.Cmd {
	c := exec.Command(program("parity"), args...)
	c.Dir = w.other
	c.Env = append(os.Environ(), "PARITY_CACHE="+w.cache, "HOME="+w.home, "TMPDIR="+w.other)
	return c
}

// passes runs parity to a pass, and gives what it printed to stdout and stderr.
func (w *world) passes(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	c := w.command(args...)
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("parity %s: %v\n%s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), errs.String()
}
