package probe

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Kind is what a try of a sweep sends.
type Kind string

// The kinds of tries.
const (
	KindTCP  Kind = "tcp"  // what DialTCP does
	KindTake Kind = "take" // the same, for as long as the silence: something may take the connection and not answer
	KindUDP  Kind = "udp"  // a datagram with the nonce in it
	KindDNS  Kind = "dns"  // a query over UDP for the TXT record of nonce.DNSZone
	KindICMP Kind = "icmp" // an echo request with the nonce in it
)

// Kinds lists every kind.
var Kinds = []Kind{KindTCP, KindTake, KindUDP, KindDNS, KindICMP}

// DNSZone is the domain of the names that a sweep asks for.
const DNSZone = "parity.test"

// payload begins what a datagram or an echo request of a sweep carries; the nonce follows.
const payload = "parity-probe "

// Payload is what a datagram or an echo request with a nonce carries.
func Payload(nonce string) string { return payload + nonce }

// NonceOf is the nonce of what Payload gave; empty for anything else.
func NonceOf(sent []byte) string {
	nonce, ok := strings.CutPrefix(string(sent), payload)
	if !ok {
		return ""
	}
	return nonce
}

// The outcomes of a try that is not TCP, besides those of TCP: OutcomeBody is an answer of the kind that was asked for, and
// OutcomeGarbage is one of another kind.
const (
	// OutcomeSilence: nothing came back before the deadline.
	OutcomeSilence Outcome = "silence"
	// OutcomeNoName: a DNS answer that says that the name does not exist.
	OutcomeNoName Outcome = "no-name"
	// OutcomeDNSError: a DNS answer with any other error.
	OutcomeDNSError Outcome = "dns-error"
)

// SweepOutcomes lists every outcome of a try.
var SweepOutcomes = append(append([]Outcome{}, Outcomes...), OutcomeSilence, OutcomeNoName, OutcomeDNSError)

// Resolver stands for an address: the first server of names that /etc/resolv.conf has. In a guest of MicroSandbox that is its gateway.
const Resolver = "resolver"

// Target is one destination of a sweep.
type Target struct {
	Name string
	Kind Kind
	Addr netip.AddrPort // KindICMP has no use for the port

	AtResolver bool // the address is that of Resolver, and only the port is Addr's
}

// Sweep is what `parity-probe sweep` reports.
type Sweep struct {
	Tries []Try `json:"tries"` // in the order of the targets
}

// Try is what became of one target.
type Try struct {
	Name          string  `json:"name"`
	Outcome       Outcome `json:"outcome"`
	Errno         string  `json:"errno"`
	Body          string  `json:"body"`   // what came back
	Detail        string  `json:"detail"` // what went wrong, in words
	ElapsedMillis int64   `json:"elapsedMillis"`
}

// Line is the line that the program prints, with its line feed.
func (s Sweep) Line() []byte {
	var o object
	o.key("tries")
	o = append(o, '[')
	for i, t := range s.Tries {
		if i > 0 {
			o = append(o, ',')
		}
		var one object
		one.text("name", t.Name)
		one.text("outcome", string(t.Outcome))
		one.text("errno", t.Errno)
		one.text("body", t.Body)
		one.text("detail", t.Detail)
		one.number("elapsedMillis", t.ElapsedMillis)
		o = append(append(o, one...), '}')
	}
	o = append(o, ']')
	return o.line()
}

