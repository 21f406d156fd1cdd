package sshserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"dagger/parity/internal/sshserver"
)

// limit bounds what must happen at all; how fast is not asserted.
const limit = time.Minute

// pair gives both ends of a socket pair. The server's end is in blocking mode, as a device's is: closing it does not end a read.
func pair(t *testing.T) (server *os.File, client net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fds[1]), "client")
	client, err = net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return os.NewFile(uintptr(fds[0]), "server"), client
}

// dial serves o and gives a client of it, and what Serve returned once it has.
func dial(t *testing.T, ctx context.Context, o sshserver.Options) (*ssh.Client, <-chan error) {
	t.Helper()
	server, stream := pair(t)
	served := make(chan error, 1)
	go func() {
		defer close(served)
		served <- sshserver.Serve(ctx, server, o)
	}()
	conn, channels, requests, err := ssh.NewClientConn(stream, "test", &ssh.ClientConfig{
		User:            "anybody",
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	client := ssh.NewClient(conn, channels, requests)
	t.Cleanup(func() {
		client.Close()
		await(t, "Serve to return", served)
	})
	return client, served
}

func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(limit):
		t.Fatalf("waited %s for %s", limit, what)
	}
	return v
}

// awaitGone waits until no process has the number pid. The orphans of a command are reaped by init, in its own time.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there: %s", pid, stat)
		}
	}
}

func session(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a command to its end.
func run(t *testing.T, c *ssh.Client, command, stdin string) (stdout, stderr string, err error) {
	t.Helper()
	s := session(t, c)
	var out, errs bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = strings.NewReader(stdin), &out, &errs
	done := make(chan error, 1)
	go func() { done <- s.Run(command) }()
	err = await(t, "the end of "+command, done)
	return out.String(), errs.String(), err
}

func TestCommand(t *testing.T) {
	dir := t.TempDir()
	client, _ := dial(t, t.Context(), sshserver.Options{Dir: dir, Env: append(os.Environ(), "A=server", "B=server")})
	for _, c := range []struct {
		command, stdin, stdout, stderr string
		code                           int
		signal                         string
	}{
		{command: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{command: "exit 23", code: 23},
		{command: "kill -KILL $$", code: 128 + 9, signal: "KILL"},
		{command: "kill -TERM $$", code: 128 + 15, signal: "TERM"},
		{command: "cat; echo the end", stdin: "in\n", stdout: "in\nthe end\n"},
		{command: "pwd", stdout: dir + "\n"},
		{command: "/no/such/program 2>/dev/null", code: 127},
		{command: "true </dev/null", stdin: strings.Repeat("unread", 1<<18)},
	} {
		stdout, stderr, err := run(t, client, c.command, c.stdin)
		var exit *ssh.ExitError
		code, signal := 0, ""
		if errors.As(err, &exit) {
			code, signal = exit.ExitStatus(), exit.Signal()
		} else if err != nil && !errors.Is(err, io.EOF) { // EOF: the command left input unread
			t.Errorf("%s: %v", c.command, err)
		}
		if stdout != c.stdout || stderr != c.stderr || code != c.code || signal != c.signal {
			t.Errorf("%s:\n got %q, %q, code %d, signal %q\nwant %q, %q, code %d, signal %q",
				c.command, stdout, stderr, code, signal, c.stdout, c.stderr, c.code, c.signal)
		}
	}
}

func TestEnvironment(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{Env: []string{"A=server", "B=server"}})
	s := session(t, client)
	if err := s.Setenv("A", "client's own"); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output(`echo "$A, $B, ${HOME-none}"`); err != nil || string(out) != "client's own, server, none\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestShell(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{})
	s := session(t, client)
	var out bytes.Buffer
	s.Stdin, s.Stdout = strings.NewReader("echo shell\nexit 5\n"), &out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 5 || out.String() != "shell\n" {
		t.Errorf("got %q, %v; want the output \"shell\\n\" and exit code 5", out.String(), err)
	}
}

func TestCannotStart(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{Dir: "/no/such/folder"})
	_, stderr, err := run(t, client, "true", "")
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 127 || !strings.Contains(stderr, "/no/such/folder") {
		t.Errorf("got %q, %v; want exit code 127 and the folder named", stderr, err)
	}
}

