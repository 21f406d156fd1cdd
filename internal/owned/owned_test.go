package owned

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The test program is the process that makes a folder and is killed.
func TestMain(m *testing.M) {
	if parent := os.Getenv("PARITY_TEST_MAKE_IN"); parent != "" {
		f, err := Make(parent, "x-")
		if err == nil {
			err = os.WriteFile(filepath.Join(f.Path, "file"), []byte("content"), 0o644)
		}
		fmt.Println("made", err)
		_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// maker starts a process that makes a folder in parent and has it until it is killed.
func maker(t *testing.T, parent string) (kill func()) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), "PARITY_TEST_MAKE_IN="+parent)
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
			stdin.Close()
		})
	}
	t.Cleanup(kill)
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "made <nil>\n" {
		t.Fatalf("the maker said %q", line)
	}
	return kill
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestFolderStaysWhileItsMakerLivesAndGoesOnceItWasKilled(t *testing.T) {
	parent := t.TempDir()
	kill := maker(t, parent)
	if removed, err := Clean(parent, "x-", nil); err != nil || len(removed) > 0 {
		t.Fatalf("the maker lives, and %q was removed (%v)", removed, err)
	}
	kill()
	removed, err := Clean(parent, "x-", nil)
	if err != nil || len(removed) != 1 || len(names(t, parent)) > 0 {
		t.Errorf("removed %q, %v; left are %q", removed, err, names(t, parent))
	}
	if removed, err = Clean(parent, "x-", nil); err != nil || len(removed) > 0 {
		t.Errorf("there was nothing more to remove: %q, %v", removed, err)
	}
}

func TestWhatIsNotMadeHereStays(t *testing.T) {
	parent, elsewhere := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(parent, "x-1/notes"), 0o755)) // a folder of somebody's with such a name
	must(os.Mkdir(filepath.Join(parent, "x-y"), 0o755))
	must(os.Mkdir(filepath.Join(parent, "y-2"), 0o755))
	must(os.WriteFile(filepath.Join(parent, "x-3"), nil, 0o644))
	must(os.Symlink(elsewhere, filepath.Join(parent, "x-4")))
	must(mark(elsewhere, ""))
	held, err := Make(parent, "x-")
	must(err)
	before := names(t, parent)
	if removed, err := Clean(parent, "x-", nil); err != nil || len(removed) > 0 {
		t.Errorf("removed %q, %v", removed, err)
	}
	if after := names(t, parent); !slices.Equal(before, after) {
		t.Errorf("of %q, %q are left", before, after)
	}
	must(held.Remove())
	if removed, err := Clean(filepath.Join(parent, "none"), "x-", nil); err != nil || len(removed) > 0 {
		t.Errorf("of a folder that is not there: %q, %v", removed, err)
	}
}

func TestEmptyFolderOfAMakerThatWasKilledBetweenIsRemoved(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "x-5") // neither locked nor marked yet
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	maker, err := lockFolder(parent, unix.LOCK_SH, 0)
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := Clean(parent, "x-", nil); err != nil || len(removed) > 0 {
		t.Errorf("of a maker that may be alive: %q, %v", removed, err)
	}
	maker.Close() // as the kernel does when the maker dies
	if removed, err := Clean(parent, "x-", nil); err != nil || !slices.Equal(removed, []string{dir}) {
		t.Errorf("removed %q, %v", removed, err)
	}
}

