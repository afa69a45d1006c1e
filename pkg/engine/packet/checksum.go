package packet

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the 16-bit words of b, in the network's order of bytes, to acc in ones' complement. An odd
// last byte counts as the high byte of a word.
//
// The words are added as 64-bit numbers in the other order of bytes, which costs no swap at each
// load; their sum is the same but for its own order (RFC 1071, section 2(B)).
func sum(b []byte, acc uint64) uint64 {
	var s, c uint64
	for len(b) >= 64 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[56:]), c)
		s += c
		b = b[64:]
	}

	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), 0)
		s += c
		b = b[8:]
	}

	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(last[:]), 0)
		s += c
	}

	acc, c = bits.Add64(acc, uint64(bits.ReverseBytes16(fold(s))), 0)
	return acc + c
}

// fold reduces a sum to 16 bits.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return uint16(acc)
}

// pseudo is the sum of the pseudo-header of a packet (RFC 9293, section 3.1; RFC 8200, section
// 8.1), in which the transport header and its payload have length bytes.
func pseudo(p []byte, v6 bool, proto uint8, length int) uint64 {
	if v6 {
		return sum(p[8:40], uint64(length)+uint64(proto))
	}
	return sum(p[12:20], uint64(length)+uint64(proto))
}
