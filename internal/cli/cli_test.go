package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/lab/labtest"
)

// programs is the folder with the built programs.
var programs string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "parity-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs them too
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := labtest.Build(dir, "dagger/parity/cmd/..."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// result is how a run of the program ended.
type result struct {
	code           int
	stdout, stderr string
}

// parity runs the built program in an empty folder, with changes to its command.
func parity(t *testing.T, change func(*exec.Cmd), args ...string) result {
	t.Helper()
	c := exec.Command(filepath.Join(programs, "parity"), args...)
	c.Dir = t.TempDir()
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if change != nil {
		change(c)
	}
	err := c.Run()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func TestBadUsageIsNamedAndExitsWith2(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe") // opening it would wait
	if err := syscall.Mkfifo(pipe, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		want string
	}{
		{"egres", `unknown command "egres"; did you mean egress?`},
		{"egress x", `unknown command "x"`},
		{"egress --frob", "unknown flag: --frob; see parity egress --help"},
		{"egress --labs many", `invalid argument "many" for "--labs"`},
		{"egress --labs -1", "--labs -1: the minimum is 1"},
		{"egress --labs 0", "--labs 0: the minimum is 1"},
		{"egress --memory 0", "--memory 0: the minimum is 1024 MiB"},
		{"egress --memory 1", "--memory 1: the minimum is 1024 MiB"},
		{"egress --memory 1023", "--memory 1023: the minimum is 1024 MiB"},
		{"egress --disk 0", "--disk 0: the minimum is 1 GiB"},
		{"all --disk -1", "--disk -1: the minimum is 1 GiB"},
		{"egress --memory 1024 --disk 1 --labs 1 --provider docker", "unknown provider"}, // the minimum itself is no error
		{"egress --timeout 0s", "--timeout 0s: --timeout must be above 0"},
		{"egress --patience 0", "--patience 0: expected a number above 0, and 1000 at most; give one such as 3, or leave the flag out"},
		{"all --patience -2", "--patience -2: expected a number above 0"},
		{"contract --patience NaN", "--patience NaN: expected a number above 0"},
		{"contract --patience Inf", "--patience +Inf: expected a number above 0"},
		{"contract --patience 1e12", "--patience 1e+12: expected a number above 0, and 1000 at most"},
		{"remote-agent --patience much", `"--patience"`},
		{"egress --report=", `--report "": the value is empty`},
		{"egress --subject=", `--subject "": the value is empty`},
		{"contract --subject=", `--subject "": the value is empty`},
		{"egress --microsandbox=", `--microsandbox "": the value is empty`},
		{"egress --microsandbox /x --microsandbox-sha256=", `--microsandbox-sha256 "": the value is empty`},
		{"egress --provider=", `--provider "": the value is empty`},
		{"egress --kvm=", `--kvm "": the value is empty`},
		{"doctor --kvm=", `--kvm "": the value is empty`},
		{"doctor --kvm=all", `--kvm "all": expected auto, native or emulated`},
		{"doctor --microsandbox=", `--microsandbox "": the value is empty`},
		{"lab --report= -- true", `--report "": the value is empty`},
		{"lab --net= -- true", `--net "": the value is empty`},
		{"egress --provider docker", `unknown provider "docker"; known are builtin, external, both`},
		{"egress --provider builtin --external-runtime r", "--external-runtime goes with --provider external or both"},
		{"egress --external-provider p.yaml --external-runtime r", "--external-runtime and --external-provider exclude each other"},
		{"egress --external-binary KEY", "--external-binary goes with --external-provider"},
		{"all --provider builtin --agent a", "--agent goes with cases of remote-agent"},
		{"egress --standin --external-runtime /none", "bad option --external-runtime \"/none\": "},
		{"remote-agent --standin --agent /none", "bad option --agent: "},
		{"egress --provider builtin --external-provider p.yaml", "--external-provider goes with --provider external or both"},
		{"image-parity --standin --docker-host /var/run/docker.sock", "expected unix://PATH or tcp://HOST:PORT"},
		{"image-parity --standin --docker-host unix://", `--docker-host "unix://"`},
		{"remote-agent --standin --remote-key /x", "--remote-key and --remote-known-hosts go with --remote"},
		{"remote-agent --standin --remote build.example", "expected ssh://[USER@]HOST[:PORT]"},
		{"remote-agent --remote=", "the value is empty"},
		{"parity", `unknown command "parity"`},
		{"egress --standin --docker-host unix:///x", "unknown flag: --docker-host"},
		{"image-parity --standin --docker-host tcp://build.example", "expected tcp://HOST:PORT"},
		{"conformance --image x --runtime /nonexistent", "--runtime: stat /nonexistent"},
		{"conformance --image x --runtime " + file, file + ": expected an executable file"},
		{"conformance --image x --runtime /bin/true --check-timeout 0s", "--check-timeout and --timeout must be above 0"},
		{"egress --remote ssh://build.example", "unknown flag: --remote"},
		{"driver fnid", `unknown command "fnid"; see parity driver --help`},
		{"driver find x", `unknown command "x" for "parity driver find"`},
		{"driver find", "DEVCONTAINER_ID is not set"},
		{"driver provider --program parity", `--program "parity": expected an absolute path`},
		{"driver provider --program /nonexistent", "--program: stat /nonexistent"},
		{"driver provider --program " + file, file + ": expected an executable file"},
		{"driver provider --program=", `--program "": the value is empty`},
		{"driver provider --sha256 00", `--binary-url "": expected an http or https URL`},
		{"driver provider --binary-url ftp://h/x --sha256 00", `--binary-url "ftp://h/x": expected an http or https URL`},
		{"driver provider --binary-url http://h/x", `--sha256 "": expected the 64 hex digits`},
		{"driver provider --binary-url http://h/x --sha256 00", `--sha256 "00": expected the 64 hex digits`},
		{"driver provider --binary-url http://h/x --program /bin/true", "--program and --binary-url: expected one of them"},
		{"driver provider --exec true", `--exec "true": expected a shell command that runs ${COMMAND}`},
		{"egress --standin --microsandbox /x", "--standin and --microsandbox exclude each other"},
		{"selftest --only no-such-fault", "docs/faults.md lists them"},
		{"selftest --repeat 0", "--repeat 0"},
		{"egress --kvm yes", `--kvm "yes": expected auto, native or emulated`},
		{"egress --microsandbox-sha256 00", "--microsandbox-sha256 goes with --microsandbox"},
		{"egress --microsandbox /nonexistent", "/nonexistent/bin/msb"},
		{"egress --subject /nonexistent", "bad option --subject: stat /nonexistent"},
		{"egress --subject " + file, file + " is not an executable file"},
		{"lab", "requires at least 1 arg"},
		{"lab --net all -- true", `--net "all": expected none or user`},
		{"lab --kvm no -- true", `--kvm "no"`},
		{"lab --cpus -1 -- true", "--cpus -1: the minimum is 1"},
		{"lab --cpus 0 -- true", "--cpus 0: the minimum is 1"},
		{"lab --memory 1 -- true", "--memory 1: the minimum is 1024 MiB"},
		{"lab --disk 0 -- true", "--disk 0: the minimum is 1 GiB"},
		{"lab --timeout 0s -- true", "--timeout 0s: --timeout must be above 0"},
		{"lab --boot-timeout 0s -- true", "--boot-timeout 0s: --boot-timeout must be above 0"},
		{"egress --subject " + pipe, pipe + " is not an executable file"},
		{"list x", `unknown command "x"`},
	} {
		res := parity(t, nil, strings.Fields(test.args)...)
		if res.code != 2 || !strings.Contains(res.stderr, test.want) || res.stdout != "" {
			t.Errorf("parity %s: code %d, stdout %q, stderr %q; want code 2 and %q", test.args, res.code, res.stdout, res.stderr, test.want)
		}
	}
}

// Patience multiplies the run's own deadline too, unless that was given.
func TestPatienceMultipliesTheRunsDeadlineThatWasNotGiven(t *testing.T) {
	for args, want := range map[string]string{
		"":              "deadline of 3.6µs passed (--timeout)",
		"--timeout 7ns": "deadline of 7ns passed (--timeout)",
	} {
		argv := append([]string{"egress", "--standin", "--patience", "1e-9", "--report", filepath.Join(t.TempDir(), "report")}, strings.Fields(args)...)
		if res := parity(t, nil, argv...); res.code == 0 || !strings.Contains(res.stdout+res.stderr, want) {
			t.Errorf("%q: code %d, %q; want %q", args, res.code, res.stderr, want)
		}
	}
}

func TestReportFolderThatCannotBeWrittenIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	res := parity(t, nil, "egress", "--report", file)
	if res.code != 2 || !strings.Contains(res.stderr, file) || !strings.Contains(res.stderr, "--report") {
		t.Errorf("code %d, %q", res.code, res.stderr)
	}
}

// A second run would remove and overwrite the report of the first. A run that was killed is no such run.
func TestTwoRunsDoNotShareAReportFolder(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	started, killed := filepath.Join(state, "started"), filepath.Join(state, "killed")
	msb := fakeMSB(t, []byte("#!/bin/sh\ntouch "+started+"\nwhile [ ! -e "+killed+" ]; do sleep 0.05; done\necho hung up >&2; exit 1\n"))
	t.Cleanup(func() { _ = os.WriteFile(killed, nil, 0o644) }) // what the killed run left ends then
	cache := func(c *exec.Cmd) { c.Env = append(os.Environ(), "PARITY_CACHE="+filepath.Join(state, "cache")) }
	first := exec.Command(filepath.Join(programs, "parity"), "egress", "--microsandbox", msb, "--report", dir)
	cache(first)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(started); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first run did not come to its msb")
		}
	}
	second := parity(t, cache, "egress", "--microsandbox", msb, "--report", dir)
	if second.code != 2 || !strings.Contains(second.stderr, "another run") || !strings.Contains(second.stderr, dir) || !strings.Contains(second.stderr, "--report") {
		t.Errorf("the second run: code %d, %q", second.code, second.stderr)
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	if err := os.WriteFile(killed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	third := parity(t, cache, "egress", "--microsandbox", msb, "--report", dir)
	if !strings.Contains(third.stderr, "hung up") { // it came as far as its msb
		t.Errorf("the run after a killed one: code %d, %q", third.code, third.stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the folder holds %v, %v", left, err)
	}
}

// fakeMSB makes a folder with a bin/msb of the given content.
func fakeMSB(t *testing.T, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "msb"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnotherMicroSandboxMustHaveTheHashThatIsGiven(t *testing.T) {
	dir := fakeMSB(t, []byte("#!/bin/sh\necho msb 9.9.9\n"))
	const wrong = "00112233"
	res := parity(t, nil, "egress", "--microsandbox", dir, "--microsandbox-sha256", wrong)
	if res.code != 2 || !strings.Contains(res.stderr, "expected SHA-256 "+wrong+", seen ") {
		t.Errorf("code %d, %q", res.code, res.stderr)
	}
}

func TestProgramsForAnotherMachineAreRefused(t *testing.T) {
	self, err := os.ReadFile(filepath.Join(programs, "parity-probe"))
	if err != nil {
		t.Fatal(err)
	}
	self[18], self[19] = 0xb7, 0 // e_machine: AArch64
	dir := fakeMSB(t, self)
	for _, args := range [][]string{{"egress", "--microsandbox", dir}, {"egress", "--subject", filepath.Join(dir, "bin", "msb")}} {
		res := parity(t, nil, args...)
		if res.code != 2 || !strings.Contains(res.stderr, "is for another machine (EM_AARCH64)") {
			t.Errorf("%q: code %d, %q", args, res.code, res.stderr)
		}
	}
}

func TestNativeKVMThatCannotBeHadIsExplained(t *testing.T) {
	// Where there is a /dev/kvm, this msb's doctor says no.
	dir := fakeMSB(t, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo msb 0.7.2 && exit\necho no virtualization here >&2; exit 1\n"))
	res := parity(t, nil, "egress", "--kvm", "native", "--microsandbox", dir)
	if res.code != 3 || !strings.Contains(res.stderr, "native KVM was asked for and does not work") || !strings.Contains(res.stderr, "--kvm auto or emulated") {
		t.Errorf("code %d, %q", res.code, res.stderr)
	}
}

func TestWithoutRootTheErrorSaysSo(t *testing.T) {
	cache := t.TempDir()
	if err := os.Chmod(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	nobody := func(c *exec.Cmd) {
		c.Dir = "/"
		c.Env = append(os.Environ(), "PARITY_CACHE="+cache)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	for _, args := range [][]string{{"lab", "--kvm", "emulated", "--", "true"}, {"egress"}, {"egress", "--kvm", "native"}} {
		res := parity(t, nobody, args...)
		if res.code != 3 || !strings.Contains(res.stderr, "run it as root") || res.stdout != "" {
			t.Errorf("%q: code %d, %q", args, res.code, res.stderr)
		}
	}
	for _, kvm := range []string{"auto", "native", "emulated"} {
		res := parity(t, nobody, "doctor", "--kvm", kvm)
		if res.code != 3 || !strings.Contains(res.stdout, "MISSING  root") {
			t.Errorf("doctor --kvm %s: code %d, %q", kvm, res.code, res.stdout)
		}
		// What setup put into root's cache is not missing because this user's is empty.
		if strings.Contains(res.stdout, "scripts/setup") || !strings.Contains(res.stdout, "unknown  programs") || !strings.Contains(res.stdout, "unknown  Docker Engine") {
			t.Errorf("doctor --kvm %s advises more than root: %q", kvm, res.stdout)
		}
	}
}

func TestDoctorAsksOnlyForWhatTheModeNeeds(t *testing.T) {
	cache := t.TempDir()
	env := func(c *exec.Cmd) { c.Env = append(os.Environ(), "PARITY_CACHE="+cache) }
	msb := fakeMSB(t, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo msb 0.7.2 && exit\necho the sandbox needs /dev/kvm: not found >&2; exit 1\n"))
	for _, test := range []struct {
		kvm           string
		want, without []string
	}{
		{"native", []string{"MISSING  native KVM", "ok       native: user xattrs", "ok       native: a link", "no       Docker Engine", "no       remote machine"}, []string{"emulated:", "sandbox not found"}},
		{"emulated", []string{"emulated: qemu-system-x86_64", "emulated: kernel", "no       Docker Engine", "no       remote machine"}, []string{"native"}},
		{"auto", []string{"no       native KVM", "emulated: qemu-system-x86_64"}, []string{"native:"}},
	} {
		res := parity(t, env, "doctor", "--kvm="+test.kvm, "--microsandbox", msb)
		if res.code != 3 { // this msb's doctor says no, and the cache has no kernel
			t.Errorf("--kvm %s: code %d, %q", test.kvm, res.code, res.stderr)
		}
		for _, want := range test.want {
			if !strings.Contains(res.stdout, want) {
				t.Errorf("--kvm %s lacks %q:\n%s", test.kvm, want, res.stdout)
			}
		}
		for _, without := range test.without {
			if strings.Contains(res.stdout, without) {
				t.Errorf("--kvm %s has %q:\n%s", test.kvm, without, res.stdout)
			}
		}
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 0 {
		t.Errorf("doctor left %v, %v in the cache", left, err)
	}
}

func TestDoctorNamesACacheWithoutUserXattrs(t *testing.T) {
	cache := t.TempDir()
	apart := func(c *exec.Cmd) { // in a mount namespace with a ramfs, which has no xattrs
		c.Env = append(os.Environ(), "PARITY_CACHE="+cache)
		c.Args = append([]string{"unshare", "-m", "sh", "-c", `mount -t ramfs ram "$PARITY_CACHE" && exec "$0" "$@"`, c.Path}, c.Args[1:]...)
		c.Path = "/usr/bin/unshare"
	}
	res := parity(t, apart, "doctor", "--kvm=native")
	if res.code != 3 || !strings.Contains(res.stdout, "MISSING  native: user xattrs") || !strings.Contains(res.stdout, "set PARITY_CACHE") {
		t.Errorf("code %d, %q %q", res.code, res.stdout, res.stderr)
	}
}

func TestDoctorNamesWhatIsMissingAndTheWayToGetIt(t *testing.T) {
	cache := t.TempDir()
	res := parity(t, func(c *exec.Cmd) { c.Env = append(os.Environ(), "PARITY_CACHE="+cache) }, "doctor")
	if res.code != 3 {
		t.Errorf("the exit code is %d", res.code)
	}
	for _, want := range []string{"ok       root", "MISSING  programs", "scripts/setup", "ok       CA bundle"} {
		if !strings.Contains(res.stdout, want) {
			t.Errorf("doctor's output lacks %q:\n%s", want, res.stdout)
		}
	}
	res = parity(t, func(c *exec.Cmd) { c.Env = append(os.Environ(), "PARITY_CACHE="+cache) }, "egress")
	if res.code != 3 || !strings.Contains(res.stderr, "run scripts/setup") {
		t.Errorf("egress without MicroSandbox: code %d, %q", res.code, res.stderr)
	}
}

func TestListPrintsTheCatalogue(t *testing.T) {
	res := parity(t, nil, "list")
	want := []string{
		"contract/builtin/cli", "contract/external/cli", "egress/builtin/public", "egress/builtin/deny", "egress/external/public",
		"egress/external/deny", "image-parity/builtin/registry", "image-parity/builtin/docker", "image-parity/builtin/feature",
		"image-parity/external/registry", "image-parity/external/docker", "image-parity/external/feature",
		"remote-agent/external/delivery", "parity/egress", "parity/image-parity",
	}
	for _, id := range want {
		if !strings.Contains(res.stdout, id+"\n") {
			t.Errorf("the list lacks %s", id)
		}
	}
	if res.code != 0 || strings.Count(res.stdout, "\n") != 2*len(want) {
		t.Errorf("code %d, %q", res.code, res.stdout)
	}
	if res = parity(t, nil, "list", "--checks"); !strings.Contains(res.stdout, "restarted  identity/boot-id") {
		t.Errorf("the checks are missing: %q", res.stdout)
	}
}

func TestTheReferenceCLIKeepsItsOwnExitCodes(t *testing.T) {
	home := t.TempDir()
	env := func(c *exec.Cmd) { c.Env = append(os.Environ(), "HOME="+home, "DEVSY_HOME="+home) }
	if res := parity(t, env, "devsy", "workspace", "status", "nobody"); res.code != 75 {
		t.Errorf("code %d, %q", res.code, res.stderr)
	}
	if res := parity(t, env, "devsy", "workspace", "list", "--result-format", "json"); res.code != 0 || strings.TrimSpace(res.stdout) != "[]" {
		t.Errorf("code %d, %q", res.code, res.stdout)
	}
}
