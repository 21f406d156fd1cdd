package standin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
)

// enforcement is what becomes of what a guest sends.
type enforcement struct {
	rules  []rule             // what they allow gets out
	relay  func(*net.TCPConn) // takes a TCP connection that is allowed, which is established by then
	refuse bool               // a TCP connection that is not allowed is reset, else dropped
	leak   bool               // a TCP connection that is not allowed is made all the same
}

// enforcement is what this boot of the sandbox enforces. Keeper and init work it out alike.
func (m machine) enforcement() enforcement {
	e := enforcement{rules: m.rulesInForce(), relay: forwardFrom(""), refuse: true}
	denied := len(e.rules) == 0
	switch {
	case !denied && fault.On(fault.ExternalOtherPeer) && m.External:
		e.relay = forwardFrom("127.0.0.9")
	case !denied:
	case fault.On(fault.ExternalResets) && m.External:
		e.rules, e.relay = mustParse("allow@public:tcp"), reset
	case fault.On(fault.DenyProxy403):
		e.rules, e.relay = mustParse("allow@public:tcp"), answer403
	case fault.On(fault.DenyProxy443):
		e.rules, e.relay = mustParse("allow@public:tcp:443"), answer403
	case fault.On(fault.DenyAcceptClose):
		e.rules, e.relay = mustParse("allow@public:tcp"), hangUp
	default:
		e.refuse, e.leak = !fault.On(fault.DenyDrops), fault.On(fault.DenyLeaks)
	}
	return e
}

// The guest's own addresses, and that of its gateway, by which it reaches the loopback interface of the lab.
var (
	guestAddress   = netip.MustParseAddr("172.16.0.6")
	guestAddress6  = netip.MustParseAddr("fd42:6d73:62::6")
	gatewayAddress = netip.MustParseAddr("172.16.0.5")
)

// Modules are the kernel modules that the rules of guests' networks need.
var Modules = []string{"nf_tables", "nft_chain_nat", "nft_redir", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6"}

// makeNetwork configures the network namespace of a guest, the calling process's, and gives the sockets by which the keeper does what is
// left to do, in the order of the constants below.
//
// The guest has only its loopback interface, and takes every address for one on it. So what it sends arrives in the guest itself: TCP
// connections for the relay are redirected to the relay's sockets, the keeper reads all IPv4 packets and answers those of other protocols,
// and a filter refuses or drops whatever else is not for the guest.
func makeNetwork(e enforcement) (sockets []*os.File, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, err
	}
	for _, f := range []struct{ own, all netip.Prefix }{
		{netip.PrefixFrom(guestAddress, 32), netip.MustParsePrefix("0.0.0.0/0")},
		{netip.PrefixFrom(guestAddress6, 128), netip.MustParsePrefix("::/0")},
	} {
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(f.own), Flags: unix.IFA_F_NODAD}); err != nil {
			return nil, fmt.Errorf("give the guest the address %s: %w", f.own, err)
		}
		all := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(f.all), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
			Scope: netlink.SCOPE_HOST, Src: f.own.Addr().AsSlice()}
		if err := netlink.RouteAdd(&all); err != nil {
			return nil, fmt.Errorf("add the guest's route %s: %w", f.all, err)
		}
	}
	for _, family := range families {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(family.loopback, 0)))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		f, err := l.File()
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, f)
		if err := family.filter(e, l.Addr().(*net.TCPAddr).AddrPort().Port()); err != nil {
			return nil, fmt.Errorf("set the guest's nftables rules (the kernel needs nf_tables with nat and reject): %w", err)
		}
	}
	for _, socket := range []struct{ family, kind, protocol int }{
		{unix.AF_PACKET, unix.SOCK_DGRAM, int(htons(unix.ETH_P_IP))}, {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW},
	} {
		fd, err := unix.Socket(socket.family, socket.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, socket.protocol)
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, os.NewFile(uintptr(fd), "packets"))
	}
	return sockets, nil
}

