package packet

import (
	"encoding/binary"
	"net/netip"
)

const (
	protoTCP = 6
	protoUDP = 17

	minIP4 = 20
	lenIP6 = 40
	lenUDP = 8
	minTCP = 20

	tcpFlagsAt     = 13
	tcpChecksumAt  = 16
	udpLengthAt    = 4
	udpChecksumAt  = 6
	flagFIN        = 1
	flagSYN        = 2
	flagRST        = 4
	flagPSH        = 8
	flagACK        = 16
	flagURG        = 32
	flagECE        = 64
	flagCWR        = 128
	maxPacket      = 65535
	maxSegments    = 128
	minSegmentSize = 8
)

// Super is a packet that was read from a TUN. If Segments is above 1, it is a superpacket.
type Super struct {
	p []byte
	h Header
	// Segments is the number of packets into which Segment splits it.
	Segments int
	// size is the payload of each segment except the last; 0 means a single packet. head is the
	// length of all headers. transport is the offset of the TCP or UDP header.
	size, head, transport int
	v6                    bool
	proto                 uint8
}

// Parse checks a packet and its vnet header. The Super points into p, and Segment changes p's
// checksum.
func Parse(h Header, p []byte) (Super, Reason) {
	s := Super{p: p, h: h, Segments: 1}
	if len(p) < minIP4 {
		return s, TooShort
	}
	switch p[0] >> 4 {
	case 4:
		if n := int(p[0]&15) * 4; n < minIP4 || n > len(p) {
			return s, BadHeaderLength
		}
	case 6:
		if len(p) < lenIP6 {
			return s, TooShort
		}
		s.v6 = true
	default:
		return s, BadVersion
	}
	if h.GSO == GSONone {
		s.head = len(p)
		if h.Flags&NeedsChecksum != 0 && int(h.ChecksumStart)+int(h.ChecksumAt)+2 > len(p) {
			return s, BadChecksumOffset
		}
		return s, None
	}
	return s, s.parseGSO()
}

func (s *Super) parseGSO() Reason {
	h, p := s.h, s.p
	var checksumAt int
	switch {
	case h.GSO == GSOTCP4 && !s.v6, h.GSO == GSOTCP6 && s.v6:
		s.proto, checksumAt = protoTCP, tcpChecksumAt
	case h.GSO == GSOUDP:
		s.proto, checksumAt = protoUDP, udpChecksumAt
	default:
		return BadGSO
	}

	s.transport = int(h.ChecksumStart)
	if h.Flags&NeedsChecksum == 0 || int(h.ChecksumAt) != checksumAt {
		return BadChecksumOffset
	}

	// IPv6 may have extension headers before the transport header.
	if s.v6 && s.transport < lenIP6 || !s.v6 && s.transport != int(p[0]&15)*4 {
		return BadHeaderLength
	}
	if !s.v6 && p[9] != s.proto || s.v6 && s.transport == lenIP6 && p[6] != s.proto {
		return BadGSO
	}

	if s.proto == protoUDP {
		s.head = s.transport + lenUDP
	} else {
		if s.transport+minTCP > len(p) {
			return TooShort
		}
		n := int(p[s.transport+12]>>4) * 4
		if n < minTCP {
			return BadHeaderLength
		}
		s.head = s.transport + n
	}

	s.size = int(h.SegmentSize)
	if s.head >= len(p) {
		return TooShort
	}
	if s.size < minSegmentSize {
		return BadSegmentSize
	}

	s.Segments = (len(p) - s.head + s.size - 1) / s.size
	if s.Segments > maxSegments {
		return TooManySegments
	}

	return None
}

// Destination returns the destination address of the packet.
func (s *Super) Destination() netip.Addr {
	if s.v6 {
		return netip.AddrFrom16([16]byte(s.p[24:40]))
	}
	return netip.AddrFrom4([4]byte(s.p[16:20]))
}

// ECN returns the congestion bits of the packet (RFC 3168).
func (s *Super) ECN() uint8 { return ECN(s.p) }

// ECN returns the congestion bits of an IP packet.
func ECN(p []byte) uint8 {
	if p[0]>>4 == 6 {
		return p[1] >> 4 & 3
	}
	return p[1] & 3
}

// SegmentLen returns the length of segment i, bytes.
func (s *Super) SegmentLen(i int) int {
	if s.Segments == 1 && s.size == 0 {
		return len(s.p)
	}
	return s.head + min(s.size, len(s.p)-s.head-i*s.size)
}

// Segment writes segment i, with correct checksums, into out, which has SegmentLen(i) bytes.
func (s *Super) Segment(i int, out []byte) {
	if s.size == 0 {
		copy(out, s.p)
		if s.h.Flags&NeedsChecksum != 0 {
			s.finish(out)
		} else {
			mendUDP(out, s.v6)
		}
		return
	}

	n := len(out)
	copy(out[:s.head], s.p)
	copy(out[s.head:], s.p[s.head+i*s.size:])
	be := binary.BigEndian
	if s.v6 {
		be.PutUint16(out[4:], uint16(n-lenIP6))
	} else {
		be.PutUint16(out[2:], uint16(n))
		be.PutUint16(out[4:], be.Uint16(s.p[4:])+uint16(i))
		out[10], out[11] = 0, 0
		be.PutUint16(out[10:], ^fold(sum(out[:s.transport], 0)))
	}

	t := out[s.transport:]
	at := udpChecksumAt
	if s.proto == protoTCP {
		at = tcpChecksumAt
		be.PutUint32(t[4:], be.Uint32(t[4:])+uint32(i*s.size))
		if i > 0 {
			t[tcpFlagsAt] &^= flagCWR
		}
		if i < s.Segments-1 {
			t[tcpFlagsAt] &^= flagFIN | flagPSH
		}
	} else {
		be.PutUint16(t[udpLengthAt:], uint16(len(t)))
	}

	t[at], t[at+1] = 0, 0
	c := ^fold(sum(t, pseudo(out, s.v6, s.proto, len(t))))
	if c == 0 && s.proto == protoUDP {
		c = 0xffff
	}

	be.PutUint16(t[at:], c)
}

// finish completes a partial checksum, whose field holds the sum of the pseudo-header.
func (s *Super) finish(out []byte) {
	t := out[s.h.ChecksumStart:]
	at := int(s.h.ChecksumAt)
	start := uint64(binary.BigEndian.Uint16(t[at:]))
	t[at], t[at+1] = 0, 0
	c := ^fold(sum(t, start))
	if c == 0 && s.udp(out) {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(t[at:], c)
}

// udp reports whether the partial checksum of out belongs to a UDP header.
func (s *Super) udp(out []byte) bool {
	if s.h.ChecksumAt != udpChecksumAt {
		return false
	}
	if s.v6 {
		return s.h.ChecksumStart > lenIP6 || out[6] == protoUDP
	}
	return out[9] == protoUDP
}

// mendUDP sets the checksum of a UDP datagram over IPv6 to 0xffff if its computation results in 0
// (RFC 768), because the receiver's kernel drops 0 (RFC 8200, section 8.1). A datagram that has 0
// because its sender requested no checksum (RFC 6935) is unchanged.
func mendUDP(p []byte, v6 bool) {
	if !v6 || len(p) < lenIP6+lenUDP || p[6] != protoUDP {
		return
	}
	t := p[lenIP6:]
	if t[udpChecksumAt] != 0 || t[udpChecksumAt+1] != 0 {
		return
	}
	if fold(sum(t, pseudo(p, true, protoUDP, len(t)))) == 0xffff {
		t[udpChecksumAt], t[udpChecksumAt+1] = 0xff, 0xff
	}
}
