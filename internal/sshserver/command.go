package sshserver

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
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/proc"
)

// command is the process of one session and its group. It does not use proc.Run, which bounds how long output may take to be read
// once the process has exited: a slow client must get every byte.
type command struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr io.ReadCloser
	err    error // why it did not start

	mu     sync.Mutex
	reaped bool // its process group's number may belong to another group by now
}

func start(argv, env []string, dir string) *command {
	c := &command{cmd: exec.Command(argv[0], argv[1:]...)}
	c.cmd.Env, c.cmd.Dir = env, dir
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs [3]error
	c.stdin, errs[0] = c.cmd.StdinPipe()
	c.stdout, errs[1] = c.cmd.StdoutPipe()
	c.stderr, errs[2] = c.cmd.StderrPipe()
	// Start closes the pipes when it fails. Where a pipe could not be made, those that were are left to the garbage collector.
	if c.err = errors.Join(errs[:]...); c.err == nil {
		c.err = c.cmd.Start()
	}
	return c
}

// serve connects the command with the channel, waits for its end (or ends it once closed is closed), leaves nothing of its group
// behind, delivers the rest of the output and the exit status, and closes the channel.
func (c *command) serve(channel ssh.Channel, closed <-chan struct{}) {
	defer channel.Close()
	if c.err != nil {
		where := c.cmd.Dir
		if where == "" {
			where = "the server's folder"
		}
		fmt.Fprintf(channel.Stderr(), "cannot start %s in %s: %v\n", c.cmd.Path, where, c.err)
		sendExit(channel, 127<<8)
		return
	}
	go func() {
		_, _ = io.Copy(c.stdin, channel)
		c.stdin.Close()
	}()
	var output sync.WaitGroup
	output.Go(func() { forward(channel, c.stdout.(*os.File)) })
	output.Go(func() { forward(channel.Stderr(), c.stderr.(*os.File)) })

	exited := make(chan struct{})
	go func() {
		c.awaitExit()
		close(exited)
	}()
	select {
	case <-exited:
	case <-closed:
		_ = c.kill(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(proc.Grace):
			_ = c.kill(syscall.SIGKILL)
			<-exited
		}
	}
	status := c.endGroup()
	c.stdin.Close()
	interrupt(c.stdout.(*os.File))
	interrupt(c.stderr.(*os.File))
	output.Wait()
	sendExit(channel, status)
}

// signal sends a client's signal to the process group, and tells whether it is one that is served.
func (c *command) signal(name string) bool {
	switch name {
	case "TERM", "INT", "HUP", "KILL", "QUIT":
		return c.err == nil && c.kill(unix.SignalNum("SIG"+name)) == nil
	}
	return false
}

// kill signals the process group, unless its number may be another's by now.
func (c *command) kill(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return syscall.ESRCH
	}
	return syscall.Kill(-c.cmd.Process.Pid, s)
}

// awaitExit waits until the process has exited and does not reap it: its number, which is its group's, stays taken.
func (c *command) awaitExit() {
	for {
		err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// endGroup reaps the process, which has exited, and ends what it left in its group.
func (c *command) endGroup() syscall.WaitStatus {
	_ = c.kill(syscall.SIGTERM)
	c.mu.Lock()
	state, err := c.cmd.Process.Wait()
	c.reaped = true
	c.mu.Unlock()

	// The others are not children of this process, so there is nothing to wait on: look until they are gone. While one of
	// them is there, the number stays the group's.
	group, deadline := c.cmd.Process.Pid, time.Now().Add(proc.Grace)
	for groupLives(group) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(-group, syscall.SIGKILL)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		return 255 << 8
	}
	return state.Sys().(syscall.WaitStatus)
}

// groupLives tells whether the process group has a process that has not exited. One that has exited and is still to be reaped by
// init, which may take its time, does not count.
func groupLives(group int) bool {
	if syscall.Kill(-group, 0) != nil {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, _ := os.ReadFile(path)
		// "pid (name) state parent group ...", and the name may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return len(stats) == 0
}

// forward copies what the command writes to the client, however slow it is, until every writer has closed the pipe, the client
// has gone, or interrupt was called and what was in the pipe is delivered.
func forward(to io.Writer, pipe *os.File) {
	// A command whose client has gone gets SIGPIPE.
	defer pipe.Close()
	if _, err := io.Copy(to, pipe); !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	// All that the process group wrote is in the pipe by now. A process that left the group may hold the pipe open for
	// ever, so the end of file may never come.
	if pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	var left int
	_ = raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err == nil && left > 0 {
		_, _ = io.CopyN(to, pipe, int64(left))
	}
}

// interrupt makes forward deliver what is in the pipe and stop.
func interrupt(pipe *os.File) { _ = pipe.SetReadDeadline(time.Unix(1, 0)) }

// sendExit tells the client how the command ended.
func sendExit(channel ssh.Channel, status syscall.WaitStatus) {
	if status.Signaled() {
		_, _ = channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal     string
			CoreDumped bool
			Message    string
			Language   string
		}{Signal: strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG"), CoreDumped: status.CoreDump()}))
		return
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(status.ExitStatus())}))
}
