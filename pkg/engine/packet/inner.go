package packet

import (
	"encoding/binary"
	"net/netip"
)

// Trim checks a decrypted packet and returns it without its padding, and its source address.
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

// Congested marks a packet as the tunnel's outer packet was marked on its way (RFC 6040, section
// 4.2). A packet that supports congestion marks gets one; any other stays.
func Congested(p []byte) {
	if e := ECN(p); e != 1 && e != 2 {
		return
	}
	if p[0]>>4 == 6 {
		p[1] |= 3 << 4
		return
	}
	// The checksum follows by RFC 1624: the word changes by the bits that are set.
	old := binary.BigEndian.Uint16(p)
	p[1] |= 3
	c := uint64(^binary.BigEndian.Uint16(p[10:])) + uint64(^old) +
		uint64(binary.BigEndian.Uint16(p))
	binary.BigEndian.PutUint16(p[10:], ^fold(c))
}
