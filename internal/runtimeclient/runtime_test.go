package runtimeclient_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dagger/parity/internal/reference/driver"
	"dagger/parity/internal/runtimeclient"
	"dagger/parity/internal/runtimefake"
	pb "dagger/parity/internal/runtimeproto"
)

// envHost makes this test's program a host that starts the runtime, prints the process ids of both and of a command, and waits.
const envHost = "RUNTIME_CLIENT_TEST_HOST"

func TestMain(m *testing.M) {
	if runtimefake.Called() {
		os.Exit(runtimefake.Main())
	}
	if os.Getenv(envHost) != "" {
		host()
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

// command is how to start the fake.
func command(t *testing.T, fault runtimefake.Fault) runtimeclient.Command {
	t.Helper()
	return runtimeclient.Command{Path: self(t), Args: []string{"serve"}, Env: append(os.Environ(),
		runtimefake.EnvState+"="+t.TempDir(), runtimefake.EnvFault+"="+string(fault),
		"GORACE=atexit_sleep_ms=0")} // or each process of a race build takes a second to exit
}

func self(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

func start(t *testing.T, c runtimeclient.Command) *runtimeclient.Runtime {
	t.Helper()
	r, err := runtimeclient.Start(bounded(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// ended waits until a process is gone, or a zombie whose parent is not this process.
func ended(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Errorf("process %d still runs", pid)
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

// A workspace lives from one runtime's process to the next, and each call of the driver has its meaning.
func TestDriverOverAProcessForEachOperation(t *testing.T) {
	c := command(t, "")
	operate := func(do func(d driver.Driver)) {
		t.Helper()
		r := start(t, c)
		do(r.Driver())
		r.Close()
		if running(r.PID()) {
			t.Errorf("the runtime's process %d is there after Close", r.PID())
		}
	}
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: got %v, want %v", what, err, want)
		}
	}
	state := func(d driver.Driver, found, running bool) {
		t.Helper()
		m, f, err := d.Find(bounded(t), "w")
		if err != nil || f != found || m.Running != running || found && (m.ID != "fake-w" || time.Since(m.CreatedAt) > time.Minute) {
			t.Errorf("Find: got %+v, %v, %v; want found %v, running %v", m, f, err, found, running)
		}
	}
	agent := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(agent, bytes.Repeat([]byte("agent\x00\n"), 50_000), 0o751); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "new folder", "agent")
	o := driver.RunOptions{Image: "image:1", Environment: map[string]string{"A": "b c"}, Labels: map[string]string{"l": "v"},
		Files: []driver.File{{Source: agent, Target: target}}}

	operate(func(d driver.Driver) {
		state(d, false, false)
		is("Start of a missing one", d.Start(bounded(t), "w"), driver.ErrNotFound)
		is("Stop of a missing one", d.Stop(bounded(t), "w"), driver.ErrNotFound)
		is("Delete of a missing one", d.Delete(bounded(t), "w"), nil)
		_, err := d.Exec(bounded(t), "w", []string{"true"}, driver.Streams{})
		is("Exec in a missing one", err, driver.ErrNotFound)
	})
	operate(func(d driver.Driver) {
		m, err := d.Run(bounded(t), "w", o)
		is("Run", err, nil)
		if m.ID != "fake-w" {
			t.Errorf("Run gave %+v", m)
		}
	})
	operate(func(d driver.Driver) {
		state(d, true, true)
		_, err := d.Run(bounded(t), "w", o)
		is("Run of an existing one", err, driver.ErrExists)
		is("Start of a running one", d.Start(bounded(t), "w"), nil)
		want, _ := os.ReadFile(agent)
		got, err := os.ReadFile(target)
		info, statErr := os.Stat(target)
		if !bytes.Equal(got, want) || err != nil || statErr != nil || info.Mode() != 0o751 {
			t.Errorf("the file has %d bytes, %v, %v, and the mode %v", len(got), err, statErr, info.Mode())
		}
		var out bytes.Buffer
		code, err := d.Exec(bounded(t), "w", []string{"/bin/sh", "-c", `echo "$A"; exit 23`}, driver.Streams{Out: &out})
		if code != 23 || err != nil || out.String() != "b c\n" {
			t.Errorf("Exec: %d, %v, %q", code, err, out.String())
		}
	})
	operate(func(d driver.Driver) {
		is("Stop", d.Stop(bounded(t), "w"), nil)
		state(d, true, false)
		is("Stop of a stopped one", d.Stop(bounded(t), "w"), nil)
		_, err := d.Exec(bounded(t), "w", []string{"true"}, driver.Streams{})
		if err == nil || !strings.Contains(err.Error(), "is stopped") {
			t.Errorf("Exec in a stopped one: %v", err)
		}
		is("Start", d.Start(bounded(t), "w"), nil)
		state(d, true, true)
		is("Delete of a running one", d.Delete(bounded(t), "w"), nil)
		state(d, false, false)
	})
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	script := func(text string) runtimeclient.Command {
		path := filepath.Join(t.TempDir(), "runtime")
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return runtimeclient.Command{Path: path, Env: os.Environ()}
	}
	notExecutable := script("x")
	if err := os.Chmod(notExecutable.Path, 0o644); err != nil {
		t.Fatal(err)
	}
	late := func(fault runtimefake.Fault) runtimeclient.Command {
		c := command(t, fault)
		c.StartDeadline = 500 * time.Millisecond
		return c
	}
	temporary := shortTempDir(t)
	t.Cleanup(func() { // after the subtests
		if left, _ := os.ReadDir(temporary); len(left) > 0 {
			t.Errorf("%s was left, and %d more", left[0].Name(), len(left)-1)
		}
	})
	for name, c := range map[string]struct {
		command runtimeclient.Command
		why     string
		text    []string
	}{
		"missing":              {runtimeclient.Command{Path: "/nonexistent/runtime"}, runtimeclient.NotStarted, []string{"start the runtime /nonexistent/runtime: ", "no such file"}},
		"not executable":       {notExecutable, runtimeclient.NotStarted, []string{"permission denied"}},
		"no program":           {script("\x7fELF\x02\x01\x01"), runtimeclient.NotStarted, []string{"exec format error"}},
		"crash":                {command(t, runtimefake.CrashBeforeHandshake), runtimeclient.Crashed, []string{"seen none", "exited with code 7", "fake: no room for another machine"}},
		"silent exit":          {script("#!/bin/sh\necho no such command >&2\n"), runtimeclient.Crashed, []string{"expected a handshake on standard output, seen none", "exited with code 0", "no such command"}},
		"no handshake":         {late(runtimefake.NoHandshake), runtimeclient.TooSlow, []string{"expected a handshake on standard output within 500ms"}},
		"garbage":              {command(t, runtimefake.GarbageFirst), runtimeclient.BadHandshake, []string{"expected a handshake such as 1|1|unix|PATH|grpc|", "Welcome to the fake runtime!"}},
		"garbage, then an end": {script("#!/bin/sh\necho nonsense; echo why >&2\n"), runtimeclient.BadHandshake, []string{`seen "nonsense"`, "why"}},
		"much garbage":         {script("#!/bin/sh\nhead -c 300000 /dev/zero; sleep 600\n"), runtimeclient.BadHandshake, []string{"expected a handshake"}},
		"another protocol":     {command(t, runtimefake.WrongProtocol), runtimeclient.WrongVersion, []string{`expected protocol version 1, seen "2"`}},
		"dead address":         {command(t, runtimefake.DeadAddress), runtimeclient.BadHandshake, []string{"/nonexistent"}},
		"another API":          {command(t, runtimefake.WrongAPI), runtimeclient.WrongAPI, []string{"expected a runtime of API version 1, seen version 2.1"}},
		"incomplete Info":      {command(t, runtimefake.InfoIncomplete), runtimeclient.FailedInfo, []string{"expected driver_name"}},
		"Info hangs":           {late(runtimefake.InfoHangs), runtimeclient.FailedInfo, []string{"within 500ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := runtimeclient.Start(bounded(t), c.command)
			if err == nil {
				r.Close()
				t.Fatal("it started")
			}
			var e *runtimeclient.StartError
			if !errors.As(err, &e) || e.Why != c.why {
				t.Errorf("the reason is %q, want %q: %v", e.Why, c.why, err)
			}
			for _, part := range c.text {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q: %v", part, err)
				}
			}
		})
	}
}

// shortTempDir is a TMPDIR in which there is room for a socket.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	return dir
}

// Where TMPDIR is too long for a socket, the runtime starts all the same.
func TestStartWithALongTMPDIR(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	start(t, command(t, ""))
}

func TestStartIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(bounded(t))
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	_, err := runtimeclient.Start(ctx, command(t, runtimefake.NoHandshake))
	if !errors.Is(err, context.Canceled) || time.Since(began) > runtimeclient.StartDeadline {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
}

func TestExecIsDuplexAndKeepsEveryByte(t *testing.T) {
	d := start(t, command(t, "")).Driver()
	if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 12<<20)
	_, _ = rand.Read(random)
	var out, errs bytes.Buffer
	code, err := d.Exec(bounded(t), "w", []string{"/bin/sh", "-c", "tee /dev/stderr"}, driver.Streams{In: bytes.NewReader(random), Out: &out, Err: &errs})
	if code != 0 || err != nil || !bytes.Equal(out.Bytes(), random) || !bytes.Equal(errs.Bytes(), random) {
		t.Errorf("%d bytes came back, and %d on the other; %d, %v", out.Len(), errs.Len(), code, err)
	}
}

// slow is a reader's end that takes a while before it takes anything.
type slow struct {
	bytes.Buffer
	wait <-chan struct{}
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.wait
	return s.Buffer.Write(b)
}

// The command has long ended when the client takes its output, of which pipes and windows hold only a part.
func TestExecDeliversToASlowClient(t *testing.T) {
	d := start(t, command(t, "")).Driver()
	if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		t.Fatal(err)
	}
	wait := make(chan struct{})
	time.AfterFunc(3*time.Second, func() { close(wait) }) // longer than the server waits for output that nobody writes
	out := &slow{wait: wait}
	const size = pb.FlowWindow + 100_000 // what is on its way, in the pipe, and a little more
	code, err := d.Exec(bounded(t), "w", []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}, driver.Streams{Out: out})
	if code != 0 || err != nil || out.Len() != size {
		t.Errorf("%d bytes came of %d; %d, %v", out.Len(), size, code, err)
	}
}

