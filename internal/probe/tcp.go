package probe

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// DialTCP connects to addr, sends one HTTP/1.0 request for /probe/nonce, and says what happened. The timeout is for all of it. The
// address must be valid, without a zone, with a port; the nonce must be fit for a path. Proxy variables are never looked at.
func DialTCP(addr netip.AddrPort, nonce string, timeout time.Duration) (t TCP) {
	started := time.Now()
	defer func() { t.ElapsedMillis = time.Since(started).Milliseconds() }()

	t.Stage = StageConnect
	fd, err := beginConnect(addr)
	if err != nil {
		t.fail(err)
		return t
	}
	conn := os.NewFile(uintptr(fd), "socket") // non-blocking, so it has deadlines
	defer conn.Close()
	established, err := finishConnect(conn, fd, started.Add(timeout))
	if established {
		t.Stage = StageWrite
		t.LocalAddr = localAddr(fd)
	}
	if err != nil {
		t.fail(err)
		return t
	}
	request := "GET /probe/" + nonce + " HTTP/1.0\r\nHost: " + addr.String() + "\r\nConnection: close\r\n\r\n"
	if _, err := conn.WriteString(request); err != nil {
		t.fail(err)
		return t
	}
	t.Stage = StageRead
	t.read(conn)
	return t
}

// beginConnect gives a socket that is connecting, or the error that the kernel had at once. The net package is left out: it is
// a third of the program, and would keep errors of connecting and of an established connection less well apart.
func beginConnect(addr netip.AddrPort) (fd int, err error) {
	ip, family := addr.Addr().Unmap(), syscall.AF_INET6
	var to syscall.Sockaddr = &syscall.SockaddrInet6{Port: int(addr.Port()), Addr: ip.As16()}
	if ip.Is4() {
		family = syscall.AF_INET
		to = &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}
	}
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := syscall.Connect(fd, to); err != nil && err != syscall.EINPROGRESS && err != syscall.EINTR {
		_ = syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// finishConnect waits until the socket is connected, has failed, or is at its deadline, which holds for later reads and writes too.
// An established connection can come with an error.
func finishConnect(conn *os.File, fd int, deadline time.Time) (established bool, err error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return false, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var failed error
	err = raw.Write(func(uintptr) bool {
		code, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
		if err == nil && code != 0 {
			err = syscall.Errno(code)
		}
		if err != nil {
			failed = err
			return true
		}
		// Writable, or a peer name, would not do: a socket has both too when it has only seen the peer's SYN.
		return tcpInfo(fd).connected()
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return tcpInfo(fd).acknowledged(), err
	}
	return true, nil
}

// socketInfo is the kernel's struct tcp_info, of which the probe reads two fields.
type socketInfo [256]byte

func tcpInfo(fd int) (info socketInfo) {
	size := uint32(len(info))
	_, _, _ = syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return info // zero when it failed: neither connected nor acknowledged
}

// connected goes by tcpi_state: anything but none, SYN_SENT, SYN_RECV and CLOSE.
func (i socketInfo) connected() bool {
	return i[0] != 0 && i[0] != 2 && i[0] != 3 && i[0] != 7
}

// acknowledged says whether the peer has acknowledged the SYN, which tcpi_bytes_acked counts as one. A reset that comes right after
// the handshake can reach the socket before this program sees it connected, and then looks like the connect's own failure.
func (i socketInfo) acknowledged() bool {
	return [8]byte(i[120:]) != [8]byte{}
}

func localAddr(fd int) string {
	local, _ := syscall.Getsockname(fd)
	switch a := local.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	}
	return ""
}

// read reads the answer and sets the outcome, and the status and body as far as they came.
func (t *TCP) read(conn io.Reader) {
	var raw [maxBytes]byte
	var got answer
	var ended error
	size := 0
	for ended == nil && size < len(raw) && got.mayGoOn() {
		var n int
		n, ended = conn.Read(raw[size:])
		size += n
		got = parseAnswer(raw[:size])
	}
	t.Status, t.Body = got.status, string(got.body)
	switch {
	case ended != nil && ended != io.EOF:
		t.fail(ended)
	case size == 0:
		t.Outcome, t.Detail = OutcomeEOF, "the connection was closed without an answer"
	case got.status == 0:
		t.Outcome, t.Detail = OutcomeGarbage, "the answer is not HTTP, or ends before its header does"
	case got.status == 200 && len(got.body) > 0:
		t.Outcome = OutcomeBody
		if len(got.body) < got.length {
			t.Detail = "the body ended before its Content-Length"
		}
	default:
		t.Outcome, t.Detail = OutcomeHTTP, "HTTP status "+strconv.Itoa(got.status)
	}
}

// answer is what came of an HTTP answer so far.
type answer struct {
	status int    // 0 when the header has not ended, or is none
	length int    // the Content-Length, or -1
	body   []byte // everything, when status is 0
}

// mayGoOn says whether more is worth waiting for. It is not once a Content-Length is reached, or what came cannot be the start of
// HTTP: a peer that greets in another protocol and then waits would cost the whole deadline.
func (a answer) mayGoOn() bool {
	if a.status == 0 {
		const start = "HTTP/1."
		n := min(len(a.body), len(start))
		return string(a.body[:n]) == start[:n]
	}
	return a.length < 0 || len(a.body) < a.length
}

func parseAnswer(raw []byte) answer {
	a := answer{length: -1, body: raw}
	head, body, ended := bytes.Cut(raw, []byte("\r\n\r\n"))
	if !ended || !a.mayGoOn() {
		return a
	}
	first, header, _ := strings.Cut(string(head), "\r\n")
	_, first, _ = strings.Cut(first, " ")
	code, _, _ := strings.Cut(first, " ")
	status, err := strconv.Atoi(code)
	if err != nil || status < 100 || status > 999 {
		return a
	}
	a.status, a.body = status, body
	for line := range strings.SplitSeq(header, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "Content-Length") {
			if length, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				a.length = length
			}
		}
	}
	return a
}

