package tree_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/tree"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func paths(list []tree.Entry) (paths []string) {
	for _, e := range list {
		paths = append(paths, e.Path)
	}
	return paths
}

func list(t *testing.T, root string, below ...string) []tree.Entry {
	t.Helper()
	l, err := tree.OfFolder(root, below...)
	must(t, err)
	return l
}

func mount(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755), unix.Mount("none", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func sum(content string) string {
	s := sha256.Sum256([]byte(content))
	return hex.EncodeToString(s[:])
}

func TestOfFolder(t *testing.T) {
	root := t.TempDir()
	in := func(name string) string { return filepath.Join(root, name) }
	must(t,
		os.Mkdir(in("a"), 0o755), os.WriteFile(in("a/file"), []byte("content"), 0o644), os.Lchown(in("a/file"), 1000, 54321),
		os.Chmod(in("a/file"), 0o755|fs.ModeSetuid|fs.ModeSetgid),
		os.Link(in("a/file"), in("a/second")), os.Link(in("a/file"), in("z-third")),
		os.WriteFile(in("a-empty"), nil, 0), os.Chmod(in("a-empty"), 0),
		os.Symlink("nowhere", in("dangling")), os.Lchown(in("dangling"), 7, 8), os.Link(in("dangling"), in("dangling-second")),
		os.Symlink("/a\xff", in("b\xfe")), os.Mkdir(in("d"), 0o755), os.Chmod(in("d"), 0o700|fs.ModeSticky), os.Chown(in("d"), 5, 6),
		unix.Mkfifo(in("fifo"), 0o600), unix.Mknod(in("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.Chmod(in("null"), 0o666),
	)
	mount(t, in("mount"))
	must(t, os.WriteFile(in("mount/hidden"), nil, 0o644))
	must(t, os.WriteFile(in("over"), nil, 0o644), unix.Mount(in("mount/hidden"), in("over"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(in("over"), unix.MNT_DETACH) })

	file := tree.Entry{Path: "/a/file", Type: tree.File, Mode: 0o6755, UID: 1000, GID: 54321, Size: 7, SHA256: sum("content")}
	second, third := file, file
	second.Path, second.LinkTo, third.Path, third.LinkTo = "/a/second", "/a/file", "/z-third", "/a/file"
	dangling := tree.Entry{Path: "/dangling", Type: tree.Symlink, Mode: 0o777, UID: 7, GID: 8, Target: "nowhere"}
	again := dangling
	again.Path, again.LinkTo = "/dangling-second", "/dangling"
	want := []tree.Entry{
		{Path: "/a", Type: tree.Folder, Mode: 0o755},
		file,
		second,
		{Path: "/a-empty", Type: tree.File, SHA256: sum("")},
		{Path: `/b\xfe`, Type: tree.Symlink, Mode: 0o777, Target: `/a\xff`},
		{Path: "/d", Type: tree.Folder, Mode: 0o1700, UID: 5, GID: 6},
		dangling,
		again,
		{Path: "/fifo", Type: tree.FIFO, Mode: 0o600},
		{Path: "/mount", Type: tree.Mount},
		{Path: "/null", Type: tree.CharDevice, Mode: 0o666},
		{Path: "/over", Type: tree.Mount},
		third,
	}
	got := list(t, root)
	if !slices.Equal(got, want) {
		t.Errorf("expected\n%+v\ngot\n%+v", want, got)
	}

	for _, test := range []struct{ below, want []string }{
		{[]string{"/d"}, []string{"/d"}},
		{[]string{"/a/", "/a/file", "/z-third", "/a"}, []string{"/a", "/a/file", "/a/second", "/z-third"}},
		{[]string{"/none", "/a-empty/below-a-file"}, nil},
		{[]string{"/mount/hidden"}, []string{"/mount/hidden"}},
	} {
		if got := paths(list(t, root, test.below...)); !slices.Equal(got, test.want) {
			t.Errorf("below %q: expected %q, got %q", test.below, test.want, got)
		}
	}
	if _, err := tree.OfFolder(in("none")); err == nil || !strings.Contains(err.Error(), in("none")) {
		t.Errorf("a root that does not exist: %v", err)
	}
}

// The root of a guest is an overlay, where the device number of a file is another one than that of a folder.
func TestOfFolderOnAnOverlay(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir)
	root := filepath.Join(dir, "root")
	for _, name := range []string{"one", "two", "upper", "work", "root"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	mount(t, filepath.Join(dir, "two"))
	must(t,
		os.WriteFile(filepath.Join(dir, "one", "first"), []byte("1"), 0o644), os.Link(filepath.Join(dir, "one", "first"), filepath.Join(dir, "one", "linked")),
		os.WriteFile(filepath.Join(dir, "two", "second"), []byte("2"), 0o644),
		unix.Mount("overlay", root, "overlay", 0,
			fmt.Sprintf("lowerdir=%[1]s/one:%[1]s/two,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)),
	)
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(root, "third"), []byte("3"), 0o644))
	want := []tree.Entry{
		{Path: "/first", Type: tree.File, Mode: 0o644, Size: 1, SHA256: sum("1")},
		{Path: "/linked", Type: tree.File, Mode: 0o644, Size: 1, SHA256: sum("1"), LinkTo: "/first"},
		{Path: "/second", Type: tree.File, Mode: 0o644, Size: 1, SHA256: sum("2")},
		{Path: "/third", Type: tree.File, Mode: 0o644, Size: 1, SHA256: sum("3")},
	}
	if got := list(t, root); !slices.Equal(got, want) {
		t.Errorf("expected\n%+v\ngot\n%+v", want, got)
	}
}

func TestAFileOfManyNamesIsReadOnce(t *testing.T) {
	root := t.TempDir()
	const size = 32 << 20
	must(t, os.WriteFile(filepath.Join(root, "0"), make([]byte, size), 0o644))
	for i := range 4 {
		must(t, os.Link(filepath.Join(root, "0"), filepath.Join(root, strconv.Itoa(i+1))))
	}
	before := bytesRead(t)
	list(t, root)
	if read := bytesRead(t) - before; read < size || read > 2*size {
		t.Errorf("of a file of %d bytes with five names, %d bytes were read", size, read)
	}
}

// bytesRead is how many bytes this process has read so far.
func bytesRead(t *testing.T) int {
	t.Helper()
	io, err := os.ReadFile("/proc/self/io")
	must(t, err)
	var n int
	if _, err := fmt.Sscanf(string(io), "rchar: %d", &n); err != nil {
		t.Fatalf("/proc/self/io: %q, %v", io, err)
	}
	return n
}

func TestTooManyEntries(t *testing.T) {
	root := t.TempDir()
	mount(t, root)
	must(t, os.Mkdir(filepath.Join(root, "most"), 0o755))
	for i := range tree.MaxEntries - 1 {
		must(t, unix.Mknod(filepath.Join(root, "most", strconv.Itoa(i)), unix.S_IFIFO, 0))
	}
	if got := list(t, root); len(got) != tree.MaxEntries {
		t.Errorf("expected %d entries, got %d", tree.MaxEntries, len(got))
	}
	must(t, os.WriteFile(filepath.Join(root, "one-more"), nil, 0o644))
	_, err := tree.OfFolder(root)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(tree.MaxEntries)) || !strings.Contains(err.Error(), "/one-more") {
		t.Errorf("with one entry too many: %v", err)
	}
	if got := list(t, root, "/one-more"); len(got) != 1 {
		t.Errorf("a part of it is %v", got)
	}
}

func TestText(t *testing.T) {
	seen := map[string]string{}
	for name, want := range map[string]string{
		"plain": "plain", "grüße-日本-🚀": "grüße-日本-🚀", "a\nb\"": "a\nb\"",
		"\xff": `\xff`, "a\x80b": `a\x80b`, `\`: `\\`, `\xff`: `\\xff`, "é\\\xe9": `é\\\xe9`, "\ufffd": "\ufffd",
	} {
		got := tree.Text(name)
		if got != want {
			t.Errorf("%q: expected %q, got %q", name, want, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q are both %q", name, other, got)
		}
		seen[got] = name
	}
}
