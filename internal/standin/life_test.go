package standin_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/msb"
	"dagger/parity/internal/msb/msbtest"
	"dagger/parity/internal/standin"
)

const reference = "parity.test/standin:1"

func buildImage(t *testing.T) string {
	t.Helper()
	img, err := images.Build(images.Spec{Nonce: "standin"})
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := images.WriteDockerArchive(archive, reference, img); err != nil {
		t.Fatal(err)
	}
	return archive
}

func newMSB(t *testing.T) *msb.Client {
	t.Helper()
	c := msbtest.NewClient(t, program(t, ""))
	if err := c.Load(t.Context(), buildImage(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

// processes lists the processes of the lab that run the stand-in for this MSB_HOME, or are in one of its guests.
func processes(t *testing.T, home string) (pids []int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		cwd, _ := os.Readlink(dir + "/cwd")
		net, err := os.Readlink(dir + "/ns/net")
		if err == nil && net != own || strings.HasPrefix(cwd, home) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func status(t *testing.T, c *msb.Client, name string) msb.Status {
	t.Helper()
	box, err := c.Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return box.Status
}

// Whichever process of a guest is killed: the sandbox has crashed, nothing of the guest is left, and it can be started and removed.
func TestKilledGuestHasCrashed(t *testing.T) {
	c := newMSB(t)
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "a", Image: reference}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the keeper, and then the init
		left := processes(t, c.Home)
		if len(left) != 2 {
			t.Fatalf("the guest has the processes %v", left)
		}
		if err := syscall.Kill(left[i], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "the guest is gone", func() bool { return len(processes(t, c.Home)) == 0 })
		until(t, "the sandbox has crashed", func() bool { return status(t, c, "a") == msb.StatusCrashed })
		if err := c.Start(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if s := status(t, c, "a"); s != msb.StatusRunning {
			t.Errorf("once started, the status is %s", s)
		}
	}
	// One whose keeper does not react is ended all the same.
	if err := syscall.Kill(processes(t, c.Home)[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	until(t, "nothing is left", func() bool { return len(processes(t, c.Home)) == 0 })
}

// A create that is killed, at whatever moment, leaves nothing that a forced remove does not remove.
func TestKilledCreateCanBeRemoved(t *testing.T) {
	c := newMSB(t)
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Millisecond)
		create := exec.CommandContext(ctx, c.Path, "create", "--name", "a", reference) // ended by SIGKILL
		create.Env = append(os.Environ(), "MSB_HOME="+c.Home)
		_ = create.Run()
		cancel()
		if err := c.Remove(t.Context(), "a"); err != nil && !errors.Is(err, msb.ErrNotFound) {
			t.Fatal(err)
		}
		if list, err := c.List(t.Context()); err != nil || len(list) > 0 {
			t.Fatalf("after a remove there are %v, %v", list, err)
		}
		until(t, "nothing of the guest is left", func() bool { return len(processes(t, c.Home)) == 0 })
	}
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "a", Image: reference}); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Home, "standin", "new-*")); len(left) > 0 {
		t.Errorf("half made things are left: %v", left)
	}
}

// A command in a guest ends with the msb exec that asked for it.
func TestCommandEndsWithItsExec(t *testing.T) {
	c := newMSB(t)
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "a", Image: reference}); err != nil {
		t.Fatal(err)
	}
	idle := len(processes(t, c.Home))
	cmd := c.ExecCmd("a", []string{"/bin/sh", "-c", "sleep 600 & sleep 600; true"})
	sleep := exec.Command(cmd.Argv[0], cmd.Argv[1:]...)
	sleep.Env = cmd.Env
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the command runs", func() bool { return len(processes(t, c.Home)) >= idle+2 })
	if err := sleep.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Wait()
	until(t, "the command has ended", func() bool { return len(processes(t, c.Home)) == idle })
}

// The guest has nothing of this machine: no mount, no interface, no process, and what it does to its root stays there.
func TestGuestIsApart(t *testing.T) {
	c := newMSB(t)
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "a", Image: reference}); err != nil {
		t.Fatal(err)
	}
	script := `cut -d' ' -f5 /proc/self/mountinfo | sort | tr '\n' ' '; echo; ls /sys/class/net; ls -d /proc/[0-9]* | wc -l
		echo x >/dev/null; head -c 1 /dev/urandom | wc -c; rm -rf /etc /usr`
	res, err := c.Exec(t.Context(), "a", []string{"/bin/sh", "-c", script}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(res.Stdout), "\n")
	want := []string{"/ /dev /dev/pts /dev/shm /proc /proc/sys/kernel/random/boot_id /sys ", "lo"}
	if !slices.Equal(lines[:2], want) || strings.TrimSpace(lines[3]) != "1" {
		t.Errorf("the guest sees %q", lines)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(lines[2])); err != nil || n > 6 {
		t.Errorf("the guest sees %d processes, %v", n, err)
	}
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "b", Image: reference}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "b", []string{"/bin/ls", "/etc/passwd", "/usr/bin"}, nil); err != nil {
		t.Errorf("another sandbox of the image has lost files: %v", err)
	}
}

type entry struct {
	name, link, content string
	kind                byte
	mode, uid           int
}

