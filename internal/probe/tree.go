package probe

import "dagger/parity/internal/tree"

// Tree is what `parity-probe tree` reports of the root file system.
type Tree struct {
	Entries []tree.Entry `json:"entries"`
}

// Line is the line that the program prints, with its line feed.
func (t Tree) Line() []byte {
	var o object
	o.key("entries")
	o = append(o, '[')
	for i, e := range t.Entries {
		if i > 0 {
			o = append(o, ',')
		}
		o = append(o, treeEntry(e)...)
	}
	o = append(o, ']')
	return o.line()
}

func treeEntry(e tree.Entry) []byte {
	var o object
	o.text("path", e.Path)
	o.text("type", string(e.Type))
	o.number("mode", int64(e.Mode))
	o.number("uid", int64(e.UID))
	o.number("gid", int64(e.GID))
	o.number("size", e.Size)
	o.text("sha256", e.SHA256)
	o.text("target", e.Target)
	o.text("linkTo", e.LinkTo)
	return append(o, '}')
}
