package imagetree_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"dagger/parity/fixtures/images"
	"dagger/parity/internal/imagetree"
	"dagger/parity/internal/lab/labtest"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/tree"
)

// The tests mount file systems, in a lab of their own.
func TestMain(m *testing.M) { labtest.Main(m) }

// header is an entry of a layer. Its content is its own name and mode.
type header struct {
	name string
	kind byte
	link string
	mode int64
}

func (h header) content() string {
	if h.kind != tar.TypeReg {
		return ""
	}
	return fmt.Sprintf("%s %o", h.name, h.mode)
}

// dir, file, link and symlink are entries of a layer.
func dir(name string, mode int64) header  { return header{name: name, kind: tar.TypeDir, mode: mode} }
func file(name string, mode int64) header { return header{name: name, kind: tar.TypeReg, mode: mode} }
func link(name, target string) header     { return header{name: name, kind: tar.TypeLink, link: target} }
func symlink(name, target string) header {
	return header{name: name, kind: tar.TypeSymlink, link: target}
}
func special(name string, kind byte) header { return header{name: name, kind: kind} }

func image(t *testing.T, layers ...[]header) v1.Image {
	t.Helper()
	img := empty.Image
	for _, entries := range layers {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, e := range entries {
			h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content())), Format: tar.FormatPAX}
			if e.kind == tar.TypeXGlobalHeader {
				h = &tar.Header{Typeflag: e.kind, PAXRecords: map[string]string{"comment": "none"}}
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, e.content()); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// short is a list as text: path, type where it is no file, mode, target or link.
func short(list []tree.Entry) (lines []string) {
	for _, e := range list {
		line := fmt.Sprintf("%s %o", e.Path, e.Mode)
		if e.Type != tree.File {
			line = fmt.Sprintf("%s %s %o", e.Path, e.Type, e.Mode)
		}
		if e.Type == tree.Symlink {
			line = e.Path + " -> " + e.Target
		}
		if e.LinkTo != "" {
			line += " = " + e.LinkTo
		}
		lines = append(lines, line)
	}
	return lines
}

type layers = [][]header

// By the layer rules of the OCI image specification, and whatever the order of entries within a layer.
func TestLayerRules(t *testing.T) {
	for name, test := range map[string]struct {
		layers layers
		want   []string
	}{
		"names": {
			layers{{dir("./", 0o700), dir("./a/", 0o750), file("/a/f", 0o4644), file("a/../b", 0o600), file("a/\xff", 0o644), symlink("s", "../../\xfe")}},
			[]string{"/a folder 750", "/a/f 4644", `/a/\xff 644`, "/b 600", `/s -> ../../\xfe`},
		},
		"types": {
			layers{{special("g", tar.TypeXGlobalHeader), special("c", tar.TypeChar), special("b", tar.TypeBlock), special("f", tar.TypeFifo)}},
			[]string{"/b block-device 0", "/c char-device 0", "/f fifo 0"},
		},
		"a folder that no layer has": {layers{{file("a/b/f", 0o600)}}, []string{"/a folder 755", "/a/b folder 755", "/a/b/f 600"}},
		"a folder whose mode changes": {
			layers{{dir("a", 0o755), file("a/f", 0o644)}, {dir("a", 0o700)}},
			[]string{"/a folder 700", "/a/f 644"},
		},
		"a folder that a later layer does not name keeps its mode": {
			layers{{dir("a", 0o700)}, {file("a/f", 0o644)}},
			[]string{"/a folder 700", "/a/f 644"},
		},
		"whiteout": {
			layers{{file("a/f", 1), file("a/g", 1), file("h/x", 1)}, {file("a/.wh.f", 0), file(".wh.h", 0), file(".wh.none", 0), file("no/.wh.ne", 0)}},
			[]string{"/a folder 755", "/a/g 1"},
		},
		"whiteout before and after its own layer's file": {
			layers{
				{file("a", 1), file("b", 1), file("d/old", 1)},
				{file(".wh.a", 0), file("a", 2), file("b", 2), file(".wh.b", 0), file("d/new", 2), file(".wh.d", 0)},
			},
			[]string{"/a 2", "/b 2", "/d folder 755", "/d/new 2"},
		},
		"removed, and there again": {
			layers{{file("d/old", 1)}, {file(".wh.d", 0)}, {file("d/new", 1)}},
			[]string{"/d folder 755", "/d/new 1"},
		},
		"opaque": {
			layers{{dir("d", 0o700), file("d/old", 1), file("d/sub/old", 1)}, {file("d/before", 2), file("d/.wh..wh..opq", 0), file("d/sub/new", 2)}},
			[]string{"/d folder 700", "/d/before 2", "/d/sub folder 755", "/d/sub/new 2"},
		},
		"opaque root": {layers{{file("a", 1)}, {file(".wh..wh..opq", 0), file("b", 2)}}, []string{"/b 2"}},
		"a folder becomes a file, and a folder again": {
			layers{{file("d/old", 1)}, {file("d", 2)}, {file("e", 3), dir("d", 0o700)}},
			[]string{"/d folder 700", "/e 3"},
		},
		"a symlink becomes a folder": {
			layers{{file("d/f", 1), symlink("s", "d")}, {dir("s", 0o755), file("s/new", 2)}},
			[]string{"/d folder 755", "/d/f 1", "/s folder 755", "/s/new 2"},
		},
		"hard links": {
			layers{{file("b", 1), link("a", "b"), link("d/c", "/b"), symlink("s", "x"), link("t", "./s")}},
			[]string{"/a 1", "/b 1 = /a", "/d folder 755", "/d/c 1 = /a", "/s -> x", "/t -> x = /s"},
		},
		"a hard link into a lower layer": {layers{{file("a", 1)}, {link("b", "a")}}, []string{"/a 1", "/b 1 = /a"}},
		"a hard link keeps what it was made to": {
			layers{{file("a", 1)}, {link("b", "a"), link("c", "b")}, {file("a", 3)}, {file(".wh.c", 0)}},
			[]string{"/a 3", "/b 1"},
		},
	} {
		got, err := imagetree.List(image(t, test.layers...))
		if lines := short(got); err != nil || !slices.Equal(lines, test.want) {
			t.Errorf("%s: expected\n%q\ngot, %v\n%q", name, test.want, err, lines)
		}
	}
}

