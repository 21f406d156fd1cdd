package standin

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is a version of the internet protocol.
type family struct {
	table    nftables.TableFamily
	loopback netip.Addr
	own      []netip.Prefix // the guest's own addresses
	offset   uint32         // of the destination in a header
}

var families = []family{
	{nftables.TableFamilyIPv4, netip.MustParseAddr("127.0.0.1"),
		[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.PrefixFrom(guestAddress, 32)}, 16},
	{nftables.TableFamilyIPv6, netip.IPv6Loopback(),
		[]netip.Prefix{netip.PrefixFrom(netip.IPv6Loopback(), 128), netip.PrefixFrom(guestAddress6, 128)}, 24},
}

// has tells whether a prefix is of the family.
func (f family) has(p netip.Prefix) bool { return p.Addr().BitLen() == f.loopback.BitLen() }

// filter sets the nftables rules of a guest: the TCP connections that a rule of the policy allows are
// redirected to the relay's port, and of all else what is not for the guest itself is refused or dropped.
func (f family) filter(e enforcement, relayPort uint16) error {
	c := &nftables.Conn{}
	table := c.AddTable(&nftables.Table{Family: f.table, Name: "egress"})
	drop := nftables.ChainPolicyDrop
	input := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	add := func(chain *nftables.Chain, exprs ...expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	for _, own := range f.own {
		add(input, append(f.destination(own), accept)...)
	}
	if e.refuse {
		add(input, append(isTCP(), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})...)
	}
	output := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	for _, own := range f.own {
		add(output, append(f.destination(own), accept)...)
	}
	redirect := []expr.Any{
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, relayPort)}, &expr.Redir{RegisterProtoMin: 1},
	}
	add(output, slices.Concat(isTCP(), toPorts(span{dnsPort, dnsPort}), redirect)...)
	for i, r := range e.rules {
		if r.Direction == "ingress" || len(r.Protocols) > 0 && !slices.Contains(r.Protocols, "tcp") {
			continue
		}
		verdict := redirect
		if r.Action == "deny" {
			verdict = []expr.Any{accept} // and the input chain refuses it
		}
		chain := c.AddChain(&nftables.Chain{Name: fmt.Sprintf("rule-%d", i), Table: table})
		in, out := r.Destination.addresses()
		for _, p := range out {
			if f.has(p) {
				add(chain, append(f.destination(p), &expr.Verdict{Kind: expr.VerdictReturn})...)
			}
		}
		for _, p := range in {
			for _, ports := range orAll(r.Ports) {
				if f.has(p) {
					add(chain, slices.Concat(f.destination(p), isTCP(), toPorts(ports), verdict)...)
				}
			}
		}
		add(output, &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name})
	}
	return c.Flush()
}

// orAll gives ranges of ports, and the range of all of them for none.
func orAll(ports []span) []span {
	if len(ports) == 0 {
		return []span{{0, 65535}}
	}
	return ports
}

func isTCP() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
}

// toPorts matches TCP segments to a range of ports.
func toPorts(s span) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binary.BigEndian.AppendUint16(nil, s.Start), ToData: binary.BigEndian.AppendUint16(nil, s.End)},
	}
}

// destination matches packets to a prefix.
func (f family) destination(p netip.Prefix) []expr.Any {
	size := uint32(f.loopback.BitLen() / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}