// fail sets the outcome, errno and detail for an error at the stage reached.
func (t *TCP) fail(err error) {
	t.Detail = err.Error()
	errno, isErrno := errors.AsType[syscall.Errno](err)
	if isErrno {
		t.Errno = errnoName(errno)
	}
	connecting := t.Stage == StageConnect
	switch {
	case connecting && errno == syscall.ECONNREFUSED:
		t.Outcome = OutcomeRefused
	case connecting && errno == syscall.ECONNRESET:
		t.Outcome = OutcomeResetConnecting
	case !connecting && (errno == syscall.ECONNRESET || errno == syscall.EPIPE):
		t.Outcome = OutcomeReset
	case errors.Is(err, os.ErrDeadlineExceeded), errno == syscall.ETIMEDOUT:
		t.Outcome = OutcomeTimeout
		if connecting {
			t.Outcome = OutcomeTimeoutConnecting
		}
	case errno == syscall.ENETUNREACH, errno == syscall.EHOSTUNREACH, errno == syscall.ENETDOWN, errno == syscall.EHOSTDOWN,
		errno == syscall.ENONET:
		t.Outcome = OutcomeNoRoute
	default:
		t.Outcome = OutcomeError
	}
}

// errnoName is the symbolic name of an errno that a TCP client can meet, or "errno N".
func errnoName(errno syscall.Errno) string {
	switch errno {
	case syscall.EPERM:
		return "EPERM"
	case syscall.EACCES:
		return "EACCES"
	case syscall.EINVAL:
		return "EINVAL"
	case syscall.EMFILE:
		return "EMFILE"
	case syscall.ENOMEM:
		return "ENOMEM"
	case syscall.ENOBUFS:
		return "ENOBUFS"
	case syscall.EPIPE:
		return "EPIPE"
	case syscall.EPROTO:
		return "EPROTO"
	case syscall.EAFNOSUPPORT:
		return "EAFNOSUPPORT"
	case syscall.EADDRNOTAVAIL:
		return "EADDRNOTAVAIL"
	case syscall.ENONET:
		return "ENONET"
	case syscall.ENETDOWN:
		return "ENETDOWN"
	case syscall.ENETUNREACH:
		return "ENETUNREACH"
	case syscall.EHOSTDOWN:
		return "EHOSTDOWN"
	case syscall.EHOSTUNREACH:
		return "EHOSTUNREACH"
	case syscall.ECONNABORTED:
		return "ECONNABORTED"
	case syscall.ECONNREFUSED:
		return "ECONNREFUSED"
	case syscall.ECONNRESET:
		return "ECONNRESET"
	case syscall.ETIMEDOUT:
		return "ETIMEDOUT"
	}
	return "errno " + strconv.Itoa(int(errno))
}
