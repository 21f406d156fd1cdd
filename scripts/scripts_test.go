// Package scripts_test runs the scripts as a user does, on a machine where something is broken.
package scripts_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is what a script finds: a folder with fakes, which is first in PATH, and an environment.
type machine struct {
	fakes string
	env   []string
}

// newMachine gives a machine whose package tools are fakes, so that nothing is installed or downloaded: every Debian package is there,
// and npm and apt-get download archives of the right shape with the wrong content.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{fakes: t.TempDir()}
	m.env = []string{"PATH=" + m.fakes + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "PARITY_CACHE=" + filepath.Join(t.TempDir(), "cache")}
	m.fake(t, "dpkg-query", "echo installed")
	m.fake(t, "apt-cache", "echo '  Depends: linux-image-6.1.0-1-cloud-amd64'")
	m.fake(t, "apt-get", `[ "$1" != download ] || touch kernel.deb`)
	m.fake(t, "dpkg-deb", `mkdir -p "$3/boot" "$3/usr/sbin" && touch "$3/boot/vmlinuz-6.1.0-1-cloud-amd64" &&
		: >"$3/usr/sbin/dockerd" && chmod 755 "$3/usr/sbin/dockerd"`)
	m.fake(t, "ldd", "")
	m.fake(t, "chroot", "")
	m.fake(t, "npm", "touch microsandbox.tgz")
	return m
}

// fake puts a shell script in the place of a program.
func (m *machine) fake(t *testing.T, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.fakes, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// set puts entries KEY=VALUE into the environment; a KEY alone goes out of it.
func (m *machine) set(entries ...string) {
	for _, entry := range entries {
		key, _, given := strings.Cut(entry, "=")
		var kept []string
		for _, e := range m.env {
			if !strings.HasPrefix(e, key+"=") {
				kept = append(kept, e)
			}
		}
		if m.env = kept; given {
			m.env = append(m.env, entry)
		}
	}
}

// run runs a script and gives its exit code and what it wrote to stderr.
func (m *machine) run(t *testing.T, script string, args ...string) (int, string) {
	t.Helper()
	c := exec.Command("./"+script, args...)
	c.Env = m.env
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), stderr.String()
}

