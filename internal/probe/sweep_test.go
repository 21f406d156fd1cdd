package probe

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseSweep(t *testing.T) {
	s := Sweep{Tries: []Try{{Name: "a", Outcome: OutcomeSilence}, {Name: "b", Outcome: OutcomeRefused, Errno: "ECONNREFUSED", Detail: "x", ElapsedMillis: 3}}}
	if got, err := ParseSweep(s.Line()); err != nil || !slices.Equal(got.Tries, s.Tries) {
		t.Errorf("%s is read as %+v, %v", s.Line(), got, err)
	}
	for _, bad := range []string{
		"", "{}\n", `{"tries":[]}`, `{"tries":[{"name":"a","outcome":"denied","errno":"","body":"","detail":"","elapsedMillis":1}]}` + "\n",
		string(s.Line()) + string(s.Line()),
	} {
		if got, err := ParseSweep([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestSweepArgs(t *testing.T) {
	got := strings.Join(SweepArgs([]Target{
		{Name: "six", Kind: KindTCP, Addr: netip.MustParseAddrPort("[2001:db8::10]:80")},
		{Name: "own", Kind: KindDNS, Addr: netip.MustParseAddrPort("1.2.3.4:53"), AtResolver: true},
	}, "n", time.Second, 2*time.Second), " ")
	if want := "sweep --nonce n --timeout 1s --silence 2s --try six=tcp:[2001:db8::10]:80 --try own=dns:resolver:53"; got != want {
		t.Errorf("the arguments are %q", got)
	}
}

// Nobody answers at an address of this machine where nobody listens: the kernel says so, and nothing else is made of it.
func TestSweepOfNobody(t *testing.T) {
	s := RunSweep([]Target{
		{Name: "tcp", Kind: KindTCP, Addr: netip.MustParseAddrPort("127.0.0.1:9")},
		{Name: "udp", Kind: KindUDP, Addr: netip.MustParseAddrPort("127.0.0.1:9")},
		{Name: "none", Kind: KindUDP, Addr: netip.MustParseAddrPort("192.0.2.1:9")},
	}, "n", time.Minute, 10*time.Millisecond)
	for i, want := range []Outcome{OutcomeRefused, OutcomeRefused, OutcomeNoRoute} {
		if s.Tries[i].Outcome != want {
			t.Errorf("%+v, want %s", s.Tries[i], want)
		}
	}
}

func TestReadDNS(t *testing.T) {
	query := dnsQuery("nonce")
	head := func(flags, rcode, questions, answers byte) []byte {
		return []byte{query[0], query[1], flags, rcode, 0, questions, 0, answers, 0, 0, 0, 0}
	}
	question := query[dnsHeader:]
	record := func(kind byte, data string) []byte {
		return append([]byte{0xc0, dnsHeader, 0, kind, 0, classIN, 0, 0, 0, 1, 0, byte(len(data))}, data...)
	}
	for name, test := range map[string]struct {
		answer []byte
		want   Outcome
		body   string
	}{
		"a text":                {slices.Concat(head(0x80, 0, 1, 1), question, record(typeTXT, "\x04word")), OutcomeBody, "word"},
		"a text after another":  {slices.Concat(head(0x80, 0, 1, 2), question, record(1, "abcd"), record(typeTXT, "\x04word")), OutcomeBody, "word"},
		"no such name":          {slices.Concat(head(0x80, rcodeName, 1, 0), question), OutcomeNoName, ""},
		"refused":               {slices.Concat(head(0x80, 5, 1, 0), question), OutcomeDNSError, "rcode 5"},
		"no text":               {slices.Concat(head(0x80, 0, 1, 1), question, record(1, "abcd")), OutcomeGarbage, ""},
		"cut off":               {slices.Concat(head(0x80, 0, 1, 1), question, []byte{0xc0}), OutcomeGarbage, ""},
		"a text that is longer": {slices.Concat(head(0x80, 0, 1, 1), question, record(typeTXT, "\x09word")), OutcomeGarbage, ""},
		"a query":               {slices.Concat(head(0, 0, 1, 0), question), "", ""},
		"another's":             {append([]byte{^query[0], query[1]}, head(0x80, 0, 1, 0)[2:]...), "", ""},
		"nothing":               {nil, "", ""},
	} {
		if got, body := readDNS(query, test.answer); got != test.want || body != test.body {
			t.Errorf("%s: %q, %q; want %q, %q", name, got, body, test.want, test.body)
		}
	}
}

func TestReadEcho(t *testing.T) {
	reply := append([]byte{0, 0, 0, 0, 0, 0, 0, 1}, "want"...)
	ip := append([]byte{0x45}, make([]byte, 19)...)
	for name, test := range map[string]struct {
		b     []byte
		isRaw bool
		want  Outcome
	}{
		"a reply":        {reply, false, OutcomeBody},
		"a raw reply":    {append(ip, reply...), true, OutcomeBody},
		"a request":      {append([]byte{8}, reply[1:]...), false, ""},
		"another's":      {reply[:len(reply)-1], false, ""},
		"too short":      {reply[:4], false, ""},
		"nothing at all": {nil, true, ""},
	} {
		if got, _ := readEcho(test.b, test.isRaw, "want"); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if b := echoRequest("n"); checksum(b) != 0 {
		t.Errorf("the checksum of an echo request is wrong: %x", b)
	}
}
