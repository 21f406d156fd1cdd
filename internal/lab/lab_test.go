package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Reexec()
	if os.Getenv("PARITY_TEST_RUN_LAB") != "" { // the child of TestKilledLabLeavesNothing
		_, err := Run(context.Background(), Options{KVM: KVM(os.Getenv("PARITY_TEST_RUN_KVM")), Argv: []string{"sh", "-c", "echo started; sleep 600 & sleep 600"},
			Env: os.Environ(), Dir: "/", Cache: os.Getenv("PARITY_TEST_RUN_LAB"), Stdout: os.Stdout})
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func options(t *testing.T, kvm KVM, script string) Options {
	t.Helper()
	cache := t.TempDir()
	if kvm == Emulated { // it needs the kernel that setup extracted
		dir, err := CacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = dir
	}
	return Options{KVM: kvm, Argv: []string{"sh", "-c", script}, Env: os.Environ(), Dir: t.TempDir(), Cache: cache}
}

// Each property of a lab is the same for both kinds. The native one needs no KVM for these. It runs
// beside other tests, as an emulated machine takes seconds to boot.
func forBoth(t *testing.T, test func(t *testing.T, kvm KVM)) {
	t.Parallel()
	for _, kvm := range []KVM{Native, Emulated} {
		t.Run(string(kvm), func(t *testing.T) { test(t, kvm) })
	}
}

func TestCommandHasItsStreamsItsFolderAndItsExitCode(t *testing.T) {
	forBoth(t, func(t *testing.T, kvm KVM) {
		o := options(t, kvm, `
			cat
			echo "an error" >&2
			echo "dir=$(pwd) lab=$PARITY_LAB word=$PARITY_TEST_WORD host=$(hostname)"
			echo "interfaces=$(ls /sys/class/net | tr '\n' ' ')"
			grep -c . /proc/self/mountinfo >/dev/null
			mkdir -p "$PARITY_TEST_REPORT/sub" && echo content >"$PARITY_TEST_REPORT/sub/file"
			exit 23`)
		report := filepath.Join(t.TempDir(), "report")
		o.Report = report
		o.Env = append(o.Env, "PARITY_TEST_WORD=a 'quoted' $word", "PARITY_TEST_REPORT="+report)
		var stdout, stderr bytes.Buffer
		o.Stdin, o.Stdout, o.Stderr = strings.NewReader("from stdin\n"), &stdout, &stderr
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if res.ExitCode != 23 || res.Boot <= 0 {
			t.Errorf("the command exited with 23; the lab says %+v", res)
		}
		want := "from stdin\ndir=" + o.Dir + " lab=" + string(kvm) + " word=a 'quoted' $word host=parity\n"
		if !strings.HasPrefix(stdout.String(), want) {
			t.Errorf("stdout is %q, want it to begin with %q", stdout.String(), want)
		}
		// sysfs shows the mount's own namespace; a native lab has this machine's mount.
		if kvm == Emulated && !strings.HasSuffix(stdout.String(), "interfaces=lo \n") {
			t.Errorf("the machine has other interfaces than lo: %q", stdout.String())
		}
		if stderr.String() != "an error\n" {
			t.Errorf("stderr is %q", stderr.String())
		}
		if got, err := os.ReadFile(filepath.Join(report, "sub/file")); string(got) != "content\n" {
			t.Errorf("the report's file holds %q (%v)", got, err)
		}
	})
}

func TestScratchHasUserXattrsAndGoesWithTheLab(t *testing.T) {
	forBoth(t, func(t *testing.T, kvm KVM) {
		o := options(t, kvm, `set -e; echo x >"$PARITY_SCRATCH/f"; echo y >"$TMPDIR/g"; echo "$PARITY_SCRATCH"; exec "$PARITY_TEST_SELF" -test.run '^TestHelperSetXattr$' "$PARITY_SCRATCH/f" "$TMPDIR/g"`)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		o.Env = append(o.Env, "PARITY_TEST_SELF="+self, "PARITY_TEST_XATTR=1")
		var out bytes.Buffer
		o.Stdout, o.Stderr = &out, &out
		res, err := Run(t.Context(), o)
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("code %d, %v: %s", res.ExitCode, err, out.String())
		}
		scratch, _, _ := strings.Cut(out.String(), "\n")
		if _, err := os.Stat(scratch); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the scratch folder %q is still there (%v)", scratch, err)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Cache, "disk-*")); len(left) > 0 {
			t.Errorf("scratch disks are left: %q", left)
		}
	})
}