// microSandbox is a folder with a bin/msb, so that setup installs none.
func microSandbox(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "msb"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestABadFlagIsUsageAndNamed(t *testing.T) {
	for _, test := range []struct{ script, args, want string }{
		{"setup", "--kvm=", `--kvm "": the value is empty`},
		{"setup", "--microsandbox=", `--microsandbox "": the value is empty`},
		{"setup", "--microsandbox=/x --microsandbox-sha256=", `--microsandbox-sha256 "": the value is empty`},
		{"setup", "--microsandbox-sha256=00", "--microsandbox-sha256 goes with --microsandbox"},
		{"setup", "--kvm=yes", "--kvm yes: expected auto, native or emulated"},
		{"run", "egress --microsandbox=", `--microsandbox "": the value is empty`},
		{"run", "egress --kvm=", `--kvm "": the value is empty`},
		{"run", "egress --microsandbox=/x --microsandbox-sha256=", `--microsandbox-sha256 "": the value is empty`},
	} {
		m := newMachine(t)
		args := strings.Fields(test.args)
		if test.script == "setup" { // it takes a flag and its value as two arguments
			args = strings.Split(strings.ReplaceAll(test.args, "=", " "), " ")
		}
		code, stderr := m.run(t, test.script, args...)
		if code != 2 || !strings.Contains(stderr, "setup: error: "+test.want) {
			t.Errorf("scripts/%s %q: code %d, %q; want code 2 and %q", test.script, args, code, stderr, test.want)
		}
	}
}

// Whatever is broken on the machine, setup says so in a line of its own and exits with 3: 1 would be the subject's failure.
func TestSetupOnABrokenMachineExitsWith3(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	fails := func(names ...string) func(*testing.T, *machine) {
		return func(t *testing.T, m *machine) {
			for _, name := range names {
				m.fake(t, name, "echo "+name+" says no >&2; exit 1")
			}
		}
	}
	// goodHash lets a download through as if it were the pinned one.
	goodHash := func(t *testing.T, m *machine) {
		release, err := os.ReadFile("../internal/msb/release.env")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(release), "MICROSANDBOX_INTEGRITY=")
		integrity, _, _ := strings.Cut(after, "\n")
		m.fake(t, "openssl", `[ "$1" != base64 ] || printf '%s' '`+strings.TrimPrefix(strings.Trim(integrity, `"'`), "sha512-")+"'")
		m.fake(t, "tar", `mkdir -p "$4/package/bin" && printf '#!/bin/sh\n' >"$4/package/bin/msb"`)
	}
	both := func(steps ...func(*testing.T, *machine)) func(*testing.T, *machine) {
		return func(t *testing.T, m *machine) {
			for _, step := range steps {
				step(t, m)
			}
		}
	}
	set := func(entries ...string) func(*testing.T, *machine) {
		return func(_ *testing.T, m *machine) { m.set(entries...) }
	}
	for _, test := range []struct {
		name   string
		broken func(*testing.T, *machine)
		want   []string
	}{
		{"no home and no cache folder", set("HOME", "PARITY_CACHE", "XDG_CACHE_HOME"), []string{"HOME is not set", "PARITY_CACHE"}},
		{"a cache that cannot be made", set("PARITY_CACHE=" + file + "/cache"), []string{"mkdir failed", file + "/cache", "PARITY_CACHE"}},
		{"a cache that cannot be written", set("PARITY_CACHE=/proc/self"), []string{"setup.lock", "/proc/self", "PARITY_CACHE"}},
		{"a file system without locks", fails("flock"), []string{"setup.lock", "lock"}},
		{"no way to know the machine", fails("uname"), []string{"x86_64"}},
		{"an apt that knows nothing", fails("apt-cache"), []string{"linux-image-cloud-amd64", "apt sources"}},
		{"an apt that installs nothing", fails("dpkg-query", "apt-get"), []string{"apt-get"}},
		{"an apt that downloads nothing", fails("apt-get"), []string{"apt-get"}},
		{"no temporary folder", fails("mktemp"), []string{"temporary folder", "PARITY_CACHE"}},
		{"a package that does not unpack", fails("dpkg-deb"), []string{"dpkg-deb", "free space"}},
		{"modules that do not unpack", fails("find"), []string{"find", "free space"}},
		{"a kernel that cannot be moved", fails("mv"), []string{"moving the kernel", "free space"}},
		{"no download of MicroSandbox", fails("npm"), []string{"npm pack", "network"}},
		{"no hash of the download", fails("openssl"), []string{"openssl"}},
		{"another download", func(*testing.T, *machine) {}, []string{"expected sha512-", "seen     sha512-"}},
		{"a download that does not unpack", both(goodHash, fails("tar")), []string{"tar", "free space"}},
		{"a hash that cannot be taken", both(goodHash, fails("sha256sum")), []string{"sha256sum", "PARITY_CACHE"}},
		{"another msb in the download", goodHash, []string{"has changed since it was installed"}},
		{"files that cannot be removed", fails("rm"), []string{"removing", "PARITY_CACHE"}},
		{"modes that cannot be changed", fails("chmod"), []string{"temporary folder"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t)
			test.broken(t, m)
			code, stderr := m.run(t, "setup")
			said := stderr[max(0, strings.Index(stderr, "setup: error: ")):]
			if code != 3 || !strings.HasPrefix(said, "setup: error: ") {
				t.Errorf("code %d, %q", code, stderr)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("the error lacks %q: %q", want, said)
				}
			}
			if n := strings.Count(stderr, "setup: error: "); n != 1 {
				t.Errorf("it says %d errors: %q", n, stderr)
			}
		})
	}
}

