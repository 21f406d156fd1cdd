// Package tree lists what a folder tree holds and compares two such lists: what an image has, and what a guest was given of it.
//
// The list has what an image carries: type, mode, owner, content, link target and which names are one file. It has neither times nor the
// sizes of folders, which a file system chooses, nor the numbers of devices, nor extended attributes. The root itself is not
// listed.
//
// The guest's probe links this package, so it is small. Lists of images are made by package imagetree.
package tree

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxEntries is how many entries a list may have. It bounds memory, and the line that the probe prints of a list.
const MaxEntries = 40_000

// Type is what an entry is.
type Type string

// The types of entries.
const (
	File        Type = "file"
	Folder      Type = "folder"
	Symlink     Type = "symlink"
	CharDevice  Type = "char-device"
	BlockDevice Type = "block-device"
	FIFO        Type = "fifo"
	Socket      Type = "socket"
	// Mount is a place where another file system is mounted. What is there, or beneath, is not looked at.
	Mount Type = "mount"
)

// Types lists every type.
var Types = []Type{File, Folder, Symlink, CharDevice, BlockDevice, FIFO, Socket, Mount}

// Entry is one name in a tree.
type Entry struct {
	Path   string `json:"path"` // from the root on, with a slash at its start, and as Text has it
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode"` // the permission bits, with 04000 for setuid, 02000 for setgid and 01000 for sticky; 0777 of a symlink
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Size   int64  `json:"size"`   // of a file, in bytes
	SHA256 string `json:"sha256"` // of a file's content, in hex
	Target string `json:"target"` // of a symlink, as Text has it
	LinkTo string `json:"linkTo"` // of a further name of a file: the path of its first name in the list; else empty
}

// Text gives the name of a file, which may be any bytes, as a text that JSON carries: a byte that is not UTF-8 becomes \xHH, and a
// backslash two of them. Different names give different texts.
func Text(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, `\`) {
		return name
	}
	var b []byte
	for len(name) > 0 {
		r, n := utf8.DecodeRuneInString(name)
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, `\x`...)
			b = strconv.AppendUint(b, uint64(name[0]), 16) // two digits: such a byte is 0x80 or more
		case r == '\\':
			b = append(b, `\\`...)
		default:
			b = append(b, name[:n]...)
		}
		name = name[n:]
	}
	return string(b)
}
