package probe_test

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"dagger/parity/internal/probe"
	"dagger/parity/internal/proc"
	"dagger/parity/internal/tree"
)

func TestProgramIsSmallAndStatic(t *testing.T) {
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	// The net package alone, or fmt with encoding/json, would add 0.5 MB; crypto/sha256 is 0.25 MB of it.
	if info.Size() > 2_200_000 {
		t.Errorf("expected at most 2.2 MB, got %d bytes: see what was imported", info.Size())
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("expected a static program, got one with an interpreter")
		}
	}
}

func TestVersion(t *testing.T) {
	stdout, _ := run(t, 0, probe.VersionArgs()...)
	got, err := probe.ParseVersion([]byte(stdout))
	if want := (probe.Version{Program: "parity-probe", Version: "v1.2.3", Arch: runtime.GOARCH}); err != nil || got != want {
		t.Errorf("expected %+v, got %+v, %v", want, got, err)
	}
}

func TestBootID(t *testing.T) {
	want, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	stdout, _ := run(t, 0, probe.BootIDArgs()...)
	got, err := probe.ParseBootID([]byte(stdout))
	if err != nil || got.BootID+"\n" != string(want) || got.Hostname != host || got.UptimeSeconds <= 0 {
		t.Errorf("expected boot id %q, host name %q and an uptime, got %+v, %v", want, host, got, err)
	}
}