// What is not checked by itself has a net below it, which names the line.
func TestAnUnforeseenFailureOfSetupIsNamed(t *testing.T) {
	m, project := newMachine(t), t.TempDir()
	script, err := os.ReadFile("setup")
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{"scripts/setup": string(script), "internal/msb/release.env": "no-such-command\n", "fixtures/remote/root.list": ""} {
		path = filepath.Join(project, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(filepath.Join(project, "scripts", "setup"))
	c.Env = m.env
	out, _ := c.CombinedOutput()
	if code := c.ProcessState.ExitCode(); code != 3 || !strings.Contains(string(out), "setup: error: line 1: `no-such-command` failed with code 127") {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestABuildThatFailsExitsWith3(t *testing.T) {
	args := []string{"egress", "--kvm", "native", "--microsandbox", microSandbox(t)}
	for name, broken := range map[string]struct {
		fake, want string
	}{
		"go fails":  {"echo no module proxy >&2; exit 1", "build: error: go build failed with code 1"},
		"a bad go":  {"exit 127", "build: error: go build failed with code 127"},
		"killed go": {"kill -KILL $$", "build: error: go build failed with code 137"},
	} {
		m := newMachine(t)
		m.fake(t, "go", broken.fake)
		for _, command := range [][]string{{"build"}, append([]string{"run"}, args...)} {
			if code, stderr := m.run(t, command[0], command[1:]...); code != 3 || !strings.Contains(stderr, broken.want) {
				t.Errorf("%s, scripts/%s: code %d, %q", name, command[0], code, stderr)
			}
		}
	}
}

func TestWithoutGoTheBuildSaysWhatToInstall(t *testing.T) {
	m := newMachine(t)
	for _, name := range []string{"bash", "env", "dirname", "sed"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(m.fakes, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.set("PATH=" + m.fakes)
	if code, stderr := m.run(t, "build"); code != 3 || !strings.Contains(stderr, "build: error: go was not found: install Go 1.") {
		t.Errorf("code %d, %q", code, stderr)
	}
}

// Go is for building: a machine whose programs are built elsewhere needs none.
func TestSetupAsksForGoUnlessNothingIsBuilt(t *testing.T) {
	m := newMachine(t)
	path := []string{m.fakes}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "go")); err != nil {
			path = append(path, dir)
		}
	}
	m.set("PATH=" + strings.Join(path, ":"))
	dir := microSandbox(t)
	if code, stderr := m.run(t, "setup", "--microsandbox", dir); code != 3 || !strings.Contains(stderr, "go was not found") {
		t.Errorf("code %d, %q", code, stderr)
	}
	if code, stderr := m.run(t, "setup", "--no-build", "--microsandbox", dir); code != 0 {
		t.Errorf("--no-build: code %d, %q", code, stderr)
	}
}

// What is there, and what setup says of it, stays the same where nothing is broken.
func TestSetupIsContentWhereEverythingIsThere(t *testing.T) {
	m := newMachine(t)
	dir := microSandbox(t)
	for n := range 2 {
		if code, stderr := m.run(t, "setup", "--microsandbox", dir); code != 0 || !strings.HasSuffix(stderr, "setup: everything is there\n") {
			t.Errorf("run %d: code %d, %q", n+1, code, stderr)
		}
	}
	for _, entry := range m.env {
		if cache, ok := strings.CutPrefix(entry, "PARITY_CACHE="); ok {
			left, err := filepath.Glob(filepath.Join(cache, "*"))
			if want := fmt.Sprintf("[%[1]s/docker %[1]s/kernel %[1]s/remote %[1]s/setup.lock]", cache); err != nil || fmt.Sprint(left) != want {
				t.Errorf("the cache holds %v, %v; want %s", left, err, want)
			}
		}
	}
}

// Only remote-agent needs the remote machine.
func TestSetupGoesOnWithoutTheRemoteMachine(t *testing.T) {
	for name, broken := range map[string]struct{ program, fake, want string }{
		"no such packages":     {"apt-get", `case "$*" in *openssh-server*) exit 100 ;; download*) touch kernel.deb ;; esac`, "apt-get download base-files"},
		"a library is missing": {"chroot", `echo 'libx.so.1: cannot open shared object file'; exit 127`, "usr/sbin/sshd of the extracted packages lacks"},
	} {
		m := newMachine(t)
		dir := microSandbox(t)
		m.fake(t, "dpkg-deb", `mkdir -p "$3/boot" && touch "$3/boot/vmlinuz-6.1.0-1-cloud-amd64" && for p in usr/sbin/dockerd usr/sbin/docker-proxy `+
			`usr/sbin/runc usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/bin/docker; do
			mkdir -p "$3/${p%/*}"; echo x >"$3/$p"; chmod 755 "$3/$p"; done`)
		m.fake(t, broken.program, broken.fake)
		code, stderr := m.run(t, "setup", "--kvm", "native", "--microsandbox", dir)
		if code != 0 || !strings.Contains(stderr, broken.want) || !strings.HasSuffix(stderr, "setup: everything is there but the remote machine: remote-agent does not run, all else does\n") {
			t.Errorf("%s: code %d, %q", name, code, stderr)
		}
	}
}

// Only image-parity and remote-agent need Docker: what else there is can be used without it.
func TestSetupGoesOnWithoutDocker(t *testing.T) {
	for name, broken := range map[string]struct{ program, fake, want string }{
		"no lists of packages": {"apt-get", `case $1 in update) echo no network >&2; exit 1 ;; esac`, "apt-get update failed"},
		"no such packages":     {"apt-get", `case "$*" in *docker.io*) exit 100 ;; download*) touch kernel.deb ;; esac`, "apt-get download docker.io containerd runc docker-cli failed"},
		"a library is missing": {"ldd", `echo 'libx.so.1 => not found'`, "usr/sbin/dockerd of docker.io containerd runc docker-cli needs the libraries above"},
	} {
		m := newMachine(t)
		dir := microSandbox(t)
		m.fake(t, broken.program, broken.fake)
		code, stderr := m.run(t, "setup", "--kvm", "native", "--microsandbox", dir)
		if code != 0 || !strings.Contains(stderr, broken.want) || !strings.HasSuffix(stderr, "setup: everything is there but the Docker Engine: image-parity and remote-agent do not run, all else does\n") {
			t.Errorf("%s: code %d, %q", name, code, stderr)
		}
	}
}

func TestSoakRefusesBadArguments(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "0 arguments"},
		{[]string{"0"}, "no lab was asked for"},
		{[]string{"many"}, `"many"`},
		{[]string{"3", "-1"}, `"-1"`},
		{[]string{"1", "2", "3"}, "3 arguments"},
	} {
		code, said := newMachine(t).run(t, "soak", test.args...)
		if code != 2 || !strings.Contains(said, test.want) || !strings.Contains(said, "scripts/soak N [BUSY]") {
			t.Errorf("%q: %d, %q", test.args, code, said)
		}
	}
}

// tested is what scripts/test ran with an argument: a line for each command. Its tools and programs are fakes, which note how they were
// called; parity is that of parity all, and exits with the codes given, one after another.
func tested(t *testing.T, all []int, args ...string) (log string, code int, stderr string) {
	t.Helper()
	m := newMachine(t)
	root, notes := t.TempDir(), filepath.Join(t.TempDir(), "notes")
	write := func(name, text string) {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	note := func(name string) string { return "echo \"" + name + " $*\" >>" + notes }
	script, err := os.ReadFile("test")
	if err != nil {
		t.Fatal(err)
	}
	write("scripts/test", string(script))
	for _, name := range []string{"setup", "build"} {
		write("scripts/"+name, "#!/bin/sh\n"+note(name))
	}
	write("one/one_test.go", "func TestMicroVM(")
	exits := ""
	for i, code := range all {
		exits += fmt.Sprintf("[ $(grep -c 'parity all' %s) != %d ] || exit %d\n", notes, i+1, code)
	}
	write("bin/parity", "#!/bin/sh\n"+note("parity")+"\n[ $1 = all ] || exit 0\n"+exits)
	m.fake(t, "gofmt", note("gofmt"))
	// go test -c makes the program that it is asked for.
	m.fake(t, "go", note("go")+`
while [ $# -gt 0 ]; do [ "$1" != -o ] || : >"$2"; shift; done`)
	c := exec.Command(filepath.Join(root, "scripts/test"), args...)
	var errs bytes.Buffer
	c.Env, c.Stderr = m.env, &errs
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	ran, err := os.ReadFile(notes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(ran), c.ProcessState.ExitCode(), errs.String()
}

// Each part runs its own tests and no others, and together they run all.
func TestEachPartOfTheTestsRunsItsOwn(t *testing.T) {
	before := []string{"setup", "build"}
	own := map[string][]string{
		"unit":     {"gofmt -l", "go vet -tags microvm", "go tool staticcheck -tags microvm", "go test -race -count=1"},
		"selftest": {"parity selftest --report"},
		"real":     {"go test -c -tags microvm", "parity lab", "parity selftest --real", "parity all"},
	}
	for _, args := range [][]string{{"unit"}, {"selftest"}, {"real"}, {"all"}, nil} {
		log, code, stderr := tested(t, nil, args...)
		if code != 0 {
			t.Errorf("%q: code %d, %q", args, code, stderr)
		}
		for _, want := range before {
			if !strings.Contains(log, want) {
				t.Errorf("%q: %q was not run:\n%s", args, want, log)
			}
		}
		for part, wants := range own {
			for _, want := range wants {
				whole := len(args) == 0 || args[0] == "all"
				if ran := strings.Contains(log, want); ran != (whole || args[0] == part) {
					t.Errorf("%q: %q was run: %t:\n%s", args, want, ran, log)
				}
			}
		}
	}
}

// What is inconclusive is run again, once; a broken promise is one.
func TestWhatIsInconclusiveIsRunAgainOnce(t *testing.T) {
	for _, test := range []struct {
		exits      []int
		runs, code int
	}{{[]int{0}, 1, 0}, {[]int{1}, 1, 1}, {[]int{3, 0}, 2, 0}, {[]int{3, 1}, 2, 1}, {[]int{3, 3}, 2, 3}} {
		log, code, _ := tested(t, test.exits, "real")
		if runs := strings.Count(log, "parity all"); runs != test.runs || code != test.code {
			t.Errorf("exit codes %v: %d runs and the exit code %d, want %d and %d", test.exits, runs, code, test.runs, test.code)
		}
	}
}

func TestAPartThatDoesNotExistIsUsageAndNamed(t *testing.T) {
	for args, want := range map[string]string{"units": "unknown argument units: expected unit, selftest, real or all", "unit real": "unknown argument real"} {
		log, code, stderr := tested(t, nil, strings.Fields(args)...)
		if code != 2 || log != "" || !strings.Contains(stderr, "test: error: "+want) {
			t.Errorf("%q: code %d, %q, having run %q; want code 2 and %q", args, code, stderr, log, want)
		}
	}
}
