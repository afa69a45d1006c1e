package leak

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Classify returns the verdict on one frame, which begins with its Ethernet header. It is pure,
// keeps no reference to frame and accepts any bytes.
func Classify(r *Rules, frame []byte) Verdict {
	etherType, inside, tags, ok := link(frame)
	outside := false
	var v Verdict
	switch {
	case !ok:
		v = Verdict{Unreadable, "no Ethernet header"}
	case etherType == etherARP:
		v = judgeARP(r, inside)
	case etherType == etherIPv4 || etherType == etherIPv6:
		v, outside = judgeIP(r, inside)
	default:
		v = Verdict{Unknown, fmt.Sprintf("Ethernet type %#04x", etherType)}
	}

	if v.Kind.Allowed() && tags > 0 {
		v = Verdict{Unknown, "VLAN tag"}
	}
	if v.Kind.Allowed() && r.MaxFrame > 0 && len(frame) > r.MaxFrame {
		v = Verdict{Oversize, fmt.Sprintf("%d bytes", len(frame))}
	}

	// A frame of any kind must not contain a canary.
	if has(frame, r.Canary) {
		return Verdict{LeakCanary, "canary in " + describe(v)}
	}
	if !outside && has(frame, r.EgressCanary) {
		return Verdict{LeakEgress, "egress canary in " + describe(v)}
	}

	return v
}

func has(frame, canary []byte) bool { return len(canary) > 0 && bytes.Contains(frame, canary) }

func describe(v Verdict) string {
	if v.Detail == "" {
		return string(v.Kind)
	}
	return string(v.Kind) + ": " + v.Detail
}

// judgeARP returns the verdict on an ARP packet. ARP for IPv4 is allowed if neither of its
// addresses belongs to the cluster.
func judgeARP(r *Rules, b []byte) Verdict {
	if len(b) < 28 || binary.BigEndian.Uint16(b[2:]) != etherIPv4 || b[4] != 6 || b[5] != 4 {
		return Verdict{Unreadable, "ARP"}
	}
	for _, at := range []int{14, 24} {
		if a := netip.AddrFrom4([4]byte(b[at : at+4])); r.inner(a) {
			return Verdict{LeakAddress, "ARP for " + a.String()}
		}
	}
	return Verdict{Kind: Neighbour}
}

// judgeIP returns the verdict on an IP packet. outside reports whether the packet goes to or comes
// from a host in Outside.
func judgeIP(r *Rules, b []byte) (v Verdict, outside bool) {
	p, ok := parseIP(b)
	if !ok {
		return Verdict{Unreadable, "IP header"}, false
	}

	if v, found := judgeHeaders(r, &p, 0); found {
		v.Detail += ": " + p.String()
		return v, false
	}

	if p.fragment {
		return Verdict{Fragment, p.String()}, false
	}
	if p.proto == ICMPv6 && neighbourDiscovery(p.payload) ||
		p.proto == IGMP && p.dst.IsMulticast() {
		return Verdict{Kind: Neighbour}, false
	}
	if name, ok := r.flow(&p); ok {
		return Verdict{Control, name}, false
	}
	if slices.Contains(r.Outside, p.src) || slices.Contains(r.Outside, p.dst) {
		return Verdict{Kind: Egress}, true
	}

	if r.tunnel(&p) {
		if !wireguard(p.payload) {
			return Verdict{NotTunnel, p.String()}, false
		}
		return Verdict{Kind: Tunnel}, false
	}

	if inside, ok := quoted(&p); ok && slices.Contains(r.Nodes, p.src) &&
		slices.Contains(r.Nodes, p.dst) {
		if q, ok := parseIP(inside); ok && r.tunnel(&q) && !q.fragment && messageType(q.payload) {
			return Verdict{Kind: TunnelError}, false
		}
	}

	return Verdict{Unknown, p.String()}, false
}

// maxDepth is the number of IP headers behind the first that a frame may have. It is equal to the
// number that the guard reads.
const maxDepth = 2

