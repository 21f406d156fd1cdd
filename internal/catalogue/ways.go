package catalogue

// Way is a way out of a guest that the cases of egress look at besides the endpoint.
type Way struct {
	Name string
	To   string // what is sent where
	Open bool   // MicroSandbox's default policy lets it through

	// Why it is not open. A control workspace then cannot show that the way works: only the host does.
	Why string

	// Taken tells that MicroSandbox itself takes the connection and waits, also where egress is denied. Then a connection that is
	// established shows nothing: what counts is that nothing arrives.
	Taken bool
}

// Ways are all of them, in the order in which they are tried.
var Ways = []Way{
	{Name: "tcp-443", To: "TCP to port 443 of the endpoint's address", Open: true},
	{Name: "tcp-80", To: "TCP to port 80 of the endpoint's address", Open: true},
	{Name: "tcp-22", To: "TCP to port 22 of the endpoint's address", Open: true},
	{Name: "tcp-53", To: "TCP to port 53 of the endpoint's address, with a request that is not DNS",
		Why: "MicroSandbox takes what comes to port 53 for DNS", Taken: true},
	{Name: "tcp-other-port", To: "TCP to a second random port of the endpoint's address", Open: true},
	{Name: "tcp-second-address", To: "TCP to an address of another documentation range, 198.51.100.10", Open: true},
	{Name: "tcp-ipv6", To: "TCP to an IPv6 address of a documentation range, 2001:db8::10", Open: true},
	{Name: "tcp-private", To: "TCP to a private address, 10.203.0.10", Why: "the default policy denies private addresses"},
	{Name: "tcp-host-loopback", To: "TCP to the guest's gateway, behind which is the host's loopback address",
		Why: "the default policy denies the host"},
	{Name: "tcp-metadata", To: "TCP to port 80 of 169.254.169.254", Why: "the default policy denies the metadata address"},
	{Name: "udp", To: "UDP to the endpoint's address", Open: true},
	{Name: "dns", To: "a DNS query to a resolver on the endpoint's address", Open: true},
	{Name: "dns-own-resolver", To: "a DNS query to the guest's own resolver, which asks that of the host", Open: true},
	{Name: "icmp", To: "an ICMP echo request to the endpoint's address", Open: true},
}
