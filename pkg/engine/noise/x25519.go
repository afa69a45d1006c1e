package noise

import (
	"encoding/binary"
	"math/bits"
)

// This file is X25519 (RFC 7748) in memory of the caller. crypto/ecdh is not used, because it would
// leave private keys and shared secrets on the heap. The code runs in constant time: no branch and
// no index depends on a secret.

// fe is an element of GF(2^255-19), 5 limbs of 51 bits. Between operations a limb is below 2^52.
type fe [5]uint64

const mask51 = 1<<51 - 1

// ladder is the scratch memory of x25519. It holds secrets.
type ladder struct {
	k                     [32]byte
	x1, x2, z2, x3, z3    fe
	a, aa, b, bb, e, c, d fe
	t                     fe
}

func (v *fe) fromBytes(b *[32]byte) {
	w0, w1 := binary.LittleEndian.Uint64(b[0:]), binary.LittleEndian.Uint64(b[8:])
	w2, w3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	v[0] = w0 & mask51
	v[1] = (w0>>51 | w1<<13) & mask51
	v[2] = (w1>>38 | w2<<26) & mask51
	v[3] = (w2>>25 | w3<<39) & mask51
	v[4] = w3 >> 12 & mask51
}

// bytes writes v modulo 2^255-19, in little-endian order.
func (v *fe) bytes(out *[32]byte) {
	v.carry()
	v.carry()
	// q is 1 if v >= p, because v + 19 then carries out of bit 255.
	q := (v[0] + 19) >> 51
	q = (v[1] + q) >> 51
	q = (v[2] + q) >> 51
	q = (v[3] + q) >> 51
	q = (v[4] + q) >> 51
	l0 := v[0] + 19*q
	l1 := v[1] + l0>>51
	l2 := v[2] + l1>>51
	l3 := v[3] + l2>>51
	l4 := v[4] + l3>>51
	l0, l1, l2, l3, l4 = l0&mask51, l1&mask51, l2&mask51, l3&mask51, l4&mask51
	binary.LittleEndian.PutUint64(out[0:], l0|l1<<51)
	binary.LittleEndian.PutUint64(out[8:], l1>>13|l2<<38)
	binary.LittleEndian.PutUint64(out[16:], l2>>26|l3<<25)
	binary.LittleEndian.PutUint64(out[24:], l3>>39|l4<<12)
}

func (v *fe) carry() {
	c0, c1, c2, c3, c4 := v[0]>>51, v[1]>>51, v[2]>>51, v[3]>>51, v[4]>>51
	v[0] = v[0]&mask51 + 19*c4
	v[1] = v[1]&mask51 + c0
	v[2] = v[2]&mask51 + c1
	v[3] = v[3]&mask51 + c2
	v[4] = v[4]&mask51 + c3
}

func (v *fe) add(a, b *fe) {
	v[0], v[1], v[2], v[3], v[4] = a[0]+b[0], a[1]+b[1], a[2]+b[2], a[3]+b[3], a[4]+b[4]
	v.carry()
}

// sub sets v to a - b. It adds 2p to a first, so that no limb underflows.
func (v *fe) sub(a, b *fe) {
	v[0] = a[0] + 0xFFFFFFFFFFFDA - b[0]
	v[1] = a[1] + 0xFFFFFFFFFFFFE - b[1]
	v[2] = a[2] + 0xFFFFFFFFFFFFE - b[2]
	v[3] = a[3] + 0xFFFFFFFFFFFFE - b[3]
	v[4] = a[4] + 0xFFFFFFFFFFFFE - b[4]
	v.carry()
}

type wide struct{ lo, hi uint64 }

func mul64(a, b uint64) wide {
	hi, lo := bits.Mul64(a, b)
	return wide{lo, hi}
}

func (w wide) plus(a, b uint64) wide {
	hi, lo := bits.Mul64(a, b)
	lo, c := bits.Add64(lo, w.lo, 0)
	hi, _ = bits.Add64(hi, w.hi, c)
	return wide{lo, hi}
}

func (w wide) high() uint64 { return w.hi<<13 | w.lo>>51 }

func (v *fe) mul(a, b *fe) {
	a0, a1, a2, a3, a4 := a[0], a[1], a[2], a[3], a[4]
	b0, b1, b2, b3, b4 := b[0], b[1], b[2], b[3], b[4]
	a1x, a2x, a3x, a4x := a1*19, a2*19, a3*19, a4*19
	r0 := mul64(a0, b0).plus(a1x, b4).plus(a2x, b3).plus(a3x, b2).plus(a4x, b1)
	r1 := mul64(a0, b1).plus(a1, b0).plus(a2x, b4).plus(a3x, b3).plus(a4x, b2)
	r2 := mul64(a0, b2).plus(a1, b1).plus(a2, b0).plus(a3x, b4).plus(a4x, b3)
	r3 := mul64(a0, b3).plus(a1, b2).plus(a2, b1).plus(a3, b0).plus(a4x, b4)
	r4 := mul64(a0, b4).plus(a1, b3).plus(a2, b2).plus(a3, b1).plus(a4, b0)
	v.reduce(r0, r1, r2, r3, r4)
}

