package remoteagent

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The changed runtime has one other byte, and leaves its mark as the whole one does.
func TestTheChangedRuntimeDiffersInOneByteAndLeavesAMark(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "it's a mark")
	c := newTampered(mark)
	differ := 0
	for i := range c.whole.content {
		if c.whole.content[i] != c.changed.content[i] {
			differ++
		}
	}
	if len(c.whole.content) != len(c.changed.content) || differ != 1 {
		t.Errorf("%d bytes differ of %d and %d", differ, len(c.whole.content), len(c.changed.content))
	}
	for what, content := range map[string][]byte{"whole": c.whole.content, "changed": c.changed.content} {
		file := filepath.Join(t.TempDir(), "runtime")
		if err := os.WriteFile(file, content, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = exec.Command(file).Run() // it fails, as it is no runtime
		if err := os.Remove(mark); err != nil {
			t.Errorf("the %s one: %v", what, err)
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
