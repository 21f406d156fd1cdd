package standin

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// packets does for a guest's IPv4 packets what msb does: UDP and echo requests that the policy allows are passed on from here, and what
// comes back is sent to the guest. What is not allowed gets no answer, save a DNS query: its name does not exist.
type packets struct {
	from, to *os.File // the guest's packets, and packets for the guest
	enforcement
}

// dnsPort is the port of DNS, which the policy is not asked about by itself: it holds for each query.
const dnsPort = 53

// answerDeadline bounds how long an answer to a packet is waited for.
const answerDeadline = 5 * time.Second

// pass reads the guest's packets until it ends.
func (p packets) pass() {
	buf := make([]byte, 1<<16)
	for {
		n, err := p.from.Read(buf)
		if err != nil {
			return
		}
		h, err := ipv4.ParseHeader(buf[:n])
		if err != nil {
			continue
		}
		dst, _ := netip.AddrFromSlice(h.Dst.To4())
		if h.Len > n || slices.ContainsFunc(families[0].own, func(own netip.Prefix) bool { return own.Contains(dst) }) {
			continue
		}
		body := slices.Clone(buf[h.Len:n])
		switch h.Protocol {
		case unix.IPPROTO_TCP:
			if p.leak && opens(body) {
				go dialBriefly(netip.AddrPortFrom(dst, binary.BigEndian.Uint16(body[2:4])))
			}
		case unix.IPPROTO_UDP:
			go p.passUDP(dst, body)
		case unix.IPPROTO_ICMP:
			go p.passEcho(dst, body)
		}
	}
}

// opens tells whether a TCP segment opens a connection.
func opens(segment []byte) bool {
	const syn, ack, header = 0x02, 0x10, 20
	return len(segment) >= header && segment[13]&(syn|ack) == syn
}

// dialBriefly makes a connection and closes it.
func dialBriefly(to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(context.Background(), dialDeadline)
	defer cancel()
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "tcp4", to.String()); err == nil {
		conn.Close()
	}
}

// allows tells whether the policy lets a packet out.
func (e enforcement) allows(protocol string, dst netip.Addr, port uint16) bool {
	for _, r := range e.rules {
		in, out := r.Destination.addresses()
		has := func(p netip.Prefix) bool { return p.Contains(dst) }
		if r.Direction != "ingress" && slices.ContainsFunc(in, has) && !slices.ContainsFunc(out, has) &&
			(len(r.Protocols) == 0 || slices.Contains(r.Protocols, protocol)) &&
			slices.ContainsFunc(orAll(r.Ports), func(s span) bool { return s.Start <= port && port <= s.End }) {
			return r.Action == "allow"
		}
	}
	return false
}

// passUDP passes on a datagram of the guest and what comes back.
func (p packets) passUDP(dst netip.Addr, datagram []byte) {
	const header = 8
	if len(datagram) < header {
		return
	}
	source, port, body := binary.BigEndian.Uint16(datagram), binary.BigEndian.Uint16(datagram[2:]), datagram[header:]
	back := func(answer []byte) {
		d := binary.BigEndian.AppendUint16(nil, port)
		d = binary.BigEndian.AppendUint16(d, source)
		d = binary.BigEndian.AppendUint16(d, uint16(header+len(answer)))
		p.send(dst, unix.IPPROTO_UDP, append(append(d, 0, 0), answer...)) // without a checksum, which IPv4 lets be
	}
	if !p.allows("udp", dst, port) {
		if answer := noSuchName(body); port == dnsPort && answer != nil {
			back(answer)
		}
		return
	}
	to := behindGateway(netip.AddrPortFrom(dst, port))
	if port == dnsPort && dst == gatewayAddress {
		var err error
		if to, err = labResolver(); err != nil {
			return
		}
	}
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerDeadline))
	if _, err := conn.Write(body); err != nil {
		return
	}
	answer := make([]byte, 1<<16)
	for {
		n, err := conn.Read(answer)
		if err != nil {
			return
		}
		back(answer[:n])
	}
}

// noSuchName answers a DNS query; nil where it is none.
func noSuchName(query []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil
	}
	m.Response, m.RCode, m.Additionals = true, dnsmessage.RCodeNameError, nil
	answer, _ := m.Pack() // what was read can be written
	return answer
}

// labResolver gives the lab's first server of names.
func labResolver() (netip.AddrPort, error) {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return netip.AddrPort{}, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "nameserver" {
			addr, err := netip.ParseAddr(fields[1])
			return netip.AddrPortFrom(addr, 53), err
		}
	}
	return netip.AddrPort{}, os.ErrNotExist
}

// passEcho passes on an echo request of the guest and its answer.
func (p packets) passEcho(dst netip.Addr, message []byte) {
	m, err := icmp.ParseMessage(unix.IPPROTO_ICMP, message)
	if err != nil || m.Type != ipv4.ICMPTypeEcho || !p.allows("icmpv4", dst, 0) {
		return
	}
	conn, err := icmp.ListenPacket("udp4", "0.0.0.0") // the kernel's socket for echo requests, as msb has it
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerDeadline))
	if _, err := conn.WriteTo(message, &net.UDPAddr{IP: dst.AsSlice()}); err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	n, _, err := conn.ReadFrom(buf)
	if err != nil {
		return
	}
	answer, err := icmp.ParseMessage(unix.IPPROTO_ICMP, buf[:n])
	if err != nil {
		return
	}
	echo, ok := answer.Body.(*icmp.Echo)
	asked, okAsked := m.Body.(*icmp.Echo)
	if !ok || !okAsked {
		return
	}
	echo.ID = asked.ID // the socket has one of its own
	if reply, err := answer.Marshal(nil); err == nil {
		p.send(dst, unix.IPPROTO_ICMP, reply)
	}
}

// send sends a packet to the guest as if it came from an address.
func (p packets) send(from netip.Addr, protocol int, body []byte) {
	if len(body) == 0 {
		return
	}
	h := ipv4.Header{
		Version: ipv4.Version, Len: ipv4.HeaderLen, TotalLen: ipv4.HeaderLen + len(body), TTL: 64, Protocol: protocol,
		Src: from.AsSlice(), Dst: guestAddress.AsSlice(),
	}
	head, err := h.Marshal()
	if err != nil {
		return
	}
	raw, err := p.to.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // the guest may have ended
		_ = unix.Sendto(int(fd), append(head, body...), unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: guestAddress.As4()})
	})
}
