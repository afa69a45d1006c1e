package packet

import (
	"encoding/binary"
	"net/netip"
)

// Trim checks the IP header of a decrypted packet. It returns the packet without its padding and
// the source address.
func Trim(p []byte) ([]byte, netip.Addr, Reason) {
	if len(p) < minIP4 {
		return nil, netip.Addr{}, TooShort
	}
	switch p[0] >> 4 {
	case 4:
		n := int(binary.BigEndian.Uint16(p[2:]))
		if h := int(p[0]&15) * 4; h < minIP4 || n < h {
			return nil, netip.Addr{}, BadHeaderLength
		}
		if n > len(p) {
			return nil, netip.Addr{}, BadTotalLength
		}
		return p[:n], netip.AddrFrom4([4]byte(p[12:16])), None
	case 6:
		if len(p) < lenIP6 {
			return nil, netip.Addr{}, TooShort
		}
		n := int(binary.BigEndian.Uint16(p[4:])) + lenIP6
		if n > len(p) {
			return nil, netip.Addr{}, BadTotalLength
		}
		return p[:n], netip.AddrFrom16([16]byte(p[8:24])), None
	}
	return nil, netip.Addr{}, BadVersion
}

// Congested sets CE in a packet whose outer packet arrived with CE (RFC 6040, section 4.2). It
// leaves packets unchanged that are not ECT(0) or ECT(1).
func Congested(p []byte) {
	if e := ECN(p); e != 1 && e != 2 {
		return
	}
	if p[0]>>4 == 6 {
		p[1] |= 3 << 4
		return
	}
	// Update the checksum for the changed word (RFC 1624).
	old := binary.BigEndian.Uint16(p)
	p[1] |= 3
	c := uint64(^binary.BigEndian.Uint16(p[10:])) + uint64(^old) +
		uint64(binary.BigEndian.Uint16(p))
	binary.BigEndian.PutUint16(p[10:], ^fold(c))
}