func TestBinaryRoundTrip(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{})
	random := make([]byte, 1<<20)
	rand.New(rand.NewSource(1)).Read(random)
	for _, command := range []string{"cat", "tee /dev/stderr"} {
		stdout, stderr, err := run(t, client, command, string(random))
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		if stdout != string(random) {
			t.Errorf("%s: the standard output differs from the input: %d of %d bytes", command, len(stdout), len(random))
		}
		if command != "cat" && stderr != string(random) {
			t.Errorf("%s: the standard error differs from the input: %d of %d bytes", command, len(stderr), len(random))
		}
	}
}

// firstInt reads a line with a number.
func firstInt(t *testing.T, r io.Reader) int {
	t.Helper()
	line := make(chan string, 1)
	go func() {
		var b [1]byte
		var text []byte
		for b[0] != '\n' {
			if _, err := r.Read(b[:]); err != nil {
				break
			}
			text = append(text, b[0])
		}
		line <- strings.TrimSpace(string(text))
	}()
	text := await(t, "a line with a number", line)
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("want a number, got %q", text)
	}
	return n
}

func TestSignals(t *testing.T) {
	// A shell that runs tests in the background has them ignore signals, which the commands would inherit. One that is asked for they get
	// with its default action.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(asked)
	client, _ := dial(t, t.Context(), sshserver.Options{})
	for _, sent := range []ssh.Signal{ssh.SIGTERM, ssh.SIGINT, ssh.SIGHUP, ssh.SIGKILL, ssh.SIGQUIT} {
		s := session(t, client)
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		// The child of the shell must get the signal as well: it is the group's.
		if err := s.Start("ulimit -c 0; sh -c 'echo $$; exec sleep 1000'; :"); err != nil {
			t.Fatal(err)
		}
		child := firstInt(t, out)
		if err := s.Signal(sent); err != nil {
			t.Fatal(err)
		}
		var exit *ssh.ExitError
		if err := s.Wait(); !errors.As(err, &exit) || exit.Signal() != string(sent) {
			t.Errorf("%s: got %v", sent, err)
		}
		awaitGone(t, child)
	}
}

func TestSessionEndEndsItsGroup(t *testing.T) {
	for name, prefix := range map[string]string{"TERM": "", "KILL": "trap '' TERM; "} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, served := dial(t, t.Context(), sshserver.Options{})
			ended := func(end func(*ssh.Session)) {
				s := session(t, client)
				out, err := s.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Start(prefix + "sleep 1000 & echo $!; echo $$; wait"); err != nil {
					t.Fatal(err)
				}
				child, shell := firstInt(t, out), firstInt(t, out)
				end(s)
				awaitGone(t, shell)
				awaitGone(t, child)
			}
			ended(func(s *ssh.Session) { s.Close() })
			if out, _, err := run(t, client, "echo the connection lives", ""); err != nil || out == "" {
				t.Errorf("after a session was closed: %q, %v", out, err)
			}
			ended(func(*ssh.Session) {
				client.Close()
				if err := await(t, "Serve to return", served); err != nil {
					t.Errorf("Serve returned %v after the client hung up", err)
				}
			})
		})
	}
}

func TestCommandEndEndsWhatItLeft(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{})
	out, _, err := run(t, client, "sleep 1000 & echo $!", "")
	if err != nil {
		t.Fatal(err)
	}
	awaitGone(t, firstInt(t, strings.NewReader(out)))
}

func TestDaemonDoesNotHoldTheSession(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{Dir: t.TempDir()})
	out, _, err := run(t, client, `setsid sh -c 'echo $$ >daemon; exec sleep 1000' &
		while ! [ -s daemon ]; do sleep 0.01; done; cat daemon; echo the last words`, "")
	if err != nil || !strings.HasSuffix(out, "the last words\n") {
		t.Fatalf("got %q, %v", out, err)
	}
	pid := firstInt(t, strings.NewReader(out))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the daemon should have outlived its session: %v", err)
	}
	awaitGone(t, pid)
}

func TestUnreadSessionBlocksNoOther(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{})
	s := session(t, client)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("exec yes"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if out, _, err := run(t, client, "echo through", ""); err != nil || out != "through\n" {
			t.Fatalf("got %q, %v", out, err)
		}
	}
	if _, err := io.CopyN(io.Discard, out, 8<<20); err != nil {
		t.Errorf("reading on: %v", err)
	}
}

