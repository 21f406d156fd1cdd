package standin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"dagger/parity/internal/fault"
)

// enforcement is what becomes of a guest's TCP connections to public addresses.
type enforcement struct {
	relay  func(*net.TCPConn) // takes every connection, established; nil: there is no relay
	refuse bool               // what is not taken is reset, else dropped
	leak   bool               // what is not taken is dialled all the same
}

// enforcement is what this boot of the sandbox enforces. Keeper and init work it out alike.
func (m machine) enforcement() enforcement {
	ignored := fault.On(fault.DenyIgnored) || fault.On(fault.PolicyNotActive) || fault.On(fault.PolicyLooser) || fault.On(fault.ProbeForged) ||
		fault.On(fault.DenyIgnoredAfterRestart) && m.Boots > 1 || fault.On(fault.DenyIgnoredAfterRecreation) && m.Recreated
	denied := m.DenyEgress && !ignored || fault.On(fault.ControlDenied)
	switch {
	case !denied && fault.On(fault.ExternalOtherPeer) && m.External:
		return enforcement{relay: forwardFrom("127.0.0.9"), refuse: true}
	case !denied:
		return enforcement{relay: forwardFrom(""), refuse: true}
	case fault.On(fault.ExternalResets) && m.External:
		return enforcement{relay: reset, refuse: true}
	case fault.On(fault.DenyProxy403):
		return enforcement{relay: answer403, refuse: true}
	case fault.On(fault.DenyAcceptClose):
		return enforcement{relay: hangUp, refuse: true}
	}
	return enforcement{refuse: !fault.On(fault.DenyDrops), leak: fault.On(fault.DenyLeaks)}
}

// guestAddress is the guest's own address.
var guestAddress = netip.MustParseAddr("172.16.0.6")

// private are the addresses that msb's default policy does not let a guest reach.
var private = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")

func prefixes(list ...string) (all []netip.Prefix) {
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// Modules are the kernel modules that the rules of guests' networks need.
var Modules = []string{"nf_tables", "nft_chain_nat", "nft_redir", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6"}

// makeNetwork configures the network namespace of a guest, the calling process's, and gives the socket to which its connections are
// redirected, and one that sees its packets if they are to leak.
//
// The guest has only its loopback interface, and takes every IPv4 address for one on it. So what it sends arrives in the guest itself:
// connections for the relay are redirected to the relay's socket, and a filter refuses whatever else is not for the guest.
func makeNetwork(e enforcement) (sockets []*os.File, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(guestAddress, 32))}); err != nil {
		return nil, fmt.Errorf("give the guest its address: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, err
	}
	all := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Type: unix.RTN_LOCAL,
		Scope: netlink.SCOPE_HOST, Src: guestAddress.AsSlice()}
	if err := netlink.RouteAdd(&all); err != nil {
		return nil, fmt.Errorf("add the guest's route: %w", err)
	}
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	sockets = append(sockets, f)
	if e.leak {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_IP)))
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, os.NewFile(uintptr(fd), "packets"))
	}
	if err := filter(e, l.Addr().(*net.TCPAddr).AddrPort().Port()); err != nil {
		return nil, fmt.Errorf("set the guest's nftables rules (the kernel needs nf_tables with nat and reject): %w", err)
	}
	return sockets, nil
}

// filter sets the nftables rules of a guest.
func filter(e enforcement, relayPort uint16) error {
	c := &nftables.Conn{}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "egress"})
	drop := nftables.ChainPolicyDrop
	input := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	rule := func(chain *nftables.Chain, exprs ...expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	tcp := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	for _, own := range []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.PrefixFrom(guestAddress, 32)} {
		rule(input, append(destination(own), accept)...)
	}
	if e.refuse {
		rule(input, append(tcp, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})...)
	}
	if e.relay != nil {
		output := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
		for _, p := range private {
			rule(output, append(destination(p), accept)...)
		}
		rule(output, append(tcp, &expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, relayPort)},
			&expr.Redir{RegisterProtoMin: 1})...)
	}
	return c.Flush()
}

// destination matches packets to a prefix.
func destination(p netip.Prefix) []expr.Any {
	const offset, size = 16, 4 // of the destination in an IPv4 header
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), 32), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()},
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

func htons(v uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)) }

// relay takes a guest's connections, which are established by then.
func relay(l net.Listener, take func(*net.TCPConn)) {
	if take == nil {
		return
	}
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
	if err != nil || isPrivate(to.Addr()) {
		_ = conn.SetLinger(0) // close by reset
		return
	}
	d := net.Dialer{Timeout: dialDeadline}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	dialled, err := d.Dial("tcp4", to.String())
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

// originalDestination is where the guest dialled, before the redirection.
func originalDestination(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
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

func isPrivate(a netip.Addr) bool {
	for _, p := range private {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// leak dials the destination of each of the guest's connections, whatever became of it.
func leak(packets *os.File) {
	buf := make([]byte, 1<<16)
	for {
		n, err := packets.Read(buf)
		if err != nil {
			return
		}
		to, ok := dialled(buf[:n])
		if !ok || isPrivate(to.Addr()) {
			continue
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), dialDeadline)
			defer cancel()
			var d net.Dialer
			if conn, err := d.DialContext(ctx, "tcp4", to.String()); err == nil {
				conn.Close()
			}
		}()
	}
}

// dialled tells where to an IPv4 packet opens a TCP connection, if it does.
func dialled(packet []byte) (netip.AddrPort, bool) {
	const syn, ack = 0x02, 0x10
	if len(packet) < 20 || packet[9] != unix.IPPROTO_TCP {
		return netip.AddrPort{}, false
	}
	segment := packet[min(int(packet[0]&0x0f)*4, len(packet)):]
	if len(segment) < 20 || segment[13]&(syn|ack) != syn {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[16:20])), binary.BigEndian.Uint16(segment[2:4])), true
}
