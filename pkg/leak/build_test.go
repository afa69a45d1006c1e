package leak

import (
	"encoding/binary"
	"net/netip"
)

// frame builds test frames from the inside out. Checksums are zero: the oracle does not look at
// them.

func eth(etherType uint16, inside []byte) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	return append(binary.BigEndian.AppendUint16(b, etherType), inside...)
}

func vlan(tpid, inner uint16, inside []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, 7}, inner)
	return eth(tpid, append(b, inside...))
}

func ip4(src, dst string, proto byte, inside []byte) []byte {
	b := make([]byte, 20, 20+len(inside))
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(inside)))
	s, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	copy(b[12:], s[:])
	copy(b[16:], d[:])
	return append(b, inside...)
}

// fragment4 sets flags and offset of an IPv4 packet.
func fragment4(packet []byte, where uint16) []byte {
	binary.BigEndian.PutUint16(packet[6:], where)
	return packet
}

func ip6(src, dst string, next byte, inside []byte) []byte {
	b := make([]byte, 40, 40+len(inside))
	b[0], b[6], b[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(inside)))
	s, d := netip.MustParseAddr(src).As16(), netip.MustParseAddr(dst).As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	return append(b, inside...)
}

// extension returns an IPv6 extension header of 8 bytes.
func extension(next byte, offset uint16, inside []byte) []byte {
	b := make([]byte, 8)
	b[0] = next
	binary.BigEndian.PutUint16(b[2:], offset)
	return append(b, inside...)
}

// routing returns a routing header of a type, with whole addresses.
func routing(typ, next byte, inside []byte, addrs ...string) []byte {
	b := []byte{next, byte(2 * len(addrs)), typ, byte(len(addrs)), byte(len(addrs) - 1), 0, 0, 0}
	for _, a := range addrs {
		full := netip.MustParseAddr(a).As16()
		b = append(b, full[:]...)
	}
	return append(b, inside...)
}

// compressed returns a routing header of RPL, whose addresses begin with the first bytes of the
// destination.
func compressed(next byte, same, lastSame int, inside []byte, addrs ...string) []byte {
	var list []byte
	for i, a := range addrs {
		from := same
		if i == len(addrs)-1 {
			from = lastSame
		}
		full := netip.MustParseAddr(a).As16()
		list = append(list, full[from:]...)
	}
	pad := -len(list) & 7
	list = append(list, make([]byte, pad)...)
	b := []byte{next, byte(len(list) / 8), 3, byte(len(addrs))}
	b = append(b, byte(same<<4|lastSame), byte(pad<<4), 0, 0)
	return append(append(b, list...), inside...)
}

// authenticated returns an authentication header of 24 bytes (RFC 4302).
func authenticated(next byte, inside []byte) []byte {
	return append(append([]byte{next, 4}, make([]byte, 22)...), inside...)
}

func udp(src, dst uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

func tcp(src, dst uint16, payload []byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	b[12] = 5 << 4
	return append(b, payload...)
}

func icmp(kind byte, inside []byte) []byte {
	return append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, inside...)
}

func arp(sender, target string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1}
	s, t := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
	b = append(b, s[:]...)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, t[:]...)
}

// wg returns a WireGuard message of a type and length.
func wg(kind byte, length int) []byte {
	b := make([]byte, length)
	b[0] = kind
	return b
}
