package probe_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// The flags of a TCP header.
const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// resetWhileConnecting plays the peer at an address that is nobody's. Linux reports a reset of its SYN as ECONNREFUSED; ECONNRESET
// takes a peer that opens at the same time, and then resets. So the peer answers a SYN with a SYN, and the SYN-ACK with a reset.
func resetWhileConnecting(t *testing.T, peer netip.Addr) {
	t.Helper()
	const ipv4 = 0x0800
	tap, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(ipv4>>8|ipv4<<8&0xffff))
	if err != nil {
		t.Fatal(err)
	}
	out, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-done
		for _, fd := range []int{tap, out, stop} {
			_ = unix.Close(fd)
		}
	})
	go func() {
		defer close(done)
		packet := make([]byte, 2048)
		for {
			ready := []unix.PollFd{{Fd: int32(tap), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
			if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
				t.Error(err)
				return
			}
			if ready[1].Revents != 0 {
				return
			}
			if ready[0].Revents == 0 {
				continue
			}
			n, _, err := unix.Recvfrom(tap, packet, 0)
			if err != nil {
				t.Error(err)
				return
			}
			if reply, ok := answer(packet[:n], peer); ok {
				dst := &unix.SockaddrInet4{Addr: [4]byte(reply[16:20])}
				if err := unix.Sendto(out, reply, 0, dst); err != nil {
					t.Error(err)
				}
			}
		}
	}()
}

// answer gives the peer's next packet after one that was sent to it.
func answer(packet []byte, peer netip.Addr) (reply []byte, ok bool) {
	if len(packet) < 40 || packet[9] != unix.IPPROTO_TCP || netip.AddrFrom4([4]byte(packet[16:20])) != peer {
		return nil, false
	}
	tcp := packet[int(packet[0]&15)*4:]
	const isn = 1000
	seq, flags := uint32(isn), byte(flagSYN)
	if tcp[13]&flagACK != 0 {
		seq, flags = isn+1, flagRST
	}
	reply = make([]byte, 40) // an IPv4 header, whose checksum and id the kernel sets, and a TCP header without options
	reply[0], reply[8], reply[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(reply[2:], 40)
	copy(reply[12:16], packet[16:20])
	copy(reply[16:20], packet[12:16])
	segment := reply[20:]
	copy(segment[0:2], tcp[2:4])
	copy(segment[2:4], tcp[0:2])
	binary.BigEndian.PutUint32(segment[4:], seq)
	segment[12], segment[13] = 5<<4, flags
	binary.BigEndian.PutUint16(segment[14:], 1<<15)
	sum := uint32(unix.IPPROTO_TCP + len(segment)) // of the pseudo header: protocol, length and, below, both addresses
	for i := 12; i < 40; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(reply[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(segment[16:], ^uint16(sum))
	return reply, true
}