func TestCgroupsGoWithTheLab(t *testing.T) {
	o := options(t, Native, `
		set -e
		for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
			! test -e "$root/cgroup.procs" || mkdir -p "$root/parity-$(basename "$PARITY_SCRATCH")/a/b"
		done
		basename "$PARITY_SCRATCH"`)
	var out bytes.Buffer
	o.Stdout, o.Stderr = &out, &out
	if res, err := Run(t.Context(), o); err != nil || res.ExitCode != 0 {
		t.Fatalf("code %d, %v: %s", res.ExitCode, err, out.String())
	}
	name := strings.TrimSpace(out.String())
	for _, pattern := range []string{"/sys/fs/cgroup/parity-", "/sys/fs/cgroup/*/parity-"} {
		if left, err := filepath.Glob(pattern + name); err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %q, %v", left, err)
		}
	}
}

// TestHelperSetXattr runs inside a lab, for TestScratchHasUserXattrsAndGoesWithTheLab.
func TestHelperSetXattr(t *testing.T) {
	if os.Getenv("PARITY_TEST_XATTR") == "" {
		return
	}
	for _, path := range os.Args[len(os.Args)-2:] {
		if err := syscall.Setxattr(path, "user.parity", []byte("1"), 0); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestEmulatedMachineHasKVMAndCannotChangeThisMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("ours"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := options(t, Emulated, `
		set -e
		test -c /dev/kvm
		ip link add t0 type dummy
		cat "$PARITY_TEST_FILE"; echo theirs >"$PARITY_TEST_FILE"; cat "$PARITY_TEST_FILE"
		mkdir /mnt/root && mount -t virtiofs root /mnt/root
		if echo theirs >"/mnt/root$PARITY_TEST_FILE"; then echo "the host's file was written"; fi 2>/dev/null`)
	o.Env = append(o.Env, "PARITY_TEST_FILE="+file)
	var out bytes.Buffer
	o.Stdout, o.Stderr = &out, &out
	res, err := Run(t.Context(), o)
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("code %d, %v: %s", res.ExitCode, err, out.String())
	}
	if out.String() != "ourstheirs\n" {
		t.Errorf("the machine saw %q", out.String())
	}
	if got, _ := os.ReadFile(file); string(got) != "ours" {
		t.Errorf("this machine's file holds %q", got)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	forBoth(t, func(t *testing.T, kvm KVM) {
		o := options(t, kvm, `trap 'echo got TERM; exit 7' TERM; echo ready; while :; do sleep 0.1; done`)
		out := newWatch("ready")
		o.Stdout = out
		l, err := Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		out.wait(t)
		l.Signal(syscall.SIGTERM)
		res, err := l.Wait()
		if err != nil || res.ExitCode != 7 || !strings.Contains(out.String(), "got TERM") {
			t.Errorf("code %d, %v, %q", res.ExitCode, err, out.String())
		}
	})
}

func TestKilledCommandGivesTheSignalsCode(t *testing.T) {
	forBoth(t, func(t *testing.T, kvm KVM) {
		res, err := Run(t.Context(), options(t, kvm, `kill -KILL $$`))
		if err != nil || res.ExitCode != 128+9 {
			t.Errorf("code %d, %v", res.ExitCode, err)
		}
	})
}

func TestCommandThatIgnoresTheDeadlineIsEnded(t *testing.T) {
	forBoth(t, func(t *testing.T, kvm KVM) {
		o := options(t, kvm, `trap '' TERM; echo ready; while :; do sleep 0.1; done`)
		o.Grace = time.Second
		out := newWatch("ready")
		o.Stdout = out
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l, err := Start(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		out.wait(t)
		cancel()
		if _, err := l.Wait(); err == nil || !strings.Contains(err.Error(), "was ended before its command") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestMissingCommandIsNamed(t *testing.T) {
	o := options(t, Native, "")
	o.Argv = []string{"no-such-command"}
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrBoot) || !strings.Contains(err.Error(), "no-such-command") {
		t.Errorf("the error is %v", err)
	}
}

func TestPanicOfTheMachineIsToldWithItsConsole(t *testing.T) {
	t.Parallel()
	o := options(t, Emulated, `echo 7 >/proc/sys/kernel/printk; echo c >/proc/sysrq-trigger; sleep 60`)
	_, err := Run(t.Context(), o)
	if err == nil || errors.Is(err, ErrBoot) || !strings.Contains(err.Error(), "went away") || !strings.Contains(err.Error(), "sysrq") {
		t.Errorf("the error is %v", err)
	}
}

// With a network, a lab of either kind reaches a server of this machine's, which QEMU has at its own address.
func TestALabWithANetworkReachesThisMachine(t *testing.T) {
	const word = "from this machine"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, word) }))
	defer server.Close()
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	forBoth(t, func(t *testing.T, kvm KVM) {
		host := map[KVM]string{Native: "127.0.0.1", Emulated: "10.0.2.2"}[kvm]
		o := options(t, kvm, fmt.Sprintf("busybox wget -q -O - http://%s:%d/", host, port))
		o.UserNet = true
		var out, errs bytes.Buffer
		o.Stdout, o.Stderr = &out, &errs
		if res, err := Run(t.Context(), o); err != nil || res.ExitCode != 0 || out.String() != word {
			t.Errorf("exit code %d, %v, %q, %q", res.ExitCode, err, out.String(), errs.String())
		}
	})
}

func TestBootDeadlineIsKept(t *testing.T) {
	t.Parallel()
	o := options(t, Emulated, `true`)
	o.BootDeadline = 300 * time.Millisecond
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrBoot) || !strings.Contains(err.Error(), "did not boot within 300ms") {
		t.Errorf("the error is %v", err)
	}
}

