package packet

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the 16-bit words of b to acc in ones' complement (RFC 1071), on 64 bits and in the order
// of bytes of the network. An odd last byte counts as the high byte of a word.
func sum(b []byte, acc uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[8:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[16:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[24:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[32:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[40:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[48:]), c)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b[56:]), c)
		acc += c
		b = b[64:]
	}
	for len(b) >= 8 {
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(b), 0)
		acc += c
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		acc, c = bits.Add64(acc, binary.BigEndian.Uint64(last[:]), 0)
		acc += c
	}
	return acc
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
