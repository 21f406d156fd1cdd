package probe_test

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/probe"
)

// ample is a time-out that no probe below is meant to reach.
const ample = 30 * time.Second

func probeTCP(t *testing.T, addr netip.AddrPort, timeout time.Duration) probe.TCP {
	t.Helper()
	stdout, _ := run(t, 0, probe.TCPArgs(addr, "n-1", timeout)...)
	got, err := probe.ParseTCP([]byte(stdout))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// serve gives the address of a server that runs handle on each connection, and closes it then. The server ends with the test.
func serve(t *testing.T, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return
			}
			handle(conn)
			conn.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// readRequest reads the request to its end, so that a later close of the connection is not a reset.
func readRequest(conn net.Conn) (request string) {
	r := bufio.NewReader(conn)
	for !strings.HasSuffix(request, "\r\n\r\n") {
		line, err := r.ReadString('\n')
		if err != nil {
			return request
		}
		request += line
	}
	return request
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// untilClosed waits until the client has closed the connection.
func untilClosed(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestAnswers(t *testing.T) {
	ok := func(body string) string { return "HTTP/1.1 200 OK\r\nX: y\r\n\r\n" + body }
	nasty := "line\nfeed \"quoted\" \\ \x00 tab\t é"
	tests := map[string]struct {
		answer string
		then   func(net.Conn) // instead of closing at once
		want   probe.TCP
	}{
		"body":                   {ok("hello"), nil, probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: "hello"}},
		"body of odd bytes":      {ok(nasty), nil, probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: nasty}},
		"body not UTF-8":         {ok("a\xffb"), nil, probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: "a\uFFFDb"}},
		"body, left open":        {"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", untilClosed, probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: "hi"}},
		"body cut short":         {"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nhi", nil, probe.TCP{Outcome: probe.OutcomeBody, Status: 200, Body: "hi", Detail: "the body ended before its Content-Length"}},
		"no body":                {ok(""), nil, probe.TCP{Outcome: probe.OutcomeHTTP, Status: 200, Detail: "HTTP status 200"}},
		"a proxy's 403":          {"HTTP/1.1 403 Forbidden\r\n\r\nno", nil, probe.TCP{Outcome: probe.OutcomeHTTP, Status: 403, Body: "no", Detail: "HTTP status 403"}},
		"end of file":            {"", nil, probe.TCP{Outcome: probe.OutcomeEOF, Detail: "the connection was closed without an answer"}},
		"another protocol":       {"SSH-2.0-x\r\n", untilClosed, probe.TCP{Outcome: probe.OutcomeGarbage, Body: "SSH-2.0-x\r\n", Detail: "the answer is not HTTP, or ends before its header does"}},
		"a header without end":   {"HTTP/1.1 200 OK\r\nX", nil, probe.TCP{Outcome: probe.OutcomeGarbage, Body: "HTTP/1.1 200 OK\r\nX", Detail: "the answer is not HTTP, or ends before its header does"}},
		"a status of no meaning": {"HTTP/1.1 OK\r\n\r\nhello", nil, probe.TCP{Outcome: probe.OutcomeGarbage, Body: "HTTP/1.1 OK\r\n\r\nhello", Detail: "the answer is not HTTP, or ends before its header does"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			requests := make(chan string, 1)
			addr := serve(t, func(conn *net.TCPConn) {
				requests <- readRequest(conn)
				_, _ = io.WriteString(conn, test.answer)
				if test.then != nil {
					test.then(conn)
				}
			})
			got := probeTCP(t, addr, ample)
			if local, err := netip.ParseAddrPort(got.LocalAddr); err != nil || local.Addr() != addr.Addr() {
				t.Errorf("expected a local address at %s, got %q", addr.Addr(), got.LocalAddr)
			}
			if want := "GET /probe/n-1 HTTP/1.0\r\nHost: " + addr.String() + "\r\n"; !strings.HasPrefix(<-requests, want) {
				t.Errorf("expected the request to start with %q", want)
			}
			got.LocalAddr, got.ElapsedMillis = "", 0
			if test.want.Stage = probe.StageRead; got != test.want {
				t.Errorf("\nexpected %+v\ngot      %+v", test.want, got)
			}
		})
	}
}

func TestEndlessAnswerIsCut(t *testing.T) {
	addr := serve(t, func(conn *net.TCPConn) {
		readRequest(conn)
		_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\n")
		for chunk := strings.Repeat("x", 1<<16); ; {
			if _, err := io.WriteString(conn, chunk); err != nil {
				return
			}
		}
	})
	got := probeTCP(t, addr, ample)
	if got.Outcome != probe.OutcomeBody || len(got.Body) < 60<<10 || len(got.Body) > 64<<10 {
		t.Errorf("expected a body of about 64 KiB, got outcome %s and %d bytes", got.Outcome, len(got.Body))
	}
}

