package nflog

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Headers holds the header fields of a packet. The zero value means that no IP header could be
// read.
type Headers struct {
	Src, Dst netip.Addr
	// Proto is the protocol after the IP header and, in IPv6, after the extension headers that
	// could be read.
	Proto uint8
	// SrcPort and DstPort are the ports of TCP, UDP and SCTP. They are 0 in later fragments.
	SrcPort, DstPort uint16
	// Length is the length of the packet in bytes, from the IP header.
	Length int
}

// Sizes of headers: RFC 791 section 3.1, RFC 8200 section 3.
const minHeader4, header6 = 20, 40

// ReadHeaders reads the headers of a packet. The packet begins with its IP header and may be
// truncated. ok reports whether it has an IP header.
func ReadHeaders(packet []byte) (h Headers, ok bool) {
	if len(packet) == 0 {
		return h, false
	}
	switch packet[0] >> 4 {
	case 4:
		return read4(packet)
	case 6:
		return read6(packet)
	}
	return h, false
}

func read4(packet []byte) (h Headers, ok bool) {
	size := int(packet[0]&0xf) * 4
	if size < minHeader4 || len(packet) < size {
		return h, false
	}
	h.Src, h.Dst = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
	h.Proto, h.Length = packet[9], int(binary.BigEndian.Uint16(packet[2:]))
	if offset := binary.BigEndian.Uint16(packet[6:]) & 0x1fff; offset == 0 {
		h.readPorts(packet[size:])
	}
	return h, true
}

func read6(packet []byte) (h Headers, ok bool) {
	if len(packet) < header6 {
		return h, false
	}
	h.Src, h.Dst = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	h.Proto, h.Length = packet[6], header6+int(binary.BigEndian.Uint16(packet[4:]))

	rest, first := packet[header6:], true
	for len(rest) >= 8 && first {
		size := 8
		switch h.Proto {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			size += int(rest[1]) * 8
		case unix.IPPROTO_FRAGMENT:
			first = binary.BigEndian.Uint16(rest[2:])>>3 == 0
		default:
			h.readPorts(rest)
			return h, true
		}
		if len(rest) < size {
			break
		}
		h.Proto, rest = rest[0], rest[size:]
	}
	if first {
		h.readPorts(rest)
	}
	return h, true
}

// readPorts reads the ports of a packet from its transport header.
func (h *Headers) readPorts(transport []byte) {
	switch h.Proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(transport) >= 4 {
			h.SrcPort = binary.BigEndian.Uint16(transport)
			h.DstPort = binary.BigEndian.Uint16(transport[2:])
		}
	}
}
