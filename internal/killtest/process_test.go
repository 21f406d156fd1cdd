package killtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for something to happen. It is far above what a busy machine takes: it only ends a test that hangs.
const patience = 4 * time.Minute

// running is a run of parity that was started.
type running struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer // to be read once it has ended
	ended  chan struct{}

	mu      sync.Mutex
	stderr  bytes.Buffer
	changed chan struct{} // closed and made anew at each change of stderr
	master  *os.File      // of the terminal, if it has one
}

// start starts the command with its standard error in a pipe, line by line as in CI.
func start(t *testing.T, c *exec.Cmd) *running {
	t.Helper()
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return launch(t, c, pr, pw)
}

// startOnTerminal starts the command in a session of its own, with a wide terminal as its standard error and controlling terminal: its
// progress tells what each lab has begun.
func startOnTerminal(t *testing.T, c *exec.Cmd) *running {
	t.Helper()
	master, slave, err := openTerminal()
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
	r := launch(t, c, master, slave)
	r.master = master
	return r
}

// launch starts the command with theirs as its standard error, and reads ours.
func launch(t *testing.T, c *exec.Cmd, ours, theirs *os.File) *running {
	t.Helper()
	r := &running{cmd: c, ended: make(chan struct{}), changed: make(chan struct{})}
	c.Stdout, c.Stderr = &r.stdout, theirs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() { r.kill() })
	var reading sync.WaitGroup
	reading.Go(func() {
		_, _ = io.Copy(r, ours) // of a terminal it ends with an error
		ours.Close()
	})
	go func() {
		_ = c.Wait() // how it ended is in its state
		reading.Wait()
		close(r.ended)
	}()
	return r
}

// Write takes what comes on standard error.
func (r *running) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stderr.Write(b)
	close(r.changed)
	r.changed = make(chan struct{})
	return len(b), nil
}

// said gives what was printed to standard error so far.
func (r *running) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stderr.String()
}

// awaitSaid waits until standard error has the text.
func (r *running) awaitSaid(t *testing.T, text string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		has, changed := strings.Contains(r.stderr.String(), text), r.changed
		r.mu.Unlock()
		if has {
			return
		}
		select {
		case <-changed:
		case <-r.ended:
			if !strings.Contains(r.said(), text) {
				t.Fatalf("it ended (%s) and never said %q, but:\n%s", r.cmd.ProcessState, text, r.said())
			}
			return
		case <-timeout:
			t.Fatalf("it has not said %q, but:\n%s", text, r.said())
		}
	}
}

func (r *running) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// killGroup kills its whole process group.
func (r *running) killGroup() {
	_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	<-r.ended
}

// killed tells whether SIGKILL ended it.
func (r *running) killed() bool {
	status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL
}

// childrenOf lists the processes that a process has started.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that has ended
		}
		for _, field := range strings.Fields(string(list)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, child)
		}
	}
	return children
}

// wait waits for its end and gives the exit code, or -1 if a signal ended it.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Fatalf("it has not ended, and said:\n%s", r.said())
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *running) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatalf("send %s: %v", s, err)
	}
}

// openTerminal opens a pseudo-terminal that is 400 columns wide.
func openTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 400})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
	}
	return master, slave, err
}

// watchFolder gives a function that waits until a file or folder whose name begins so was made in dir.
func watchFolder(t *testing.T, dir, prefix string) awaiter {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		_, err = unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO)
	}
	if err != nil {
		t.Fatalf("watch %s: %v", dir, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(t *testing.T, r *running) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for time.Now().Before(deadline) {
			for _, name := range readNames(fd) {
				if strings.HasPrefix(name, prefix) {
					return
				}
			}
			select {
			case <-r.ended:
				t.Fatalf("it ended (%s) and made no %s* in %s; it said:\n%s", r.cmd.ProcessState, prefix, dir, r.said())
			default:
			}
		}
		t.Fatalf("it made no %s* in %s", prefix, dir)
	}
}

// readNames waits a moment for events of an inotify descriptor, and gives the names in them.
func readNames(fd int) (names []string) {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
	if n < 1 || err != nil && !errors.Is(err, unix.EINTR) {
		return nil
	}
	var buf [16 << 10]byte
	n, err = unix.Read(fd, buf[:])
	if err != nil {
		return nil
	}
	for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
		end := unix.SizeofInotifyEvent + int(event.Len)
		names = append(names, string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00")))
		rest = rest[end:]
	}
	return names
}

// awaitFile waits until there is a file.
func awaitFile(t *testing.T, r *running, path string) {
	t.Helper()
	wait := watchFolder(t, filepath.Dir(path), filepath.Base(path))
	if _, err := os.Stat(path); err == nil {
		return
	}
	wait(t, r)
}