// Whoever holds the parent for good, such as a run whose report is in the cache folder, can make folders in it all the same.
func TestMakeInAFolderThatIsHeld(t *testing.T) {
	parent := t.TempDir()
	held, err := Hold(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	f, err := Make(parent, "x-")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(); err != nil {
		t.Error(err)
	}
}

// Clean waits for what a killed process had started in its folder, which the kernel ends a moment later.
func TestCleanWaitsForTheProcessInTheFolder(t *testing.T) {
	parent := t.TempDir()
	f, err := Make(parent, "x-")
	if err != nil {
		t.Fatal(err)
	}
	user := exec.Command("sh", "-c", `read word; echo "$word" >>"$0/late"`, f.Path)
	stdin, err := user.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	if err := f.UsedBy(user.Process.Pid); err != nil {
		t.Fatal(err)
	}
	f.lock.Close() // as the kernel does when the maker dies
	done := make(chan error)
	go func() {
		_, err := Clean(parent, "x-", func(dir string) ([]string, error) {
			if _, err := os.Stat(filepath.Join(dir, "late")); err != nil {
				return nil, fmt.Errorf("it did not wait: %w", err)
			}
			return nil, nil
		})
		done <- err
	}()
	if _, err := stdin.Write([]byte("word\n")); err != nil {
		t.Fatal(err)
	}
	if err := user.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || len(names(t, parent)) > 0 {
		t.Errorf("%v; left are %q", err, names(t, parent))
	}
}

// A process that has a dead one's number is not waited for.
func TestProcessNumberThatIsGivenOutAgainIsNoReasonToWait(t *testing.T) {
	parent := t.TempDir()
	f, err := Make(parent, "x-")
	if err != nil {
		t.Fatal(err)
	}
	started, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := mark(f.Path, fmt.Sprintf("%d %s0", os.Getpid(), started)); err != nil {
		t.Fatal(err)
	}
	f.lock.Close()
	if removed, err := Clean(parent, "x-", nil); err != nil || len(removed) != 1 {
		t.Errorf("removed %q, %v", removed, err)
	}
}

func TestFolderIsHeldOnce(t *testing.T) {
	dir := t.TempDir()
	lock, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir); err == nil || !strings.Contains(err.Error(), ErrHeld.Error()) {
		t.Errorf("a second one held it: %v", err)
	}
	lock.Close()
	if again, err := Hold(dir); err != nil {
		t.Errorf("it was let go of: %v", err)
	} else {
		again.Close()
	}
}

// Makers and clean-ups at the same time: no maker loses its folder.
func TestCleanUpsDoNotDisturbMakers(t *testing.T) {
	parent := t.TempDir()
	stop := make(chan struct{})
	var cleaners, makers sync.WaitGroup
	for range 2 {
		cleaners.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := Clean(parent, "x-", nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 {
		makers.Go(func() {
			for range 200 {
				f, err := Make(parent, "x-")
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(f.Path, "file"), nil, 0o644); err != nil {
					t.Errorf("the folder was lost: %v", err)
					return
				}
				if err := f.Remove(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	makers.Wait()
	close(stop)
	cleaners.Wait()
	if left := names(t, parent); len(left) > 0 {
		if _, err := Clean(parent, "x-", nil); err != nil || len(names(t, parent)) > 0 {
			t.Errorf("left are %q (%v)", left, err)
		}
	}
}

// Where the file system has no user xattrs, a file is the mark. A ramfs is one.
func TestWithoutUserXattrsAFileIsTheMark(t *testing.T) {
	parent := t.TempDir()
	if err := unix.Mount("ramfs", parent, "ramfs", 0, ""); err != nil {
		t.Fatalf("mount a ramfs (as root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(parent, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setxattr(parent, attr, nil, 0); !errors.Is(err, unix.ENOTSUP) {
		t.Fatalf("the ramfs was to have no user xattrs: %v", err)
	}
	kill := maker(t, parent)
	if removed, err := Clean(parent, "x-", nil); err != nil || len(removed) > 0 {
		t.Errorf("the maker lives, and %q was removed (%v)", removed, err)
	}
	kill()
	if err := os.MkdirAll(filepath.Join(parent, "x-1/notes"), 0o755); err != nil {
		t.Fatal(err)
	}
	if removed, err := Clean(parent, "x-", nil); err != nil || len(removed) != 1 || !slices.Equal(names(t, parent), []string{"x-1"}) {
		t.Errorf("removed %q, %v; left are %q", removed, err, names(t, parent))
	}
}
