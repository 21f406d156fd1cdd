// Package imagetree lists the files of an OCI image as a runtime unpacks them: its layers one over the other, by the layer rules of the
// OCI image specification. The list is one of package tree, to be compared with what a guest has.
//
// It does not use mutate.Extract of go-containerregistry, which reads the layers from the top and passes each path on as it comes. A
// hard link to a file that a higher layer replaces then becomes one to the new file; a folder that one layer made a file, and a
// higher one a folder again, gets back what it first had; a whiteout also hides what its own layer has; and links that lead out of the
// root are left out.
package imagetree

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"dagger/parity/internal/tree"
)

// maxPath is how long a path may be, in bytes: Linux takes no longer ones.
const maxPath = 4096

// The names by which a layer hides what the layers below it have.
const (
	whiteout = ".wh."         // before the name that is hidden
	opaque   = ".wh..wh..opq" // in a folder of which all is hidden
)

// List lists the image's files. Contents are read once, as a stream; what is kept is bounded by tree.MaxEntries. A folder that no layer
// has, but that something is in, is taken to have mode 0755 and to be root's. The error names the layer and the entry.
func List(img v1.Image) ([]tree.Entry, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, fmt.Errorf("list the image's files: %w", err)
	}
	f := flat{root: newFolder(), buf: make([]byte, 256<<10)}
	for i, layer := range layers {
		f.layer = i + 1
		if err := f.apply(layer); err != nil {
			return nil, fmt.Errorf("list the image's files: layer %d of %d: %w", f.layer, len(layers), err)
		}
	}
	l := lister{first: map[*tree.Entry]string{}}
	l.folder(f.root, "/")
	return l.entries, nil
}

// flat is the image as far as its layers were applied.
type flat struct {
	root  *node
	layer int // which one is applied now, from 1
	count int // nodes, without the root
	buf   []byte
}

// node is a name.
type node struct {
	entry    *tree.Entry      // without path and LinkTo; shared by the names of one file
	children map[string]*node // of a folder
	layer    int              // the last layer that has it, or something below it
}

func newFolder() *node {
	return &node{entry: &tree.Entry{Type: tree.Folder, Mode: 0o755}, children: map[string]*node{}}
}

func (n *node) isFolder() bool { return n.entry.Type == tree.Folder }

// apply puts a layer over those before it.
func (f *flat) apply(layer v1.Layer) error {
	content, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer content.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := f.applyEntry(h, r); err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	_, err = io.Copy(io.Discard, content) // a layer whose digest is wrong says so at its end
	return err
}

func (f *flat) applyEntry(h *tar.Header, content io.Reader) error {
	name := path.Clean("/" + h.Name)
	dir, base := path.Split(name)
	hidden, isWhiteout := strings.CutPrefix(base, whiteout)
	switch {
	case h.Typeflag == tar.TypeXGlobalHeader || name == "/":
		return nil
	case len(name) > maxPath || len(h.Linkname) > maxPath:
		return fmt.Errorf("its name or its target has more than %d bytes", maxPath)
	case base == opaque:
		if n := f.find(dir); n != nil {
			f.hideBelow(n)
		}
		return nil
	case isWhiteout:
		if n := f.find(dir); n != nil {
			f.hide(n, hidden)
		}
		return nil
	}
	parent, err := f.makeFolder(dir)
	if err != nil {
		return err
	}
	return f.put(parent, base, h, content)
}

// find gives the node of a path, or nil.
func (f *flat) find(name string) *node {
	n := f.root
	for _, part := range parts(name) {
		if n = n.children[part]; n == nil {
			return nil
		}
	}
	return n
}

func parts(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

// makeFolder gives the folder of something that this layer has.
func (f *flat) makeFolder(name string) (*node, error) {
	n := f.root
	for _, part := range parts(name) {
		child := n.children[part]
		if child == nil {
			child = newFolder()
			if err := f.add(n, part, child); err != nil {
				return nil, err
			}
		}
		if !child.isFolder() {
			// Some runtimes follow a link here and some replace it.
			return nil, fmt.Errorf("expected a folder at %q of %q, where the image has a %s", part, name, child.entry.Type)
		}
		child.layer = f.layer
		n = child
	}
	return n, nil
}

func (f *flat) add(parent *node, name string, n *node) error {
	if f.count++; f.count > tree.MaxEntries {
		return fmt.Errorf("the image has more than %d entries, the most that a list may have", tree.MaxEntries)
	}
	parent.children[name] = n
	return nil
}

func (f *flat) remove(parent *node, name string) {
	f.count -= parent.children[name].size()
	delete(parent.children, name)
}

// size is how many nodes there are from this one on.
func (n *node) size() int {
	size := 1
	for _, child := range n.children {
		size += child.size()
	}
	return size
}

// hide removes what lower layers have of a name: what this layer has is not hidden, wherever in it the whiteout stands.
func (f *flat) hide(parent *node, name string) {
	switch n := parent.children[name]; {
	case n == nil:
	case n.layer < f.layer:
		f.remove(parent, name)
	case n.isFolder():
		f.hideBelow(n)
	}
}

func (f *flat) hideBelow(n *node) {
	for name := range n.children { // what hide removes is not visited again
		f.hide(n, name)
	}
}

// put makes an entry of the layer.
func (f *flat) put(parent *node, name string, h *tar.Header, content io.Reader) error {
	made := &node{layer: f.layer}
	if h.Typeflag == tar.TypeLink {
		target := f.find(path.Clean("/" + h.Linkname))
		if target == nil || target.isFolder() {
			return fmt.Errorf("it is a hard link to %q: expected a file there", h.Linkname)
		}
		made.entry = target.entry
	} else {
		e, err := f.entry(h, content)
		if err != nil {
			return err
		}
		made.entry = e
	}
	if made.isFolder() {
		made.children = map[string]*node{}
	}
	if old := parent.children[name]; old != nil {
		if old.isFolder() && made.isFolder() {
			old.entry, old.layer = made.entry, f.layer
			return nil
		}
		f.remove(parent, name)
	}
	return f.add(parent, name, made)
}

var types = map[byte]tree.Type{
	tar.TypeReg: tree.File, tar.TypeGNUSparse: tree.File, tar.TypeDir: tree.Folder, tar.TypeSymlink: tree.Symlink,
	tar.TypeChar: tree.CharDevice, tar.TypeBlock: tree.BlockDevice, tar.TypeFifo: tree.FIFO,
}

func (f *flat) entry(h *tar.Header, content io.Reader) (*tree.Entry, error) {
	e := tree.Entry{Type: types[h.Typeflag], Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid}
	switch e.Type {
	case "":
		return nil, fmt.Errorf("its type %q is not known", h.Typeflag)
	case tree.Symlink:
		e.Mode, e.Target = 0o777, tree.Text(h.Linkname)
	case tree.File:
		sum := sha256.New()
		var err error
		if e.Size, err = io.CopyBuffer(sum, content, f.buf); err != nil {
			return nil, err
		}
		e.SHA256 = hex.EncodeToString(sum.Sum(nil))
	}
	return &e, nil
}

// lister makes the list, in the order of tree.OfFolder.
type lister struct {
	entries []tree.Entry
	first   map[*tree.Entry]string // the path of each file's first name
}

func (l *lister) folder(n *node, dir string) {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		child := n.children[name]
		e := *child.entry
		full := path.Join(dir, name)
		e.Path = tree.Text(full)
		if !child.isFolder() {
			if e.LinkTo = l.first[child.entry]; e.LinkTo == "" {
				l.first[child.entry] = e.Path
			}
		}
		l.entries = append(l.entries, e)
		l.folder(child, full)
	}
}
