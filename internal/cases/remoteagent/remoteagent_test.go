package remoteagent

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The changed runtime has one other byte, and each of the two leaves a mark of its own: whoever
// runs the whole one, and when, says nothing of the changed one.
func TestTheChangedRuntimeDiffersInOneByteAndLeavesAMarkOfItsOwn(t *testing.T) {
	c := newTampered(filepath.Join(t.TempDir(), "it's a mark-"))
	differ := 0
	for i := range c.whole.content {
		if c.whole.content[i] != c.changed.content[i] {
			differ++
		}
	}
	if len(c.whole.content) != len(c.changed.content) || differ != 1 {
		t.Errorf("%d bytes differ of %d and %d", differ, len(c.whole.content), len(c.changed.content))
	}
	for _, one := range [][2]variant{{c.whole, c.changed}, {c.changed, c.whole}} {
		file := filepath.Join(t.TempDir(), "runtime")
		if err := os.WriteFile(file, one[0].content, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = exec.Command(file).Run() // it fails, as it is no runtime
		if _, err := os.Stat(one[1].mark); err == nil {
			t.Errorf("%s leaves the mark of %s", one[0].id, one[1].id)
		}
		if err := os.Remove(one[0].mark); err != nil {
			t.Errorf("%s: %v", one[0].id, err)
		}
	}
}

func TestOnlyWhatIsBelowTheHomeIsRemoved(t *testing.T) {
	for _, name := range []string{"/root/.cache/devsy/providers", "/root/a b'c"} {
		if err := checkBelow("/root", name); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][2]string{
		{"/root", "/root"}, {"/root", "/root/"}, {"/root", "/rooted/x"}, {"/root", "/root/../etc"}, {"/root", "/etc"}, {"/root", ""}, {"/root", "root/x"},
		{"/", "/etc"}, {"", "/etc"},
	} {
		if checkBelow(bad[0], bad[1]) == nil {
			t.Errorf("%q may be removed with the home %q", bad[1], bad[0])
		}
	}
}