// RunSweep tries all targets side by side with one nonce. A TCP try has the timeout, any other is over after the silence.
func RunSweep(targets []Target, nonce string, timeout, silence time.Duration) Sweep {
	resolver, resolverErr := firstResolver()
	s := Sweep{Tries: make([]Try, len(targets))}
	var all sync.WaitGroup
	for i, target := range targets {
		try := &s.Tries[i]
		try.Name = target.Name
		if target.AtResolver {
			if resolverErr != nil {
				try.fail(resolverErr)
				continue
			}
			target.Addr = netip.AddrPortFrom(resolver, target.Addr.Port())
		}
		all.Go(func() {
			started := time.Now()
			if target.Kind == KindTCP || target.Kind == KindTake {
				deadline := timeout
				if target.Kind == KindTake {
					deadline = silence
				}
				t := DialTCP(target.Addr, nonce, deadline)
				try.Outcome, try.Errno, try.Body, try.Detail = t.Outcome, t.Errno, t.Body, t.Detail
			} else if err := try.exchange(target, nonce, started.Add(silence)); err != nil {
				try.fail(err)
			}
			try.ElapsedMillis = time.Since(started).Milliseconds()
		})
	}
	all.Wait()
	return s
}

// firstResolver gives the address of the first server of names that this machine has.
func firstResolver() (netip.Addr, error) {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return netip.Addr{}, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "nameserver" {
			return netip.ParseAddr(fields[1])
		}
	}
	return netip.Addr{}, errors.New("/etc/resolv.conf names no server")
}

// sends is how often a datagram is sent: one can get lost where nothing denies it.
const sends = 3

// exchange sends the target's datagram until an answer is there, or the deadline.
func (t *Try) exchange(target Target, nonce string, deadline time.Time) error {
	conn, isRaw, err := openDatagram(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	message, read := exchangeOf(target.Kind, nonce, isRaw)
	var raw [4 << 10]byte
	for left := sends; ; {
		if _, err := conn.Write(message); err != nil {
			return err
		}
		left--
		wait := deadline
		if left > 0 {
			wait = time.Now().Add(time.Until(deadline) / time.Duration(left+1))
		}
		if err := conn.SetReadDeadline(wait); err != nil {
			return err
		}
		for {
			n, err := conn.Read(raw[:])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if left > 0 {
					break
				}
				t.Outcome = OutcomeSilence
				return nil
			}
			if err != nil {
				return err
			}
			if outcome, body := read(raw[:n]); outcome != "" {
				t.Outcome, t.Body = outcome, body
				return nil
			}
		}
	}
}

// openDatagram gives a connected socket for the target. An echo request goes by the kernel's socket for those where the user may have
// one, else by a raw one, whose answers begin with an IPv4 header.
func openDatagram(target Target) (conn *os.File, isRaw bool, err error) {
	ip, family := target.Addr.Addr().Unmap(), syscall.AF_INET6
	var to syscall.Sockaddr = &syscall.SockaddrInet6{Port: int(target.Addr.Port()), Addr: ip.As16()}
	if ip.Is4() {
		family = syscall.AF_INET
		to = &syscall.SockaddrInet4{Port: int(target.Addr.Port()), Addr: ip.As4()}
	}
	const flags = syscall.SOCK_NONBLOCK | syscall.SOCK_CLOEXEC
	kind, protocol := syscall.SOCK_DGRAM, 0
	if target.Kind == KindICMP {
		if !ip.Is4() {
			return nil, false, errors.New("an echo request goes to an IPv4 address")
		}
		protocol = syscall.IPPROTO_ICMP
	}
	fd, err := syscall.Socket(family, kind|flags, protocol)
	if err != nil && target.Kind == KindICMP {
		isRaw = true
		fd, err = syscall.Socket(family, syscall.SOCK_RAW|flags, protocol)
	}
	if err != nil {
		return nil, isRaw, err
	}
	if err := syscall.Connect(fd, to); err != nil {
		_ = syscall.Close(fd)
		return nil, isRaw, err
	}
	return os.NewFile(uintptr(fd), "socket"), isRaw, nil
}

// exchangeOf gives what to send, and what reads an answer: no outcome means that it is none.
func exchangeOf(kind Kind, nonce string, isRaw bool) (message []byte, read func([]byte) (Outcome, string)) {
	switch kind {
	case KindDNS:
		message = dnsQuery(nonce)
		return message, func(b []byte) (Outcome, string) { return readDNS(message, b) }
	case KindICMP:
		return echoRequest(nonce), func(b []byte) (Outcome, string) { return readEcho(b, isRaw, Payload(nonce)) }
	}
	return []byte(Payload(nonce)), func(b []byte) (Outcome, string) { return OutcomeBody, string(b) }
}