func TestExecEndsWithTheCommandAndNotWithTheInput(t *testing.T) {
	d := start(t, command(t, "")).Driver()
	if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
		t.Fatal(err)
	}
	never, w := io.Pipe()
	defer w.Close()
	if code, err := d.Exec(bounded(t), "w", []string{"/bin/sh", "-c", "exit 5"}, driver.Streams{In: never}); code != 5 || err != nil {
		t.Errorf("an input that stays open: %d, %v", code, err)
	}
	if code, err := d.Exec(bounded(t), "w", []string{"true"}, driver.Streams{In: bytes.NewReader(make([]byte, 4<<20))}); code != 0 || err != nil {
		t.Errorf("an input that is not read: %d, %v", code, err)
	}
	broken := errors.New("the disk is gone")
	if _, err := d.Exec(bounded(t), "w", []string{"cat"}, driver.Streams{In: io.MultiReader(strings.NewReader("x"), failing{broken})}); !errors.Is(err, broken) {
		t.Errorf("an input that breaks: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestExecFailures(t *testing.T) {
	for name, c := range map[string]struct {
		fault  runtimefake.Fault
		script string
		text   []string
	}{
		"signal":            {"", "kill -KILL $$", []string{"Exec by the runtime fake", "ended by the signal killed"}},
		"no exit":           {runtimefake.ExecNoExit, "true", []string{"the stream ended without an exit"}},
		"the runtime exits": {runtimefake.ExecCrashes, "true", []string{"the runtime ended during Exec", "exited with code 9", "fake: no more"}},
		"the runtime is killed": {"", "kill -KILL $PPID; sleep 600",
			[]string{"the runtime ended during Exec", "ended with code 137 (killed)"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, command(t, c.fault)).Driver()
			// Without files, Run needs no Exec.
			if _, err := d.Run(bounded(t), "w", driver.RunOptions{Image: "image:1"}); err != nil {
				t.Fatal(err)
			}
			_, err := d.Exec(bounded(t), "w", []string{"/bin/sh", "-c", c.script}, driver.Streams{})
			if err == nil {
				t.Fatal("it succeeded")
			}
			for _, part := range c.text {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q: %v", part, err)
				}
			}
		})
	}
}

func TestErrorsCarryTheirKind(t *testing.T) {
	c := command(t, "")
	c.Env = append(c.Env, "MICROSANDBOX_MEMORY=much")
	_, err := start(t, c).Driver().Run(bounded(t), "w", driver.RunOptions{Image: "image:1"})
	var e *pb.Error
	if !errors.As(err, &e) || e.Code != pb.InvalidArgument || !strings.Contains(e.Message, "MICROSANDBOX_MEMORY") {
		t.Errorf("got %v", err)
	}
}
