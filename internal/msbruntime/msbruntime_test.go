package msbruntime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"dagger/parity/internal/msbruntime"
	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/runtimeclient"
	pb "dagger/parity/internal/runtimeproto"
	"dagger/parity/internal/runtimeserver"
)

// TestMain is the runtime itself when its argument says so.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "serve") {
		if err := runtimeserver.Serve(msbruntime.New()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// bench is the runtime over a stand-in for msb, with more in its environment.
type bench struct {
	*testing.T
	home string // MSB_HOME
	env  []string
}

func newBench(t *testing.T, env ...string) *bench {
	t.Helper()
	b := &bench{T: t, home: t.TempDir()}
	text, err := os.ReadFile("../msbdriver/testdata/msb.sh")
	b.must(err)
	script := filepath.Join(t.TempDir(), "msb")
	b.must(os.WriteFile(script, text, 0o755))
	b.env = append([]string{"PATH=" + os.Getenv("PATH"), "PARITY_MSB=" + script, "MSB_HOME=" + b.home, "GORACE=atexit_sleep_ms=0"}, env...)
	return b
}

func (b *bench) start() *runtimeclient.Runtime {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	r, err := runtimeclient.Start(bounded(b.T), runtimeclient.Command{Path: self, Args: []string{"serve"}, Env: b.env})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Close)
	return r
}

// asked gives the lines of what msb was asked for that begin so.
func (b *bench) asked(verb string) (lines []string) {
	text, _ := os.ReadFile(filepath.Join(b.home, "log"))
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, verb+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func TestWorkspace(t *testing.T) {
	b := newBench(t, "MICROSANDBOX_BLOCK_EGRESS=TRUE", "MICROSANDBOX_MEMORY=256")
	r := b.start()
	d := r.Driver()
	agent := filepath.Join(t.TempDir(), "agent")
	b.must(os.WriteFile(agent, []byte("#!/bin/sh\necho agent \"$@\"\n"), 0o755))
	m, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1", User: "dev", Environment: map[string]string{"A": "b c"},
		Labels: map[string]string{"l": "v"}, Files: []driver.File{{Source: agent, Target: "/usr/local/bin/agent"}}})
	if err != nil || m.ID != "devsy-w" || m.User != "dev" {
		t.Fatalf("Run: %+v, %v", m, err)
	}
	create := b.asked("create")
	for _, want := range []string{"--net-default-egress deny", "--memory 256M", "--user dev", "--env A=b c", "--label l=v", " image:1\n"} {
		if len(create) != 1 || !strings.Contains(create[0], want) {
			t.Errorf("no %q in %q", want, create)
		}
	}
	var out bytes.Buffer
	if code, err := d.Exec(bounded(t), "w", []string{"/usr/local/bin/agent", "x y"}, driver.Streams{Out: &out}); code != 0 || err != nil || out.String() != "agent x y\n" {
		t.Errorf("the file that was put there: %d, %v, %q", code, err, out.String())
	}
	if exec := b.asked("exec"); len(exec) != 2 || !strings.HasPrefix(exec[0], "exec --quiet --stream --user root devsy-w -- /bin/sh ") {
		t.Errorf("msb was asked for %q: the file is root's to put there", exec)
	}
	exit, err := r.Exec(bounded(t), &pb.ExecStart{WorkspaceId: "w", Argv: []string{"/bin/sh", "-c", "exit 23"}, User: "u", Workdir: "/x",
		Environment: map[string]string{"K": "v"}}, driver.Streams{})
	if err != nil || exit.GetExitCode() != 23 {
		t.Errorf("Exec: %v, %v", exit, err)
	}
	if exec := b.asked("exec"); !strings.Contains(exec[len(exec)-1], "--user u --workdir /x --env K=v devsy-w -- ") {
		t.Errorf("msb was asked for %q", exec[len(exec)-1])
	}

	b.must(d.Stop(bounded(t), "w"))
	before := len(b.asked("exec"))
	if _, err := d.Exec(bounded(t), "w", []string{"true"}, driver.Streams{}); err == nil || !strings.Contains(err.Error(), "is not running: start it first") {
		t.Errorf("Exec in a stopped machine: %v", err)
	}
	if n := len(b.asked("exec")); n != before {
		t.Error("msb exec ran: a stopped machine would have been booted")
	}
	b.must(d.Delete(bounded(t), "w"))
	if left, _ := os.ReadDir(filepath.Join(b.home, "m")); len(left) > 0 {
		t.Errorf("machines were left: %v", left)
	}
}

