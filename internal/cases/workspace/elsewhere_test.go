package workspace

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// A process of msb's program with another store in its environment is found, by whatever path the own one is named.
func TestRunsElsewhere(t *testing.T) {
	program, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	home, other := t.TempDir(), t.TempDir()
	link := other + "/link"
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	own, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{home, link, other} {
		cmd := exec.Command(program, "600")
		cmd.Env = []string{"MSB_HOME=" + store}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		seen, err := runsElsewhere("/proc/"+strconv.Itoa(cmd.Process.Pid), own, home)
		if err != nil || (seen != "") != (store == other) {
			t.Errorf("with %s in its environment: %q, %v", store, seen, err)
		}
	}
}