// echoRequest gives an ICMP echo request.
func echoRequest(nonce string) []byte {
	const echo = 8
	b := append([]byte{echo, 0, 0, 0, byte(os.Getpid() >> 8), byte(os.Getpid()), 0, 1}, Payload(nonce)...)
	sum := checksum(b)
	b[2], b[3] = byte(sum>>8), byte(sum)
	return b
}

// checksum is that of the internet protocols.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// readEcho reads an answer to an echo request with the payload want. A raw socket sees all that comes, requests too.
func readEcho(b []byte, isRaw bool, want string) (Outcome, string) {
	const header = 8
	if isRaw && len(b) > 0 {
		b = b[min(int(b[0]&0x0f)*4, len(b)):]
	}
	if len(b) < header || b[0] != 0 || string(b[header:]) != want {
		return "", ""
	}
	return OutcomeBody, string(b[header:])
}

// The parts of a DNS message that the probe needs.
const (
	dnsHeader  = 12
	typeTXT    = 16
	classIN    = 1
	rcodeNone  = 0
	rcodeName  = 3
	dnsPointer = 0xc0
)

// dnsQuery gives a query for the TXT record of nonce.DNSZone. The nonce is at most 63 bytes.
func dnsQuery(nonce string) []byte {
	b := []byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0} // recursion desired, one question
	id := time.Now().UnixNano()
	b[0], b[1] = byte(id>>8), byte(id)
	for label := range strings.SplitSeq(nonce+"."+DNSZone, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, typeTXT, 0, classIN)
}

// readDNS reads an answer to a query: the first text of its first TXT record.
func readDNS(query, b []byte) (Outcome, string) {
	if len(b) < dnsHeader || b[0] != query[0] || b[1] != query[1] || b[2]&0x80 == 0 {
		return "", "" // another query's, or no answer
	}
	switch b[3] & 0x0f {
	case rcodeNone:
	case rcodeName:
		return OutcomeNoName, ""
	default:
		return OutcomeDNSError, "rcode " + strconv.Itoa(int(b[3]&0x0f))
	}
	answers := int(b[6])<<8 | int(b[7])
	rest := b[dnsHeader:]
	for range int(b[4])<<8 | int(b[5]) {
		if rest = afterName(rest); len(rest) < 4 {
			return OutcomeGarbage, ""
		}
		rest = rest[4:]
	}
	for range answers {
		const fixed = 10 // type, class, time to live, length
		if rest = afterName(rest); len(rest) < fixed {
			return OutcomeGarbage, ""
		}
		kind, size := int(rest[0])<<8|int(rest[1]), int(rest[8])<<8|int(rest[9])
		if rest = rest[fixed:]; len(rest) < size {
			return OutcomeGarbage, ""
		}
		if data := rest[:size]; kind == typeTXT && size > 0 && int(data[0]) < size {
			return OutcomeBody, string(data[1 : 1+int(data[0])])
		}
		rest = rest[size:]
	}
	return OutcomeGarbage, ""
}

// afterName gives what follows a name in a DNS message.
func afterName(b []byte) []byte {
	for len(b) > 0 {
		size := int(b[0])
		switch {
		case size == 0:
			return b[1:]
		case size&dnsPointer == dnsPointer:
			return b[min(2, len(b)):]
		}
		b = b[min(size+1, len(b)):]
	}
	return nil
}

// fail sets the outcome, errno and detail for an error.
func (t *Try) fail(err error) {
	as := TCP{Stage: StageConnect}
	as.fail(err)
	t.Outcome, t.Errno, t.Detail = as.Outcome, as.Errno, as.Detail
}
