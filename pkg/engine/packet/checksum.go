package packet

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the 16-bit words of b, in network byte order, to acc in ones' complement. An odd last
// byte counts as the high byte of a word.
//
// The code adds 64-bit numbers in little-endian order, which saves a byte swap per load on most
// CPUs. Only the byte order of the result differs (RFC 1071, section 2(B)), so it is swapped at the
// end.
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

// pseudo returns the sum of the pseudo-header of a packet p (RFC 9293, section 3.1; RFC 8200,
// section 8.1). length is the size of the transport header and its payload, bytes.
func pseudo(p []byte, v6 bool, proto uint8, length int) uint64 {
	if v6 {
		return sum(p[8:40], uint64(length)+uint64(proto))
	}
	return sum(p[12:20], uint64(length)+uint64(proto))
}