func (v *fe) square(a *fe) {
	a0, a1, a2, a3, a4 := a[0], a[1], a[2], a[3], a[4]
	d0, d1 := a0*2, a1*2
	a3x, a4x := a3*19, a4*19
	r0 := mul64(a0, a0).plus(d1, a4x).plus(2*a2, a3x)
	r1 := mul64(d0, a1).plus(2*a2, a4x).plus(a3, a3x)
	r2 := mul64(d0, a2).plus(a1, a1).plus(2*a3, a4x)
	r3 := mul64(d0, a3).plus(d1, a2).plus(a4, a4x)
	r4 := mul64(d0, a4).plus(d1, a3).plus(a2, a2)
	v.reduce(r0, r1, r2, r3, r4)
}

func (v *fe) reduce(r0, r1, r2, r3, r4 wide) {
	v[0] = r0.lo&mask51 + r4.high()*19
	v[1] = r1.lo&mask51 + r0.high()
	v[2] = r2.lo&mask51 + r1.high()
	v[3] = r3.lo&mask51 + r2.high()
	v[4] = r4.lo&mask51 + r3.high()
	v.carry()
}

// mul121665 multiplies by (486662-2)/4.
func (v *fe) mul121665(a *fe) {
	var r [5]wide
	for i := range r {
		r[i] = mul64(a[i], 121665)
	}
	v.reduce(r[0], r[1], r[2], r[3], r[4])
}

// swap exchanges a and b if bit is 1.
func swap(bit uint64, a, b *fe) {
	m := -bit
	for i := range a {
		x := m & (a[i] ^ b[i])
		a[i] ^= x
		b[i] ^= x
	}
}

func (v *fe) squares(a *fe, n int) {
	v.square(a)
	for range n - 1 {
		v.square(v)
	}
}

// invert sets l.z2 to its inverse z^(p-2), by the usual chain of 254 squarings. It uses other
// fields of l as scratch memory.
func (l *ladder) invert() {
	z := &l.z2
	z2, z9, z11, z5, z10, z20, t := &l.a, &l.aa, &l.b, &l.bb, &l.e, &l.c, &l.t
	z50, z100 := &l.d, &l.x3
	z2.square(z)
	t.squares(z2, 2)
	z9.mul(t, z)
	z11.mul(z9, z2)
	t.square(z11)
	z5.mul(t, z9) // 2^5 - 1
	t.squares(z5, 5)
	z10.mul(t, z5)
	t.squares(z10, 10)
	z20.mul(t, z10)
	t.squares(z20, 20)
	t.mul(t, z20)
	t.squares(t, 10)
	z50.mul(t, z10)
	t.squares(z50, 50)
	z100.mul(t, z50)
	t.squares(z100, 100)
	t.mul(t, z100)
	t.squares(t, 50)
	t.mul(t, z50)
	t.squares(t, 5)
	z.mul(t, z11)
}

// x25519 sets out to scalar times point, and reports whether the result is not zero. It is zero if
// the point has a small order (RFC 7748, section 6.1). x25519 zeroes l at the end.
func (l *ladder) x25519(out, scalar, point *[32]byte) bool {
	l.k = *scalar
	l.k[0] &= 248
	l.k[31] = l.k[31]&127 | 64
	l.x1.fromBytes(point)
	l.x2, l.z2 = fe{1}, fe{}
	l.x3, l.z3 = l.x1, fe{1}
	var last uint64
	for i := 254; i >= 0; i-- {
		bit := uint64(l.k[i/8]>>(i%8)) & 1
		swap(bit^last, &l.x2, &l.x3)
		swap(bit^last, &l.z2, &l.z3)
		last = bit
		l.step()
	}
	swap(last, &l.x2, &l.x3)
	swap(last, &l.z2, &l.z3)
	l.invert()
	l.x2.mul(&l.x2, &l.z2)
	l.x2.bytes(out)
	*l = ladder{}
	var any byte
	for _, b := range out {
		any |= b
	}
	return any != 0
}

// step is one step of the Montgomery ladder (RFC 7748, section 5).
func (l *ladder) step() {
	l.a.add(&l.x2, &l.z2)
	l.b.sub(&l.x2, &l.z2)
	l.c.add(&l.x3, &l.z3)
	l.d.sub(&l.x3, &l.z3)
	l.d.mul(&l.d, &l.a) // DA
	l.c.mul(&l.c, &l.b) // CB
	l.aa.square(&l.a)
	l.bb.square(&l.b)
	l.e.sub(&l.aa, &l.bb)
	l.x3.add(&l.d, &l.c)
	l.x3.square(&l.x3)
	l.t.sub(&l.d, &l.c)
	l.t.square(&l.t)
	l.z3.mul(&l.x1, &l.t)
	l.x2.mul(&l.aa, &l.bb)
	l.t.mul121665(&l.e)
	l.t.add(&l.t, &l.aa)
	l.z2.mul(&l.e, &l.t)
}

// basePoint is u = 9.
var basePoint = [32]byte{9}
