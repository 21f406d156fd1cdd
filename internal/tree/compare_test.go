package tree_test

import (
	"slices"
	"testing"

	"dagger/parity/internal/tree"
)

func TestCompare(t *testing.T) {
	file := func(path string, change ...func(*tree.Entry)) tree.Entry {
		e := tree.Entry{Path: path, Type: tree.File, Mode: 0o644, Size: 1, SHA256: "aa"}
		for _, c := range change {
			c(&e)
		}
		return e
	}
	linkTo := func(path string) func(*tree.Entry) { return func(e *tree.Entry) { e.LinkTo = path } }
	folder := func(path string) tree.Entry { return tree.Entry{Path: path, Type: tree.Folder, Mode: 0o755} }
	symlink := func(target string) tree.Entry {
		return tree.Entry{Path: "/s", Type: tree.Symlink, Mode: 0o777, Target: target}
	}
	type list = []tree.Entry
	exactly := func(paths ...string) tree.Rules { return tree.Rules{Exactly: paths} }
	except := func(paths ...string) tree.Rules { return tree.Rules{Exactly: []string{"/"}, Except: paths} }
	for name, test := range map[string]struct {
		want, seen list
		rules      tree.Rules
		differ     []string
	}{
		"equal": {want: list{folder("/a"), file("/a/f"), symlink("x")}, seen: list{symlink("x"), file("/a/f"), folder("/a")}, rules: exactly("/")},
		"every field": {
			want:   list{file("/f")},
			seen:   list{{Path: "/f", Type: tree.File, Mode: 0o4644, UID: 1, GID: 2, Size: 3, SHA256: "bb"}},
			differ: []string{`"/f": expected mode 0644, owner 0:0, 1 bytes, SHA-256 aa, seen mode 4644, owner 1:2, 3 bytes, SHA-256 bb`},
		},
		"one field": {
			want:   list{file("/f")},
			seen:   list{file("/f", func(e *tree.Entry) { e.GID = 5 })},
			differ: []string{`"/f": expected owner 0:0, seen owner 0:5`},
		},
		"a target": {
			want: list{symlink("x")}, seen: list{symlink("y")},
			differ: []string{`"/s": expected target "x", seen target "y"`},
		},
		"a type": {
			want: list{folder("/s")}, seen: list{symlink("y")},
			differ: []string{`"/s": expected a folder, mode 0755, owner 0:0, seen a symlink, mode 0777, owner 0:0, target "y"`},
		},
		"a mount": {
			want: list{folder("/d"), file("/d/f")}, seen: list{{Path: "/d", Type: tree.Mount}},
			differ: []string{
				`"/d": expected a folder, mode 0755, owner 0:0, seen a mount`,
				`"/d/f": expected a file, mode 0644, owner 0:0, 1 bytes, SHA-256 aa, seen nothing`,
			},
		},
		"a device": {
			want:   list{{Path: "/d", Type: tree.CharDevice}},
			differ: []string{`"/d": expected a char device, mode 0000, owner 0:0, seen nothing`},
		},
		"more than wanted, elsewhere": {want: list{folder("/a")}, seen: list{folder("/a"), file("/ab"), file("/c")}, rules: exactly("/a")},
		"more than wanted, below an exact path": {
			want: list{folder("/a")}, seen: list{folder("/a"), file("/a/b")}, rules: exactly("/x", "/a"),
			differ: []string{`"/a/b": expected nothing, seen a file, mode 0644, owner 0:0, 1 bytes, SHA-256 aa`},
		},
		"what is excepted": {
			want: list{folder("/a"), file("/a/b"), file("/missing/b"), file("/also")}, seen: list{file("/a"), file("/also"), file("/more")},
			rules: except("/a", "/missing/", "/more"),
		},
		"the neighbour of what is excepted": {
			want: list{folder("/ab")}, rules: except("/a"),
			differ: []string{`"/ab": expected a folder, mode 0755, owner 0:0, seen nothing`},
		},
		"a group that is told by other names": {
			want: list{file("/f"), file("/g", linkTo("/f")), file("/h", linkTo("/f"))},
			seen: list{file("/f", linkTo("/g")), file("/g"), file("/h", linkTo("/g"))},
		},
		"a group that fell apart": {
			want:   list{file("/e"), file("/f"), file("/g", linkTo("/f")), file("/h", linkTo("/f"))},
			seen:   list{file("/e"), file("/f"), file("/g"), file("/h", linkTo("/g"))},
			differ: []string{`"/f": expected one file with "/g", "/h", seen a file of its own`},
		},
		"files that became one": {
			want:   list{file("/f"), file("/g"), file("/h")},
			seen:   list{file("/f"), file("/g"), file("/h", linkTo("/g"))},
			differ: []string{`"/g": expected a file of its own, seen one file with "/h"`},
		},
		"a group that one is missing of": {
			want:   list{file("/f"), file("/g", linkTo("/f"))},
			seen:   list{file("/g")},
			differ: []string{`"/f": expected a file, mode 0644, owner 0:0, 1 bytes, SHA-256 aa, seen nothing`},
		},
		"a group with a further name elsewhere": {
			want: list{file("/f"), file("/g", linkTo("/f"))},
			seen: list{file("/a"), file("/f", linkTo("/a")), file("/g", linkTo("/a"))},
		},
		"a large group": {
			want: list{file("/a"), file("/b", linkTo("/a")), file("/c", linkTo("/a")), file("/d", linkTo("/a")), file("/e", linkTo("/a")),
				file("/f", linkTo("/a"))},
			seen: list{file("/a"), file("/b"), file("/c", linkTo("/b")), file("/d", linkTo("/b")), file("/e", linkTo("/b")),
				file("/f", linkTo("/b"))},
			differ: []string{`"/a": expected one file with "/b", "/c", "/d" and 2 more, seen a file of its own`},
		},
		"a change of mode and of the group": {
			want: list{file("/f"), file("/g", linkTo("/f"))},
			seen: list{file("/f"), file("/g", func(e *tree.Entry) { e.Mode = 0o600 })},
			differ: []string{
				`"/f": expected one file with "/g", seen a file of its own`,
				`"/g": expected mode 0644, seen mode 0600`,
			},
		},
	} {
		var got []string
		for _, d := range tree.Compare(test.want, test.seen, test.rules) {
			got = append(got, d.String())
		}
		if !slices.Equal(got, test.differ) {
			t.Errorf("%s: expected\n%q\ngot\n%q", name, test.differ, got)
		}
	}
}