func TestFailures(t *testing.T) {
	network := newNetwork(t)
	tests := map[string]struct {
		addr    netip.AddrPort
		timeout time.Duration
		want    probe.TCP // of which Outcome, Stage, Errno, Status and Body are compared
	}{
		"refused": {closedPort(t), ample,
			probe.TCP{Outcome: probe.OutcomeRefused, Stage: probe.StageConnect, Errno: "ECONNREFUSED"}},
		"refused over IPv6": {netip.AddrPortFrom(netip.IPv6Loopback(), closedPort(t).Port()), ample,
			probe.TCP{Outcome: probe.OutcomeRefused, Stage: probe.StageConnect, Errno: "ECONNREFUSED"}},
		"reset": {serve(t, func(conn *net.TCPConn) { readRequest(conn); reset(conn) }), ample,
			probe.TCP{Outcome: probe.OutcomeReset, Stage: probe.StageRead, Errno: "ECONNRESET"}},
		"reset in the body": {serve(t, func(conn *net.TCPConn) {
			readRequest(conn)
			_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nhi")
			// The reset would overtake the bytes if the client had not read them.
			for queued := 1; queued > 0; {
				_ = withFD(conn, func(fd int) { queued, _ = unix.IoctlGetInt(fd, unix.TIOCOUTQ) })
			}
			reset(conn)
		}), ample, probe.TCP{Outcome: probe.OutcomeReset, Stage: probe.StageRead, Errno: "ECONNRESET", Status: 200, Body: "hi"}},
		"reset while connecting": {network.resets, ample,
			probe.TCP{Outcome: probe.OutcomeResetConnecting, Stage: probe.StageConnect, Errno: "ECONNRESET"}},
		"stalled after accept": {serve(t, func(conn *net.TCPConn) { untilClosed(conn) }), 2 * time.Second,
			probe.TCP{Outcome: probe.OutcomeTimeout, Stage: probe.StageRead}},
		"stalled in the body": {serve(t, func(conn *net.TCPConn) {
			_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\nhi")
			untilClosed(conn)
		}), 2 * time.Second, probe.TCP{Outcome: probe.OutcomeTimeout, Stage: probe.StageRead, Status: 200, Body: "hi"}},
		"black hole": {network.blackHole, 200 * time.Millisecond,
			probe.TCP{Outcome: probe.OutcomeTimeoutConnecting, Stage: probe.StageConnect}},
		"unreachable": {network.unreachable, ample,
			probe.TCP{Outcome: probe.OutcomeNoRoute, Stage: probe.StageConnect, Errno: "EHOSTUNREACH"}},
		"no route": {netip.MustParseAddrPort("192.0.2.1:80"), ample,
			probe.TCP{Outcome: probe.OutcomeNoRoute, Stage: probe.StageConnect, Errno: "ENETUNREACH"}},
		"prohibited": {network.prohibited, ample,
			probe.TCP{Outcome: probe.OutcomeError, Stage: probe.StageConnect, Errno: "EACCES"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := probeTCP(t, test.addr, test.timeout)
			if got.Detail == "" {
				t.Error("expected a detail, got none")
			}
			if (got.LocalAddr != "") != (test.want.Stage != probe.StageConnect) {
				t.Errorf("expected a local address exactly when connected, got %q at stage %s", got.LocalAddr, got.Stage)
			}
			got.Detail, got.LocalAddr, got.ElapsedMillis = "", "", 0
			if got != test.want {
				t.Errorf("\nexpected %+v\ngot      %+v", test.want, got)
			}
		})
	}
}

// A reset at once after the handshake may reach the client before it sees that it is connected: still not a refusal.
func TestResetAtOnceIsNeverWhileConnecting(t *testing.T) {
	addr := serve(t, reset)
	for range 30 {
		if got := probeTCP(t, addr, ample); got.Outcome != probe.OutcomeReset || got.Stage == probe.StageConnect {
			t.Fatalf("expected %s after the connection was established, got %+v", probe.OutcomeReset, got)
		}
	}
}

func TestProxyVariablesAreIgnored(t *testing.T) {
	var seen atomic.Int32
	proxy := serve(t, func(*net.TCPConn) { seen.Add(1) })
	addr := serve(t, func(conn *net.TCPConn) {
		readRequest(conn)
		_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\ndirect")
	})
	var env []string
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"} {
		env = append(env, name+"=http://"+proxy.String())
	}
	stdout, _ := runEnv(t, env, 0, probe.TCPArgs(addr, "n", ample)...)
	got, err := probe.ParseTCP([]byte(stdout))
	if err != nil || got.Body != "direct" || seen.Load() != 0 {
		t.Errorf("expected the body past the proxy, got %+v, %v, and %d connections to the proxy", got, err, seen.Load())
	}
}

func withFD(conn syscall.Conn, do func(fd int)) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { do(int(fd)) })
}

// network is a set of addresses, in the tests' own namespace, that fail in ways a listener cannot.
type network struct{ blackHole, unreachable, prohibited, resets netip.AddrPort }

func newNetwork(t *testing.T) network {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddr("203.0.113.10")
	addr, err := netlink.ParseAddr(own.String() + "/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.AddrDel(lo, addr) })
	add := func(to string, kind int) netip.AddrPort {
		dst, err := netlink.ParseIPNet(to + "/32")
		if err != nil {
			t.Fatal(err)
		}
		route := &netlink.Route{Dst: dst, Type: kind}
		if kind == unix.RTN_UNICAST {
			route.LinkIndex, route.Scope, route.Src = lo.Attrs().Index, netlink.SCOPE_LINK, own.AsSlice()
		}
		if err := netlink.RouteAdd(route); err != nil {
			t.Fatalf("route to %s: %v", to, err)
		}
		t.Cleanup(func() { _ = netlink.RouteDel(route) })
		return netip.AddrPortFrom(netip.MustParseAddr(to), 80)
	}
	n := network{
		// What is sent over the loopback link to an address that is nobody's comes in again and is dropped.
		blackHole:   add("203.0.113.50", unix.RTN_UNICAST),
		resets:      add("203.0.113.51", unix.RTN_UNICAST),
		unreachable: add("203.0.113.52", unix.RTN_UNREACHABLE),
		prohibited:  add("203.0.113.53", unix.RTN_PROHIBIT),
	}
	resetWhileConnecting(t, n.resets.Addr())
	return n
}
