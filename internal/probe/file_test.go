package probe_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dagger/parity/internal/probe"
	"dagger/parity/internal/tree"
)

func file(t *testing.T, path string) probe.File {
	t.Helper()
	stdout, _ := run(t, 0, probe.FileArgs(path)...)
	f, err := probe.ParseFile([]byte(stdout))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	const content = "what the file has"
	socket, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	err = errors.Join(os.WriteFile(in("a \"name\""), []byte(content), 0o600), os.Chown(in("a \"name\""), 12, 34),
		os.Chmod(in("a \"name\""), 0o751|os.ModeSetuid|os.ModeSetgid|os.ModeSticky), os.WriteFile(in("empty"), nil, 0o644),
		os.Mkdir(in("folder"), 0o700), os.Symlink("a \"name\"", in("link")), os.Symlink("nowhere", in("dangling")), syscall.Mkfifo(in("fifo"), 0o640),
		os.Chmod(in("folder"), 0o700|os.ModeSticky), os.Chmod(in("socket"), 0o600), os.Chmod(in("fifo"), 0o640))
	if err != nil {
		t.Fatal(err)
	}
	sum := func(s string) string {
		digest := sha256.Sum256([]byte(s))
		return hex.EncodeToString(digest[:])
	}
	for name, want := range map[string]probe.File{
		"a \"name\"": {Type: tree.File, Mode: 0o7751, UID: 12, GID: 34, Size: int64(len(content)), SHA256: sum(content)},
		"empty":      {Type: tree.File, Mode: 0o644, SHA256: sum("")},
		"folder":     {Type: tree.Folder, Mode: 0o1700},
		"link":       {Type: tree.Symlink, Mode: 0o777},
		"dangling":   {Type: tree.Symlink, Mode: 0o777},
		"fifo":       {Type: tree.FIFO, Mode: 0o640},
		"socket":     {Type: tree.Socket, Mode: 0o600},
	} {
		var st syscall.Stat_t
		if err := syscall.Lstat(in(name), &st); err != nil {
			t.Fatal(err)
		}
		want.Path, want.Device, want.Inode = in(name), st.Dev, st.Ino
		got := file(t, in(name))
		want.Born = got.Born
		want.Modified = time.Unix(st.Mtim.Unix()).UTC().Format("2006-01-02T15:04:05.000000000Z07:00")
		if got != want {
			t.Errorf("expected %+v\ngot %+v", want, got)
		}
	}
	if got, want := file(t, in("none/at all")), (probe.File{Path: in("none/at all"), Type: probe.Missing}); got != want {
		t.Errorf("expected %+v, got %+v", want, got)
	}
	if got := file(t, "/dev/null"); got.Type != tree.CharDevice {
		t.Errorf("expected a device, got %+v", got)
	}
}

// A file that takes another's place is born later, and a file that is renamed or written to is born when it was.
func TestFileIsBornOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var st unix.Statx_t
	err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &st))
	if err != nil {
		t.Fatal(err)
	}
	first := file(t, path)
	if st.Mask&unix.STATX_BTIME == 0 {
		if first.Born != "" {
			t.Errorf("the file system keeps no birth times, got %q", first.Born)
		}
		return
	}
	if born, err := time.Parse(time.RFC3339Nano, first.Born); err != nil || !born.Equal(time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))) {
		t.Errorf("expected the birth time %d.%09d, got %q, %v", st.Btime.Sec, st.Btime.Nsec, first.Born, err)
	}
	if err := errors.Join(os.WriteFile(path, []byte("new"), 0o600), os.Rename(path, path+"2")); err != nil {
		t.Fatal(err)
	}
	if again := file(t, path+"2"); again.Born != first.Born || again.Inode != first.Inode || again.SHA256 == first.SHA256 {
		t.Errorf("expected the file that was born at %s with another content, got %+v", first.Born, again)
	}
}

func TestFileThatCannotBeLookedAtIsNotMissing(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "file", "below")
	if err := os.WriteFile(filepath.Dir(below), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, why := range map[string]string{
		below:               "not a directory",
		"/proc/self/status": "is being written, or is no file of a disk", // it says that it has no bytes, and has some
	} {
		stdout, stderr := run(t, 1, probe.FileArgs(path)...)
		if stdout != "" || !strings.Contains(stderr, path) || !strings.Contains(stderr, why) {
			t.Errorf("expected an error with %q, got %q and %q", why, stdout, stderr)
		}
	}
}

func TestParseFileIsStrict(t *testing.T) {
	good := probe.File{Path: "/x", Type: tree.File, Mode: 0o755, SHA256: strings.Repeat("a", 64), Device: 1, Inode: 1<<64 - 1,
		Modified: "2026-01-02T03:04:05.000000006Z", Born: "2026-01-02T03:04:05.000000006Z"}
	if got, err := probe.ParseFile(good.Line()); err != nil || got != good {
		t.Fatalf("expected %+v, got %+v, %v", good, got, err)
	}
	for name, change := range map[string]func(*probe.File){
		"a relative path":         func(f *probe.File) { f.Path = "x" },
		"an unknown type":         func(f *probe.File) { f.Type = "regular" },
		"a mount":                 func(f *probe.File) { f.Type = tree.Mount },
		"a mode with its type":    func(f *probe.File) { f.Mode |= syscall.S_IFREG },
		"no checksum":             func(f *probe.File) { f.SHA256 = "" },
		"a checksum of no digits": func(f *probe.File) { f.SHA256 = strings.Repeat("x", 64) },
		"a folder's checksum":     func(f *probe.File) { f.Type = tree.Folder },
		"no inode":                func(f *probe.File) { f.Inode = 0 },
		"a time of seconds":       func(f *probe.File) { f.Born = "2026-01-02T03:04:05Z" },
		"no time of change":       func(f *probe.File) { f.Modified = "" },
		"a missing file of bytes": func(f *probe.File) { f.Type = probe.Missing },
	} {
		bad := good
		change(&bad)
		if _, err := probe.ParseFile(bad.Line()); err == nil {
			t.Errorf("%s: expected an error", name)
		}
	}
	for _, line := range []string{"", "{}\n", string(good.Line()) + "{}\n", string(probe.BootID{BootID: "x"}.Line()), "sh: parity-probe: not found\n"} {
		if _, err := probe.ParseFile([]byte(line)); err == nil {
			t.Errorf("expected an error for %q", line)
		}
	}
}