func TestSlowClientGetsEveryByte(t *testing.T) {
	dir := t.TempDir()
	client, _ := dial(t, t.Context(), sshserver.Options{Dir: dir})
	s := session(t, client)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// More than the channel's window, which is 2 MiB, and less than that and the pipe: the command can exit unread.
	const size = 2<<20 + 32<<10
	if err := s.Start(fmt.Sprintf("echo $$ >pid.new; mv pid.new pid; exec head -c %d /dev/zero", size)); err != nil {
		t.Fatal(err)
	}
	var pid int
	for deadline := time.Now().Add(limit); pid == 0; time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil {
			pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	awaitGone(t, pid)
	if n, err := io.Copy(io.Discard, out); n != size || err != nil {
		t.Errorf("got %d of %d bytes, %v", n, size, err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	client, _ := dial(t, t.Context(), sshserver.Options{})
	s := session(t, client)
	if err := s.RequestPty("xterm", 24, 80, nil); err == nil {
		t.Error("a terminal was granted")
	}
	if err := s.RequestSubsystem("sftp"); err == nil {
		t.Error("a sub-system was granted")
	}
	if out, err := s.Output("echo still usable"); err != nil || string(out) != "still usable\n" {
		t.Errorf("after the refusals: %q, %v", out, err)
	}
	if conn, err := client.Dial("tcp", "127.0.0.1:1"); err == nil {
		conn.Close()
		t.Error("a forwarding was granted")
	} else if open := (*ssh.OpenChannelError)(nil); !errors.As(err, &open) {
		t.Errorf("want a refused channel, got %v", err)
	}
}

// A request of the connection's own is answered as the options say; without them it is refused.
func TestGlobalRequests(t *testing.T) {
	answers := func(name string) ([]byte, bool) { return []byte("to " + name), name == "known" }
	for _, test := range []struct {
		name    string
		options sshserver.Options
		ok      bool
		payload string
	}{
		{"known", sshserver.Options{Global: answers}, true, "to known"},
		{"unknown", sshserver.Options{Global: answers}, false, ""},
		{"known", sshserver.Options{}, false, ""},
	} {
		client, _ := dial(t, t.Context(), test.options)
		ok, payload, err := client.SendRequest(test.name, true, nil)
		if err != nil || ok != test.ok || ok && string(payload) != test.payload {
			t.Errorf("%s: %t, %q, %v", test.name, ok, payload, err)
		}
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, served := dial(t, ctx, sshserver.Options{})
	s := session(t, client)
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo $$; exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	pid := firstInt(t, out)
	cancel()
	if err := await(t, "Serve to return", served); !errors.Is(err, context.Canceled) {
		t.Errorf("Serve returned %v", err)
	}
	awaitGone(t, pid)
}

// A client that stops reading the byte stream itself must not keep Serve from ending.
func TestCancelWhileTheStreamIsFull(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, stream := pair(t)
	served := make(chan error, 1)
	go func() { served <- sshserver.Serve(ctx, client, sshserver.Options{}) }()
	stuck := &stuckReader{Conn: stream, stop: make(chan struct{})}
	conn, channels, requests, err := ssh.NewClientConn(stuck, "test",
		&ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, ssh.NewClient(conn, channels, requests))
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("echo $$; exec yes"); err != nil {
		t.Fatal(err)
	}
	pid := firstInt(t, out)
	close(stuck.stop)
	// The command sleeps in a write once the pipe, the channel and the socket are full.
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		wchan, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(wchan), "1 ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the command never blocked: %s", wchan)
		}
	}
	cancel()
	if err := await(t, "Serve to return", served); !errors.Is(err, context.Canceled) {
		t.Errorf("Serve returned %v", err)
	}
	awaitGone(t, pid)
}

// stuckReader stops reading once stop is closed.
type stuckReader struct {
	net.Conn
	stop chan struct{}
}

func (s *stuckReader) Read(b []byte) (int, error) {
	select {
	case <-s.stop:
		select {}
	default:
		return s.Conn.Read(b)
	}
}

func TestNotSSH(t *testing.T) {
	server, stream := pair(t)
	served := make(chan error, 1)
	go func() { served <- sshserver.Serve(t.Context(), server, sshserver.Options{}) }()
	if _, err := io.WriteString(stream, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	stream.(*net.UnixConn).CloseWrite()
	if err := await(t, "Serve to return", served); err == nil || !strings.Contains(err.Error(), "SSH handshake") {
		t.Errorf("Serve returned %v", err)
	}
}