// The places of the sockets that makeNetwork gives. Those before are the relay's.
const (
	socketPackets = 2 // reads the guest's IPv4 packets
	socketRaw     = 3 // sends IPv4 packets to the guest
)

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// relay takes a guest's connections, which are established by then.
func relay(l net.Listener, take func(*net.TCPConn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go take(conn.(*net.TCPConn))
	}
}

// dialDeadline bounds how long a destination may take to answer. The guest's connection stalls meanwhile.
const dialDeadline = 30 * time.Second

// forwardFrom gives what forwards a guest's connections from a local address; empty leaves it to the kernel.
func forwardFrom(from string) func(*net.TCPConn) {
	return func(conn *net.TCPConn) { forward(conn, from) }
}

// reset ends a connection with a reset.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}

// forward dials the destination of a guest's connection from here, and passes bytes both ways. A destination that cannot be reached
// resets the connection: the guest never sees it refused, as with msb.
func forward(conn *net.TCPConn, from string) {
	defer conn.Close()
	to, err := originalDestination(conn)
	if err != nil {
		_ = conn.SetLinger(0) // close by reset
		return
	}
	to = behindGateway(to)
	d := net.Dialer{Timeout: dialDeadline}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	dialled, err := d.Dial("tcp", to.String())
	if err != nil {
		_ = conn.SetLinger(0)
		return
	}
	upstream := dialled.(*net.TCPConn)
	defer upstream.Close()
	ended := make(chan bool, 2)
	pass := func(dst, src *net.TCPConn) {
		_, err := io.Copy(dst, src)
		if err != nil {
			_ = dst.SetLinger(0)
			_ = src.SetLinger(0)
			dst.Close()
			src.Close()
		} else {
			_ = dst.CloseWrite()
		}
		ended <- true
	}
	go pass(upstream, conn)
	pass(conn, upstream)
	<-ended
	<-ended
}

// besidesDNS gives what takes a guest's connections, save those to the port of DNS: like msb, it takes them whatever the policy, and waits
// for a query. Over TCP the stand-in answers none.
func besidesDNS(take func(*net.TCPConn)) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		if to, err := originalDestination(conn); err == nil && to.Port() == dnsPort {
			hangUpLater(conn)
			return
		}
		take(conn)
	}
}

// hangUpLater ends a connection once the other side has, or at a deadline.
func hangUpLater(conn *net.TCPConn) {
	_ = conn.SetReadDeadline(time.Now().Add(dialDeadline))
	_, _ = io.Copy(io.Discard, conn)
	conn.Close()
}

// answer403 answers as a proxy does that denies.
func answer403(conn *net.TCPConn) {
	const body = "denied by proxy\n"
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	hangUp(conn)
}

// hangUp ends a connection without a reset.
func hangUp(conn *net.TCPConn) {
	_ = conn.CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(dialDeadline))
	_, _ = io.Copy(io.Discard, conn) // what is unread at a close becomes a reset
	conn.Close()
}

// behindGateway is where the lab's host is dialled for what a guest dialled.
func behindGateway(to netip.AddrPort) netip.AddrPort {
	if to.Addr() == gatewayAddress {
		return netip.AddrPortFrom(families[0].loopback, to.Port())
	}
	return to
}

// originalDestination is where the guest dialled, before the redirection.
func originalDestination(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	if conn.LocalAddr().(*net.TCPAddr).IP.To4() == nil {
		var info *unix.IPv6MTUInfo // begins with a sockaddr_in6
		var infoErr error
		err = raw.Control(func(fd uintptr) {
			info, infoErr = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
		})
		if err = errors.Join(err, infoErr); err != nil {
			return netip.AddrPort{}, err
		}
		port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port))
		return netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), port), nil
	}
	var name *unix.IPv6Mreq // of the size of a sockaddr_in
	var nameErr error
	err = raw.Control(func(fd uintptr) { name, nameErr = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST) })
	if err = errors.Join(err, nameErr); err != nil {
		return netip.AddrPort{}, err
	}
	b := name.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}
