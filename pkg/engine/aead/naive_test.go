package aead

import (
	"encoding/binary"
	"math/big"
	"slices"
)

// poly1305P returns 2^130-5.
func poly1305P() *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 130), big.NewInt(5))
}

// naivePoly is Poly1305 (RFC 8439, section 2.5) of a text padded to 16 bytes and of the block of
// its length, on big numbers.
func naivePoly(key [32]byte, text []byte) (tag [Overhead]byte) {
	number := func(b []byte) *big.Int {
		b = slices.Clone(b)
		slices.Reverse(b)
		return new(big.Int).SetBytes(b)
	}
	clamp := number([]byte{0xff, 0xff, 0xff, 0x0f, 0xfc, 0xff, 0xff, 0x0f, 0xfc, 0xff, 0xff, 0x0f,
		0xfc, 0xff, 0xff, 0x0f})
	r := new(big.Int).And(number(key[:16]), clamp)
	p := poly1305P()
	b := slices.Clone(text)
	for len(b)%16 != 0 {
		b = append(b, 0)
	}
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
	h := new(big.Int)
	for ; len(b) > 0; b = b[16:] {
		h.Add(h, number(append(slices.Clone(b[:16]), 1)))
		h.Mod(h.Mul(h, r), p)
	}
	h.Add(h, number(key[16:]))
	out := h.FillBytes(make([]byte, 40))
	slices.Reverse(out)
	return [Overhead]byte(out[:Overhead])
}
