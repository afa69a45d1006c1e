package oracle

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
	maxNesting  = 8
)

// packet is what could be read of an IP packet's headers.
type packet struct {
	src, dst         netip.Addr
	proto            uint8
	fragment         bool
	hasPorts         bool
	srcPort, dstPort uint16
	payload          []byte // after the UDP or TCP ports, or the last header that was read
}

// link reads Ethernet and VLAN headers: the type of what is inside, the inside, the number of tags.
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

// parseIP reads an IP packet of either version up to its ports. What is cut short, as in an ICMP
// error, is read as far as it goes; ok is false only when there are no addresses.
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
	header := int(b[0]&0xf) * 4
	if header < 20 || header > len(b) {
		return p, true
	}
	rest := b[header:]
	// What follows the packet is Ethernet's padding.
	if total := int(binary.BigEndian.Uint16(b[2:])); total >= header && total-header < len(rest) {
		rest = rest[:total-header]
	}
	p.ports(rest, where&0x1fff == 0)
	return p, true
}

func parseIPv6(b []byte) (p packet, ok bool) {
	if len(b) < 40 {
		return p, false
	}
	p.src, p.dst = netip.AddrFrom16([16]byte(b[8:24])).Unmap(), netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	next, rest := b[6], b[40:]
	if length := int(binary.BigEndian.Uint16(b[4:])); length > 0 && length < len(rest) {
		rest = rest[:length]
	}
	first := true
	for range maxNesting {
		p.proto = next
		var size int
		switch next {
		case 0, 43, 60, 135: // hop-by-hop, routing, destination options, mobility
			if len(rest) < 8 {
				return p, true
			}
			size = (int(rest[1]) + 1) * 8
		case 44: // fragment
			if len(rest) < 8 {
				p.fragment = true
				return p, true
			}
			p.fragment = true
			first = first && binary.BigEndian.Uint16(rest[2:])&0xfff8 == 0
			size = 8
		case 51: // authentication header, counted in words
			if len(rest) < 8 {
				return p, true
			}
			size = (int(rest[1]) + 2) * 4
		default:
			p.ports(rest, first)
			return p, true
		}
		if size > len(rest) {
			return p, true
		}
		next, rest = rest[0], rest[size:]
		if !first {
			p.proto, p.payload = next, rest
			return p, true
		}
	}
	return p, true
}

// ports reads the ports of TCP and UDP, if this packet holds them.
func (p *packet) ports(rest []byte, first bool) {
	p.payload = rest
	if !first || (p.proto != TCP && p.proto != UDP) || len(rest) < 8 {
		return
	}
	p.hasPorts = true
	p.srcPort, p.dstPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	if p.proto == UDP {
		p.payload = rest[8:]
	}
}
