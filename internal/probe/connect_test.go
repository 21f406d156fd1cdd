package probe

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The race that TestResetAtOnceIsNeverWhileConnecting runs by luck, here for sure: the reset is there before the client looks.
func TestResetSeenByTheConnectIsAfterTheHandshake(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := beginConnect(l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		t.Fatal(err)
	}
	conn := os.NewFile(uintptr(fd), "socket")
	defer conn.Close()
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	if err := accepted.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	accepted.Close()
	pending := []unix.PollFd{{Fd: int32(fd)}}
	if n, err := unix.Poll(pending, 10_000); n != 1 || pending[0].Revents&unix.POLLERR == 0 {
		t.Fatalf("expected the reset to arrive, got %v, %v", pending, err)
	}
	established, err := finishConnect(conn, fd, time.Now().Add(10*time.Second))
	if err != syscall.ECONNRESET || !established {
		t.Errorf("expected ECONNRESET of an established connection, got %v, established %v", err, established)
	}
}
