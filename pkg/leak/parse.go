package leak

import (
	"encoding/binary"
	"net/netip"
)

// EtherTypes (IEEE 802).
const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
)

const (
	ethernetLen = 14
	vlanLen     = 4
)

// packet holds what could be read of an IP packet's headers.
type packet struct {
	src, dst netip.Addr
	// routed are the addresses that routing headers list.
	routed   []netip.Addr
	proto    uint8
	fragment bool
	// later reports whether the packet is a fragment other than the first. payload then begins in
	// the middle of a datagram.
	later bool
	// cut reports whether the packet ends before the end of its headers.
	cut              bool
	hasPorts         bool
	srcPort, dstPort uint16
	payload          []byte // after the UDP or TCP ports, or the last header that was read
}

// link reads Ethernet and VLAN headers. It returns the EtherType of the content, the content, and
// the number of VLAN tags. ok is false if a header is truncated.
func link(frame []byte) (etherType uint16, inside []byte, tags int, ok bool) {
	if len(frame) < ethernetLen {
		return 0, nil, 0, false
	}
	etherType, inside = binary.BigEndian.Uint16(frame[12:]), frame[ethernetLen:]
	for etherType == etherVLAN || etherType == etherQinQ {
		if len(inside) < vlanLen {
			return etherType, inside, tags, false
		}
		etherType, inside = binary.BigEndian.Uint16(inside[2:]), inside[vlanLen:]
		tags++
	}
	return etherType, inside, tags, true
}

// parseIP reads an IP packet of either version up to its ports. A truncated packet, such as the
// quote in an ICMP error, is read as far as it goes. ok is false only when there are no addresses.
func parseIP(b []byte) (p packet, ok bool) {
	if len(b) == 0 {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b)
	case 6:
		return parseIPv6(b)
	}
	return p, false
}

func parseIPv4(b []byte) (p packet, ok bool) {
	if len(b) < 20 {
		return p, false
	}

	p.src, p.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.proto = b[9]
	where := binary.BigEndian.Uint16(b[6:])
	p.fragment = where&0x3fff != 0 // more fragments, or an offset
	p.later = where&0x1fff != 0
	header := int(b[0]&0xf) * 4
	if header < 20 || header > len(b) {
		p.cut = true
		return p, true
	}

	rest := b[header:]
	// Bytes behind the packet are Ethernet padding.
	if total := int(binary.BigEndian.Uint16(b[2:])); total >= header && total-header < len(rest) {
		rest = rest[:total-header]
	}

	for p.proto == protoAuth && !p.later {
		size := extensionSize(p.proto, rest)
		if size == 0 || size > len(rest) {
			p.cut = true
			return p, true
		}
		p.proto, rest = rest[0], rest[size:]
	}

	p.ports(rest)
	return p, true
}

// Protocols that are followed by another header (IANA, RFC 7045).
const (
	protoHopByHop    = 0
	protoRouting     = 43
	protoFragment    = 44
	protoAuth        = 51
	protoDestination = 60
	protoMobility    = 135
	protoHIP         = 139
	protoShim6       = 140
	protoEthernet    = 143 // RFC 8986 section 4.9
)

// extensionSize returns the size in bytes of the extension header at the start of b, or 0 if b is
// too short to contain its length.
func extensionSize(proto uint8, b []byte) int {
	switch {
	case len(b) < 8:
		return 0
	case proto == protoFragment:
		return 8
	case proto == protoAuth: // counted in words
		return (int(b[1]) + 2) * 4
	}
	return (int(b[1]) + 1) * 8
}

func parseIPv6(b []byte) (p packet, ok bool) {
	if len(b) < 40 {
		return p, false
	}

	p.src, p.dst = netip.AddrFrom16([16]byte(b[8:24])).Unmap(),
		netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	next, rest := b[6], b[40:]
	if length := int(binary.BigEndian.Uint16(b[4:])); length > 0 && length < len(rest) {
		rest = rest[:length]
	}

	for !p.later {
		p.proto = next
		switch next {
		case protoHopByHop, protoRouting, protoAuth, protoDestination,
			protoMobility, protoHIP, protoShim6:
		case protoFragment:
			p.fragment = true
			p.later = len(rest) >= 8 && binary.BigEndian.Uint16(rest[2:])&0xfff8 != 0
		default:
			p.ports(rest)
			return p, true
		}

		size := extensionSize(next, rest)
		if next == protoRouting {
			p.routing(rest[:min(size, len(rest))])
		}

		if size == 0 || size > len(rest) {
			p.cut = true
			return p, true
		}

		next, rest = rest[0], rest[size:]
	}

	p.proto = next
	p.ports(rest)
	return p, true
}

// Types of routing headers that list addresses.
const (
	routingSource  = 0 // RFC 2460 section 4.4
	routingMobile  = 2 // RFC 6275 section 6.4
	routingRPL     = 3 // RFC 6554 section 3
	routingSegment = 4 // RFC 8754 section 2
)

// routing appends the addresses in a routing header to p.routed. It sets p.cut if the header ends
// before its last address.
func (p *packet) routing(h []byte) {
	if len(h) < 8 {
		return
	}

	room := int(h[1]) * 8
	listed := h[8:]
	// count is the number of addresses. The header omits the first "without" bytes of each address,
	// which are equal to those of the destination. Of the last address it omits lastWithout bytes.
	count, without, lastWithout := room/16, 0, 0
	switch h[2] {
	case routingSource, routingMobile:
	case routingSegment:
		count = min(count, int(h[4])+1)
	case routingRPL:
		without, lastWithout = int(h[4]>>4), int(h[4]&0xf)
		room -= int(h[5] >> 4)
		count = 0
		if last := 16 - lastWithout; room >= last {
			count = 1 + (room-last)/(16-without)
		}
	default:
		return
	}

	for i := range count {
		if i == count-1 {
			without = lastWithout
		}
		if len(listed) < 16-without {
			p.cut = true
			return
		}
		a := p.dst.As16()
		copy(a[without:], listed)
		p.routed = append(p.routed, netip.AddrFrom16(a).Unmap())
		listed = listed[16-without:]
	}
}

// ports sets the payload and, if the packet has TCP or UDP ports, the ports.
func (p *packet) ports(rest []byte) {
	p.payload = rest
	if p.later || (p.proto != TCP && p.proto != UDP) || len(rest) < 8 {
		return
	}
	p.hasPorts = true
	p.srcPort, p.dstPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	if p.proto == UDP {
		p.payload = rest[8:]
	}
}