func marker(t *testing.T, args []string) probe.Marker {
	t.Helper()
	stdout, _ := run(t, 0, args...)
	m, err := probe.ParseMarker([]byte(stdout))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMarkerOnAMount(t *testing.T) {
	dir := t.TempDir()
	mount := filepath.Join(dir, "a mount")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", mount, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(mount, 0) })
	if err := os.Symlink(mount, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	want := probe.Marker{Path: filepath.Join(mount, "new", "folders", "marker"), MountPoint: mount, FSType: "tmpfs"}
	if got := marker(t, probe.MarkerReadArgs(want.Path)); got != want {
		t.Errorf("before the write: expected %+v, got %+v", want, got)
	}
	for _, want.Value = range []string{"a longer value\nof \"two\" lines", "short"} {
		want.Exists = true
		if got := marker(t, probe.MarkerWriteArgs(want.Path, want.Value)); got != want {
			t.Errorf("write: expected %+v, got %+v", want, got)
		}
		if onDisk, err := os.ReadFile(want.Path); err != nil || string(onDisk) != want.Value {
			t.Errorf("expected %q in the file, got %q, %v", want.Value, onDisk, err)
		}
		want := want
		want.Path = filepath.Join(dir, "link", "new", "folders", "marker")
		if got := marker(t, probe.MarkerReadArgs(want.Path)); got != want {
			t.Errorf("read through a symbolic link: expected %+v, got %+v", want, got)
		}
	}
}

func TestMarkerOnTheRootFileSystem(t *testing.T) {
	result, err := proc.Run(t.Context(), proc.Cmd{Argv: []string{"findmnt", "--noheadings", "--output", "FSTYPE", "--mountpoint", "/"}})
	if err != nil {
		t.Fatal(err)
	}
	path := "/no-such-folder/marker"
	want := probe.Marker{Path: path, MountPoint: "/", FSType: strings.TrimSpace(string(result.Stdout)), RootDevice: true}
	if got := marker(t, probe.MarkerReadArgs(path)); got != want {
		t.Errorf("expected %+v, got %+v", want, got)
	}
}

// The program lists the root that it runs with: here one of its own, with names that are hard to print.
func TestTree(t *testing.T) {
	root := t.TempDir()
	in := func(name string) string { return filepath.Join(root, name) }
	content, err := os.ReadFile(program)
	err = errors.Join(err, os.WriteFile(in("probe"), content, 0o755), os.Mkdir(in("proc"), 0o755), syscall.Mount("proc", in("proc"), "proc", 0, ""),
		os.MkdirAll(in("etc/a \"quoted\"\nname \xff\\"), 0o755), os.WriteFile(in("etc/grüße-日本"), []byte("x"), 0o600),
		os.Link(in("etc/grüße-日本"), in("etc/z")), os.Symlink("/no\xfewhere", in("link")))
	t.Cleanup(func() { _ = syscall.Unmount(in("proc"), syscall.MNT_DETACH) })
	if err != nil {
		t.Fatal(err)
	}
	for _, below := range [][]string{nil, {"/etc"}, {"/link", "/proc/self", "/none"}} {
		result, err := proc.Run(t.Context(), proc.Cmd{Argv: append([]string{"chroot", root, "/probe"}, probe.TreeArgs(below...)...)})
		if err != nil {
			t.Fatal(err)
		}
		got, err := probe.ParseTree(result.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		want, err := tree.OfFolder(root, below...)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Entries, want) || len(want) == 0 {
			t.Errorf("below %q: expected %+v, got %+v", below, want, got)
		}
	}
}

// Whoever may not read all of the root cannot list it.
func TestTreeIsRefusedWhatItMayNotRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{dir, filepath.Dir(dir)} { // which are the test's own
		if err := os.Chmod(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "closed")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "probe")
	content, err := os.ReadFile(program)
	if err := errors.Join(err, os.WriteFile(own, content, 0o755)); err != nil {
		t.Fatal(err)
	}
	result, err := proc.Run(t.Context(), proc.Cmd{Argv: append([]string{"setpriv", "--reuid=1000", "--clear-groups", own}, probe.TreeArgs(dir)...)})
	if result.ExitCode != 1 || !strings.Contains(string(result.Stderr), file) || len(result.Stdout) > 0 {
		t.Errorf("expected an error that names %s, got %v and %q", file, err, result.Stdout)
	}
}

func TestWhatCannotBeReportedExitsWith1(t *testing.T) {
	for _, args := range [][]string{
		probe.MarkerReadArgs("/proc"),                    // a folder
		probe.MarkerWriteArgs("/proc/no/marker", "x"),    // no folder can be made there
		probe.MarkerReadArgs("/proc/self/status/beyond"), // below a file
	} {
		stdout, stderr := run(t, 1, args...)
		if stdout != "" || !strings.Contains(stderr, "/proc") || strings.Contains(stderr, "usage") {
			t.Errorf("%q: expected only an error with the path, got %q and %q", args, stdout, stderr)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	tests := map[string]string{ // arguments, and what the message must name
		"":                                     "",
		"frobnicate":                           "frobnicate",
		"--version now":                        "now",
		"boot-id now":                          "now",
		"marker read":                          "marker read",
		"marker read relative":                 "absolute",
		"marker write /x":                      "marker write",
		"tcp":                                  "--address",
		"tcp --nonce n":                        "--address",
		"tcp --address localhost:80 --nonce n": "localhost",
		"tcp --address 127.0.0.1 --nonce n":    "--address",
		"tcp --address 127.0.0.1:0 --nonce n":  "--address",
		"tcp --address [fe80::1%lo]:80 --nonce n":                "zone",
		"tcp --address 127.0.0.1:80":                             "--nonce",
		"tcp --address 127.0.0.1:80 --nonce":                     "--nonce",
		"tcp --address 127.0.0.1:80 --nonce a/b":                 "a/b",
		"tcp --address 127.0.0.1:80 --nonce n --timeout soon":    "soon",
		"tcp --address 127.0.0.1:80 --nonce n --timeout 0s":      "--timeout",
		"tcp --address 127.0.0.1:80 --nonce n --proxy 127.0.0.1": "--proxy",
		"tree /etc":         "/etc",
		"tree --below":      "--below",
		"tree --below etc":  "etc",
		"tree --above=/etc": "--above",
		"file":              "file",
		"file relative":     "absolute",
		"file --keep /x":    "--keep",
		"machines all":      "machines: expected a value",
		"machines --env A":  "KEY=VALUE",
		"machines --of A=1": "--of",
		"running":           "running",
		"running relative":  "absolute",
	}
	for args, name := range tests {
		stdout, stderr := run(t, 2, strings.Fields(args)...)
		message, usage, _ := strings.Cut(stderr, "\n")
		if stdout != "" || !strings.Contains(message, name) || !strings.HasPrefix(usage, "usage: parity-probe") {
			t.Errorf("%q: expected a message that names %q and the usage, got %q and %q", args, name, stdout, stderr)
		}
	}
}

func TestParseIsStrict(t *testing.T) {
	good := string(probe.TCP{Outcome: probe.OutcomeBody, Stage: probe.StageRead, Status: 200, Body: "b"}.Line())
	if _, err := probe.ParseTCP([]byte(good)); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("y", 200) + "beyond"
	for name, line := range map[string]string{
		"nothing":             "",
		"an empty object":     "{}\n",
		"two lines":           good + good,
		"text before":         "warning\n" + good,
		"text after":          good + "warning\n",
		"no line feed":        strings.TrimSuffix(good, "\n"),
		"cut off":             good[:len(good)/2],
		"unknown outcome":     strings.Replace(good, `"body"`, `"fine"`, 1),
		"unknown stage":       strings.Replace(good, `"read"`, `"done"`, 1),
		"unknown field":       strings.Replace(good, `{`, `{"more":1,`, 1),
		"field in capitals":   strings.Replace(good, `"stage"`, `"Stage"`, 1),
		"repeated field":      strings.Replace(good, `"status":200`, `"status":403,"status":200`, 1),
		"another type":        strings.Replace(good, `200`, `"200"`, 1),
		"long garbage":        long,
		"another command's":   string(probe.BootID{BootID: "x"}.Line()),
		"a shell's complaint": "sh: /tmp/parity-probe: not found\n",
	} {
		_, err := probe.ParseTCP([]byte(line))
		if err == nil {
			t.Errorf("%s: expected an error", name)
			continue
		}
		if strings.Contains(err.Error(), "beyond") || name == "long garbage" && !strings.Contains(err.Error(), long[:200]) {
			t.Errorf("%s: expected the first 200 bytes in the error, got %v", name, err)
		}
	}
	if _, err := probe.ParseVersion(probe.Version{Program: "another"}.Line()); err == nil {
		t.Error("expected an error for another program's version")
	}
	if _, err := probe.ParseBootID(probe.BootID{}.Line()); err == nil {
		t.Error("expected an error for no boot id")
	}
	if _, err := probe.ParseMarker(probe.Marker{Path: "/x"}.Line()); err == nil {
		t.Error("expected an error for no mount point")
	}
	for _, e := range []tree.Entry{{Path: "/x", Type: "other"}, {Path: "x", Type: tree.File}} {
		if _, err := probe.ParseTree(probe.Tree{Entries: []tree.Entry{e}}.Line()); err == nil {
			t.Errorf("expected an error for the entry %+v", e)
		}
	}
	for _, line := range []string{"{}\n", `{"entries":[{}]}` + "\n", `{"entries":null}` + "\n", `{"entries":[null]}` + "\n"} {
		if _, err := probe.ParseTree([]byte(line)); err == nil {
			t.Errorf("expected an error for %s", line)
		}
	}
}