// judgeHeaders searches the headers of p, and of packets inside p, for an address of the cluster.
// It reads routing headers, IP in IP, Ethernet in IP and the packet that an ICMP error quotes. A
// packet deeper inside than maxDepth and a truncated header are findings too. found is false if it
// found nothing.
func judgeHeaders(r *Rules, p *packet, depth int) (v Verdict, found bool) {
	for _, a := range append([]netip.Addr{p.src, p.dst}, p.routed...) {
		if r.inner(a) {
			return Verdict{LeakAddress, a.String()}, true
		}
	}
	in, how := p.inside()
	switch {
	case how == "" && p.proto == ICMPv6 && !p.later && len(p.payload) >= 24 &&
		p.payload[0] >= 135 && p.payload[0] <= 137:
		a := netip.AddrFrom16([16]byte(p.payload[8:24]))
		return Verdict{LeakAddress, "target of neighbour discovery " + a.String()}, r.inner(a)
	case how == "":
		return Verdict{Unreadable, "headers are cut short"}, p.cut
	}
	q, ok := parseIP(in)
	if !ok {
		return Verdict{Unreadable, how + "no IP header"}, how != byICMP
	}
	q.cut = q.cut && how != byICMP // an ICMP error quotes only the beginning of a packet
	if v, found = judgeHeaders(r, &q, depth+1); !found && depth+1 > maxDepth {
		v, found = Verdict{Unreadable, "more IP headers than the guard reads"}, true
	}
	v.Detail = how + v.Detail
	return v, found
}

// Phrases for the container of an inner packet. They begin the detail of a verdict.
const (
	byIP       = "inside, "
	byEthernet = "in a frame inside, "
	byICMP     = "quoted by ICMP, "
)

// inside returns the packet that p contains and the kind of the container. An empty string means
// that p contains no packet.
func (p *packet) inside() (in []byte, how string) {
	if in, ok := quoted(p); ok {
		return in, byICMP
	}
	switch {
	case p.later || p.cut:
	case p.proto == IPIP, p.proto == IP6IP:
		return p.payload, byIP
	case p.proto == protoEthernet:
		typ, in, _, ok := link(p.payload)
		if !ok {
			return nil, byEthernet
		}
		if typ == etherIPv4 || typ == etherIPv6 {
			return in, byEthernet
		}
	}
	return nil, ""
}

// quoted returns the beginning of a packet that an ICMP error quotes (RFC 792, RFC 4443). ok is
// false if p is not an ICMP error.
func quoted(p *packet) ([]byte, bool) {
	if p.later || p.cut || len(p.payload) <= 8 {
		return nil, false
	}
	kind := p.payload[0]
	is4 := p.proto == ICMP && (kind == 3 || kind == 4 || kind == 5 || kind == 11 || kind == 12)
	is6 := p.proto == ICMPv6 && kind < 128
	return p.payload[8:], is4 || is6
}

// tunnel reports whether p is a UDP packet between nodes with the tunnel's port on one side.
func (r *Rules) tunnel(p *packet) bool {
	return p.proto == UDP && p.hasPorts && (p.srcPort == r.TunnelPort ||
		p.dstPort == r.TunnelPort) &&
		slices.Contains(r.Nodes, p.src) && slices.Contains(r.Nodes, p.dst)
}

// messageType reports whether b begins with a message type of WireGuard and three zero bytes.
func messageType(b []byte) bool {
	return len(b) >= 4 && b[0] >= 1 && b[0] <= 4 && b[1] == 0 && b[2] == 0 && b[3] == 0
}

// neighbourDiscovery reports whether an ICMPv6 message is a router solicitation, a neighbour
// solicitation or advertisement (RFC 4861), or a message of multicast listener discovery (RFC 2710,
// RFC 3810).
func neighbourDiscovery(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	switch b[0] {
	case 131, 132, 133, 135, 136, 143:
		return true
	}
	return false
}

// Lengths of WireGuard messages (protocol paper, section 5.4).
const (
	initiationLen   = 148
	responseLen     = 92
	cookieLen       = 64
	minTransportLen = 32
)

// wireguard reports whether a UDP payload begins like a WireGuard message: type 1 to 4, three zero
// bytes, and the length of that type.
func wireguard(b []byte) bool {
	if !messageType(b) {
		return false
	}
	switch b[0] {
	case 1:
		return len(b) == initiationLen
	case 2:
		return len(b) == responseLen
	case 3:
		return len(b) == cookieLen
	case 4:
		// The length need not be a multiple of 16, because padding stops at the tunnel's MTU.
		return len(b) >= minTransportLen
	}
	return false
}

// String returns the protocol, the source and the destination of the packet.
func (p *packet) String() string {
	if p.hasPorts {
		return fmt.Sprintf("protocol %d %s > %s", p.proto, netip.AddrPortFrom(p.src, p.srcPort),
			netip.AddrPortFrom(p.dst, p.dstPort))
	}
	return fmt.Sprintf("protocol %d %s > %s", p.proto, p.src, p.dst)
}