// layered gives the test image with layers over it.
func layered(t *testing.T, layers ...[]entry) string {
	t.Helper()
	img, err := images.Build(images.Spec{Nonce: "layers"})
	if err != nil {
		t.Fatal(err)
	}
	for _, entries := range layers {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, e := range entries {
			h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: int64(e.mode), Uid: e.uid, Size: int64(len(e.content)), ModTime: time.Unix(1e9, 0)}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, e.content); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var layer v1.Layer
		layer, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	archive := filepath.Join(t.TempDir(), "layers.tar")
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	return archive
}

func TestLayersAreUnpacked(t *testing.T) {
	archive := layered(t, []entry{
		{name: "./", kind: tar.TypeDir, mode: 0o755},
		{name: "t/", kind: tar.TypeDir, mode: 0o750, uid: 1000},
		{name: "t/gone", kind: tar.TypeReg, content: "x", mode: 0o644},
		{name: "t/opaque/", kind: tar.TypeDir, mode: 0o755},
		{name: "t/opaque/old", kind: tar.TypeReg, content: "x", mode: 0o644},
		{name: "t/folder-then-file/", kind: tar.TypeDir, mode: 0o755},
		{name: "t/first", kind: tar.TypeReg, content: "linked", mode: 0o4755, uid: 1000},
		{name: "t/second", kind: tar.TypeLink, link: "t/first"},
		{name: "t/dangling", kind: tar.TypeSymlink, link: "/nowhere"},
	}, []entry{
		{name: "t/.wh.gone", kind: tar.TypeReg},
		{name: "t/opaque/new", kind: tar.TypeReg, content: "x", mode: 0o600},
		{name: "t/opaque/.wh..wh..opq", kind: tar.TypeReg},
		{name: "t/folder-then-file", kind: tar.TypeReg, content: "now a file", mode: 0o644},
	})
	c := msbtest.NewClient(t, program(t, ""))
	if err := c.Load(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), msb.CreateOptions{Name: "a", Image: reference}); err != nil {
		t.Fatal(err)
	}
	const want = `/t 750 1000 2 1000000000
/t/dangling 777 0 1 
/t/first 4755 1000 2 1000000000
/t/folder-then-file 644 0 1 1000000000
/t/opaque 755 0 2 1000000000
/t/opaque/new 600 0 1 1000000000
/t/second 4755 1000 2 1000000000
`
	script := `find /t | sort | while read -r f; do
		links=$(stat -c %h $f); [ ! -d $f ] || links=2; mtime=$(stat -c %Y $f); [ ! -L $f ] || mtime=; echo "$f $(stat -c '%a %u' $f) $links $mtime"; done`
	res, err := c.Exec(t.Context(), "a", []string{"/bin/sh", "-c", script}, nil)
	if err != nil || string(res.Stdout) != want {
		t.Errorf("the guest has, %v\n%s", err, res.Stdout)
	}
}

// An archive cannot reach out of the image that it is of.
func TestHostileArchiveIsContained(t *testing.T) {
	outside := t.TempDir()
	for name, entries := range map[string][]entry{
		"dots":           {{name: "../../../../../../.." + outside + "/evil", kind: tar.TypeReg, content: "x", mode: 0o644}},
		"a symlink":      {{name: "out", kind: tar.TypeSymlink, link: outside}, {name: "out/evil", kind: tar.TypeReg, content: "x", mode: 0o644}},
		"a hard link":    {{name: "evil", kind: tar.TypeLink, link: outside + "/kept"}},
		"a whiteout":     {{name: "out", kind: tar.TypeSymlink, link: outside}, {name: "out/.wh.kept", kind: tar.TypeReg}},
		"an opaque mark": {{name: "out", kind: tar.TypeSymlink, link: outside}, {name: "out/.wh..wh..opq", kind: tar.TypeReg}},
	} {
		if err := os.WriteFile(filepath.Join(outside, "kept"), []byte("ours"), 0o644); err != nil {
			t.Fatal(err)
		}
		c := msbtest.NewClient(t, program(t, ""))
		loadErr := c.Load(t.Context(), layered(t, entries)) // it may also load: then contained
		if left, err := os.ReadDir(outside); err != nil || len(left) != 1 || left[0].Name() != "kept" {
			t.Errorf("%s: outside there are now %v, %v (%v)", name, left, err, loadErr)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(outside, "kept"), &st); err != nil || st.Nlink != 1 {
			t.Errorf("%s: the file outside has %d links, %v", name, st.Nlink, err)
		}
		images, err := c.Images(t.Context())
		if err != nil || (loadErr != nil) != (len(images) == 0) {
			t.Errorf("%s: load gives %v, and the store has %v, %v", name, loadErr, images, err)
		}
	}
}

func TestItSaysWhatItIs(t *testing.T) {
	v, err := msbtest.NewClient(t, program(t, "")).Version(t.Context())
	if err != nil || v != standin.Version() || !strings.HasSuffix(v, "+standin") {
		t.Errorf("the version is %q, %v", v, err)
	}
}

func TestUnknownFaultIsRefused(t *testing.T) {
	c := msbtest.NewClient(t, program(t, ""))
	c.Path = program(t, "no-such-fault")
	_, err := c.List(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no-such-fault") || !strings.Contains(err.Error(), "deny-ignored") {
		t.Errorf("with a fault that does not exist: %v", err)
	}
	c.Path = program(t, "") // the clean-up lists the sandboxes
}