func TestTheContentIsThatOfTheFileThatStands(t *testing.T) {
	got, err := imagetree.List(image(t, []header{file("a", 1)}, []header{link("b", "a")}, []header{file("a", 0o600)}))
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	dir := t.TempDir()
	for i, content := range []string{file("a", 0o600).content(), file("a", 1).content()} {
		if err := os.WriteFile(filepath.Join(dir, string("ab"[i])), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := tree.OfFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i].SHA256 != want[i].SHA256 || got[i].Size != want[i].Size {
			t.Errorf("expected the content of %+v, got %+v", want[i], got[i])
		}
	}
}

func TestErrorsNameLayerAndEntry(t *testing.T) {
	many := make([]header, tree.MaxEntries+1)
	for i := range many {
		many[i] = special(fmt.Sprintf("f%d", i), tar.TypeFifo)
	}
	for name, test := range map[string]struct {
		layer []header
		want  []string
	}{
		"a hard link to nothing":        {[]header{link("b", "none")}, []string{"layer 2 of 2", `"b"`, `"none"`}},
		"a hard link to a folder":       {[]header{dir("d", 0), link("b", "d")}, []string{`"b"`, `"d"`}},
		"a file where a folder must be": {[]header{file("first/f", 0)}, []string{`"first/f"`, "a folder", "has a file"}},
		"a folder that is a symlink":    {[]header{symlink("s", "d"), file("s/f", 0)}, []string{`"s/f"`, "has a symlink"}},
		"a type that is not known":      {[]header{special("x", '7')}, []string{`"x"`, `'7'`}},
		"too many entries":              {many, []string{fmt.Sprint(tree.MaxEntries)}},
		"a name that is too long":       {[]header{file(strings.Repeat("x/", 2100)+"f", 0)}, []string{"4096"}},
		"a target that is too long":     {[]header{symlink("s", strings.Repeat("x", 4097))}, []string{`"s"`, "4096"}},
	} {
		_, err := imagetree.List(image(t, []header{file("first", 0)}, test.layer))
		for _, want := range append(test.want, "layer 2 of 2") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: expected %q in the error, got %.300v", name, want, err)
			}
		}
	}
}

// GNU tar unpacks the layers, and the kernel puts them one over the other: an image has the same files then.
func TestAsTheKernelHasIt(t *testing.T) {
	img, err := images.Build(images.Spec{Nonce: "kernel", HardTree: true})
	if err != nil {
		t.Fatal(err)
	}
	want, err := imagetree.List(img)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tree.OfFolder(overlay(t, img))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range tree.Compare(want, got, tree.Rules{Exactly: []string{"/"}}) {
		t.Error(d)
	}
	for _, d := range tree.Compare(images.HardTree("kernel"), got, tree.Rules{Exactly: []string{images.TreePath}}) {
		t.Errorf("against the declared tree: %s", d)
	}
	if len(want) < 300 {
		t.Errorf("expected a list of busybox and more, got %d entries", len(want))
	}
}

// overlay unpacks each layer into a folder, and gives an overlay of them.
func overlay(t *testing.T, img v1.Image) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	if err := unix.Mount("none", work, "tmpfs", 0, ""); err != nil { // for trusted xattrs, wherever this runs
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(work, unix.MNT_DETACH) })
	var lower []string
	for i, layer := range layers {
		dir := filepath.Join(work, fmt.Sprint(i))
		content, err := layer.Uncompressed()
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()
		if _, err := proc.Run(t.Context(), proc.Cmd{Argv: []string{"tar", "-x", "-p", "--numeric-owner", "-C", dir}, Stdin: content}); err != nil {
			t.Fatal(err)
		}
		convertWhiteouts(t, dir)
		lower = append([]string{dir}, lower...)
	}
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("overlay", root, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	return root
}

// convertWhiteouts makes a layer's whiteouts those of the kernel's overlay.
func convertWhiteouts(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, _ os.DirEntry, err error) error {
		hidden, ok := strings.CutPrefix(filepath.Base(file), ".wh.")
		if err != nil || !ok {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
		if hidden == ".wh..opq" {
			return unix.Setxattr(filepath.Dir(file), "trusted.overlay.opaque", []byte("y"), 0)
		}
		return unix.Mknod(filepath.Join(filepath.Dir(file), hidden), unix.S_IFCHR, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
}
