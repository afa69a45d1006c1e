package leak

import (
	"net/netip"
	"slices"
)

// IP protocol numbers (IANA) that rules and findings name.
const (
	ICMP   = 1
	IGMP   = 2
	IPIP   = 4
	TCP    = 6
	UDP    = 17
	IP6IP  = 41
	ICMPv6 = 58
)

// Rules are the allow-list. The zero value allows ARP and neighbour discovery only.
type Rules struct {
	// Inner are the ranges of pods and services, whose addresses must never be seen.
	Inner []netip.Prefix
	// Nodes are the underlay addresses between which tunnel UDP is allowed.
	Nodes []netip.Addr
	// TunnelPort is the UDP port of tunnels. A tunnel packet has it as source or destination port.
	TunnelPort uint16
	// Canary is in all payloads of the cluster and must never be seen. Empty disables the search.
	Canary []byte
	// EgressCanary is in payloads to Outside and must be seen nowhere else.
	EgressCanary []byte
	// Outside are hosts outside the cluster. Packets to and from them may contain anything but
	// Canary.
	Outside []netip.Addr
	// Flows are the allowed flows of the test itself.
	Flows []Flow
	// MaxFrame is the length in bytes of the longest allowed frame; 0 means no limit. A longer
	// frame is not segmented yet, so the packets that will be on the wire were not judged.
	MaxFrame int
}

// Flow allows packets of a protocol from or to a server, which has Addr and Port. An address in
// Inner or a canary in such a packet is still a leak.
type Flow struct {
	Name  string
	Proto uint8
	Addr  netip.Addr
	// Port is 0 for protocols without ports, and to allow all ports.
	Port uint16
}

// clone returns a copy with slices of its own, except the canaries.
func (r *Rules) clone() *Rules {
	c := *r
	c.Inner = slices.Clone(r.Inner)
	c.Nodes = slices.Clone(r.Nodes)
	c.Outside = slices.Clone(r.Outside)
	c.Flows = slices.Clone(r.Flows)
	return &c
}

func (r *Rules) inner(a netip.Addr) bool {
	for _, p := range r.Inner {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func (r *Rules) flow(p *packet) (string, bool) {
	for _, f := range r.Flows {
		if f.Proto != p.proto {
			continue
		}
		if f.Addr == p.src && (f.Port == 0 || f.Port == p.srcPort) ||
			f.Addr == p.dst && (f.Port == 0 || f.Port == p.dstPort) {
			return f.Name, true
		}
	}
	return "", false
}

// Kind is the kind of a frame according to Classify.
type Kind string

// Kinds that are allowed.
const (
	Tunnel Kind = "tunnel"
	// TunnelError is an ICMP error that quotes the beginning of a tunnel packet, for example
	// because the port has no listener yet.
	TunnelError Kind = "tunnel-error"
	Neighbour   Kind = "neighbour"
	Control     Kind = "control"
	Egress      Kind = "egress"
)

// Kinds that are findings. The first three are leaks: plaintext of the cluster.
const (
	LeakAddress Kind = "leak-address"
	LeakCanary  Kind = "leak-canary"
	LeakEgress  Kind = "leak-egress-canary"
	Fragment    Kind = "fragment"
	NotTunnel   Kind = "not-a-tunnel-message"
	Oversize    Kind = "oversize"
	Unreadable  Kind = "unreadable"
	Unknown     Kind = "not-allowed"
)

// Leak reports whether the kind is plaintext of the cluster.
func (k Kind) Leak() bool { return k == LeakAddress || k == LeakCanary || k == LeakEgress }

// Allowed reports whether frames of the kind are on the allow-list.
func (k Kind) Allowed() bool {
	return k == Tunnel || k == TunnelError || k == Neighbour || k == Control || k == Egress
}

// Verdict is the result of Classify for one frame. Detail is a text that explains Kind.
type Verdict struct {
	Kind   Kind
	Detail string
}