func TestMissingKernelIsNamedWithTheWayToGetIt(t *testing.T) {
	o := options(t, Emulated, `true`)
	o.Cache = t.TempDir()
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrBoot) || !strings.Contains(err.Error(), "scripts/setup") {
		t.Errorf("the error is %v", err)
	}
}

func TestKilledLabLeavesNothing(t *testing.T) {
	forBoth(t, func(t *testing.T, kvm KVM) {
		cache := options(t, kvm, "").Cache
		names := func() []string {
			list, err := filepath.Glob(filepath.Join(cache, "*"))
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		had := names()
		mark := fmt.Sprintf("PARITY_TEST_MARK=%s-%d-%d", kvm, os.Getpid(), time.Now().UnixNano())
		child := exec.Command("/proc/self/exe")
		child.Env = append(os.Environ(), "PARITY_TEST_RUN_LAB="+cache, "PARITY_TEST_RUN_KVM="+string(kvm), mark)
		out := newWatch("started")
		child.Stdout, child.Stderr = out, os.Stderr
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		out.wait(t)
		// The harness, its box and the command, or the harness, its box, the keeper, virtiofsd and QEMU.
		want := map[KVM]int{Native: 3, Emulated: 5}[kvm]
		if before := processesWith(t, mark); len(before) < want {
			t.Fatalf("expected %d processes at least, seen %d", want, len(before))
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait()
		for deadline := time.Now().Add(time.Minute); len(processesWith(t, mark)) > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("processes are left: %v", processesWith(t, mark))
			}
		}
		if kvm == Emulated { // its disk has no name; others may use this machine's cache meanwhile
			return
		}
		// What a killed run leaves is its scratch folder; the next run removes it, and no live one's.
		live, err := newScratch(Options{KVM: Native, Cache: cache})
		if err != nil {
			t.Fatal(err)
		}
		defer live.remove()
		removed, err := Clean(cache)
		if err != nil || len(removed) != 1 {
			t.Errorf("one killed run's folder was to be removed; removed %q, %v", removed, err)
		}
		if left := names(); len(left) != len(had)+1 || left[0] != live.path() {
			t.Errorf("the live lab's folder %s was to stay; left are %q", live.path(), left)
		}
	})
}

// processesWith lists the processes whose environment has the entry.
func processesWith(t *testing.T, entry string) []string {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range environs {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00"+entry+"\x00")) {
			found = append(found, path)
		}
	}
	return found
}

func TestExtractRefusesWhatLeadsOut(t *testing.T) {
	for _, name := range []string{"../out", "/etc/parity-test", "a/../../out"} {
		dir := filepath.Join(t.TempDir(), "in")
		if err := extract(tarOf(t, name), dir); err == nil {
			t.Errorf("an archive with %q was taken", name)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), "out")); err == nil {
			t.Errorf("%q was written outside", name)
		}
	}
}

func TestLabInALabHasItsOwnEnvironment(t *testing.T) {
	o := options(t, Native, `echo "$PARITY_LAB $PARITY_SCRATCH $TMPDIR"`)
	o.Env = append(o.Env, EnvLab+"=emulated", EnvScratch+"=/outer", "TMPDIR=/outer/tmp")
	var out bytes.Buffer
	o.Stdout = &out
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "native ") || strings.Contains(got, "/outer") {
		t.Errorf("the command saw %q", got)
	}
}

// A signal that comes while the lab is only just being made is not lost.
func TestEarlySignalEndsTheLab(t *testing.T) {
	for range 20 {
		o := options(t, Native, `sleep 600`)
		o.Grace = 4 * time.Minute // what a lost signal would wait for
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		l, err := Start(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		l.Signal(syscall.SIGTERM)
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = l.Wait() }()
		select {
		case <-ended:
		case <-ctx.Done():
			l.Signal(syscall.SIGTERM) // the second ends it at once
			t.Fatal("the signal was lost")
		}
		cancel()
	}
}

func TestACacheFolderWithAColonIsRefused(t *testing.T) {
	t.Setenv("PARITY_CACHE", "/tmp/a:b")
	if dir, err := CacheDir(); err == nil || !strings.Contains(err.Error(), "/tmp/a:b") {
		t.Errorf("got %q, %v", dir, err)
	}
}