func TestWhatCannotBeHadIsRefusedBeforeAnythingIsMade(t *testing.T) {
	b := newBench(t)
	r := b.start()
	yes := true
	for name, request := range map[string]*pb.RunImageRequest{
		"privileged":           {Privileged: &yes},
		"init":                 {Init: &yes},
		"cap_add":              {CapAdd: []string{"SYS_ADMIN"}},
		"security_opt, userns": {SecurityOpt: []string{"x"}, Userns: "host"},
		"workspace_mount":      {WorkspaceMount: &pb.Mount{Type: pb.MountType_MOUNT_TYPE_BIND, Source: "/a", Target: "/b"}},
		"mounts":               {Mounts: []*pb.Mount{{}}},
		"platform":             {Platform: "linux/s390x"},
		"gpu":                  {HostRequirements: &pb.HostRequirements{Gpu: &pb.GpuRequirement{Value: pb.GpuRequirementValue_GPU_REQUIRED}}},
	} {
		request.WorkspaceId, request.Image = "w", "image:1"
		_, err := r.Calls.RunImage(bounded(t), request)
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), ": "+name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if made := b.asked("create"); len(made) > 0 {
		t.Errorf("msb was asked for %q", made)
	}
	no := false
	if _, err := r.Calls.RunImage(bounded(t), &pb.RunImageRequest{WorkspaceId: "w", Image: "image:1", Privileged: &no, Platform: "linux/amd64"}); err != nil {
		t.Errorf("what is not asked for is refused: %v", err)
	}
}

func TestWrongOptionsHinderOnlyWhatNeedsThem(t *testing.T) {
	b := newBench(t, "MICROSANDBOX_BLOCK_EGRESS=yes")
	d := b.start().Driver()
	_, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"})
	var e *pb.Error
	if !errors.As(err, &e) || e.Code != pb.InvalidArgument || !strings.Contains(e.Message, "MICROSANDBOX_BLOCK_EGRESS") {
		t.Errorf("Run: %v", err)
	}
	if _, found, err := d.Find(bounded(t), "w"); found || err != nil {
		t.Errorf("Find: %v, %v", found, err)
	}
	b.must(d.Delete(bounded(t), "w"))
}

func TestWithoutMicroSandboxEachCallSaysSo(t *testing.T) {
	b := newBench(t)
	b.env = []string{"PATH=/nonexistent"}
	d := b.start().Driver()
	_, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"})
	_, _, findErr := d.Find(bounded(t), "w")
	for call, err := range map[string]error{"Run": err, "Find": findErr, "Start": d.Start(bounded(t), "w"), "Delete": d.Delete(bounded(t), "w")} {
		if err == nil || !strings.Contains(err.Error(), "install msb, or give its path in PARITY_MSB") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// The environment of a workspace may be secret: an error about a failed create has msb's words, and not its command line.
func TestErrorsDoNotShowTheEnvironment(t *testing.T) {
	b := newBench(t)
	d := b.start().Driver()
	_, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "fails-late:1", Environment: map[string]string{"TOKEN": "s3cret"}})
	if err == nil || !strings.Contains(err.Error(), "boot failed") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

// hanging waits until a create hangs, and gives its process id.
func (b *bench) hanging() (pid int) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); pid == 0; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(b.home, "hanging"))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		if time.Now().After(deadline) {
			b.Fatal("no create hangs")
		}
	}
	return pid
}

func TestTheRuntimeIsKilledWhileItMakesAMachine(t *testing.T) {
	b := newBench(t)
	b.must(os.WriteFile(filepath.Join(b.home, "hang"), nil, 0o644))
	r := b.start()
	failed := make(chan error, 1)
	go func() {
		_, err := r.Driver().Run(bounded(t), "w", driver.RunOptions{Image: "image:1"})
		failed <- err
	}()
	create := b.hanging()
	b.must(syscall.Kill(r.PID(), syscall.SIGKILL))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "the runtime ended during RunImage") || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	r.Close()
	for deadline := time.Now().Add(30 * time.Second); syscall.Kill(create, 0) == nil; time.Sleep(time.Millisecond) {
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", create)); strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(create, syscall.SIGKILL)
			t.Fatal("msb create outlived the runtime")
		}
	}
	// The next process finds what was left, and removes it.
	b.must(os.Remove(filepath.Join(b.home, "hang")))
	d := b.start().Driver()
	if m, found, err := d.Find(bounded(t), "w"); !found || m.Running || err != nil {
		t.Errorf("Find: %+v, %v, %v", m, found, err)
	}
	b.must(d.Delete(bounded(t), "w"))
	if left, _ := os.ReadDir(filepath.Join(b.home, "m")); len(left) > 0 {
		t.Errorf("machines were left: %v", left)
	}
}
