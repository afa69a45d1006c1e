// Command gen writes the assembly of the AVX-512 tier. go generate runs it in package aead. It is a
// separate module, so that building Kubeveil does not need avo.
//
// chachaLanes is ChaCha20 (RFC 8439) of 8 packets of one length under one key. A vector holds one
// word of the state for 16 blocks: lanes 0 to 7 are a block of each packet, lanes 8 to 15 the next
// block of each. polyLanes is Poly1305 of 8 packets of one length, each under its own key, on limbs
// of 44, 44 and 42 bits with the 52-bit multiply-add (AVX-512 IFMA).
//
// Both run in constant time: branches and addresses depend on the length alone. Start reading at
// main.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// z are the vector registers by number.
var z = [32]VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
	Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31}

func main() {
	ConstraintExpr("amd64")
	chacha()
	poly()
	Generate()
}

func chacha() {
	sigma := GLOBL("sigma", RODATA|NOPTR)
	for i, w := range []uint32{0x61707865, 0x3320646e, 0x79622d32, 0x6b206574} {
		DATA(4*i, U32(w))
	}
	// The block counters of the first pass.
	first := GLOBL("firstBlocks", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(i/8))
	}
	two := GLOBL("two", RODATA|NOPTR)
	DATA(0, U32(2))

	TEXT("chachaLanes", NOSPLIT,
		"func(key *byte, texts *uint64, counters *uint64, polyKeys *byte, n int)")
	Pragma("noescape")
	Doc("chachaLanes XORs n bytes at each of 8 addresses with the keystream from block 1 on, "+
		"and writes",
		"the first 32 bytes of block 0 of each to polyKeys. counters are the nonces.")
	key := Load(Param("key"), GP64())
	texts := Load(Param("texts"), GP64())
	polyKeys := Load(Param("polyKeys"), GP64())
	n := Load(Param("n"), GP64())
	var text [8]Register
	{
		counters := Load(Param("counters"), GP64())
		// Rows 14 and 15 are the low and the high word of each packet's counter, in both halves.
		VMOVDQU64(Mem{Base: counters}, Z16)
		VPMOVQD(Z16, Y30)
		VPSRLQ(Imm(32), Z16, Z16)
		VPMOVQD(Z16, Y31)
		VINSERTI64X4(Imm(1), Y30, Z30, Z30)
		VINSERTI64X4(Imm(1), Y31, Z31, Z31)
	}
	for i := range text {
		text[i] = GP64()
		MOVQ(Mem{Base: texts, Disp: 8 * i}, text[i])
	}
	VMOVDQU64(first, Z29)
	off := GP64()
	MOVQ(I32(-64), off)

	Label("pass")
	for i := range 4 {
		VPBROADCASTD(sigma.Offset(4*i), z[i])
	}
	for i := range 8 {
		VPBROADCASTD(Mem{Base: key, Disp: 4 * i}, z[4+i])
	}
	VMOVDQA64(Z29, Z12)
	VPXORD(Z13, Z13, Z13)
	VMOVDQA64(Z30, Z14)
	VMOVDQA64(Z31, Z15)
	count := GP64()
	MOVQ(U32(10), count)
	Label("rounds")
	quarters([4][4]int{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}})
	quarters([4][4]int{{0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13}, {3, 4, 9, 14}})
	DECQ(count)
	JNZ(LabelRef("rounds"))

	for i := range 4 {
		VPADDD_BCST(sigma.Offset(4*i), z[i], z[i])
	}
	for i := range 8 {
		VPADDD_BCST(Mem{Base: key, Disp: 4 * i}, z[4+i], z[4+i])
	}
	VPADDD(Z29, Z12, Z12)
	VPADDD(Z30, Z14, Z14)
	VPADDD(Z31, Z15, Z15)
	VPADDD_BCST(two, Z29, Z29)
	transposeWords()

	// In the first pass, the first half is block 0, which holds the Poly1305 keys. Otherwise it is
	// keystream for text.
	TESTQ(off, off)
	JNS(LabelRef("text"))
	for i := range 8 {
		VMOVDQU(z[i].(Vec).AsY(), Mem{Base: polyKeys, Disp: 32 * i})
	}
	JMP(LabelRef("second"))

	Label("text")
	MOVQ(n, count)
	SUBQ(off, count)
	CMPQ(count, U8(128))
	JLT(LabelRef("firstTail"))
	for i := range 16 {
		at := Mem{Base: text[i%8], Index: off, Scale: 1, Disp: 64 * (i / 8)}
		VPXORD(at, z[i], z[i])
		VMOVDQU64(z[i], at)
	}
	JMP(LabelRef("next"))

	Label("firstTail")
	masked(count, text, off, 0, "first")

	Label("second")
	MOVQ(n, count)
	SUBQ(off, count)
	SUBQ(U8(64), count)
	JLE(LabelRef("done"))
	masked(count, text, off, 8, "second")

	Label("next")
	ADDQ(I32(128), off)
	CMPQ(off, n)
	JLT(LabelRef("pass"))
	Label("done")
	// Clear keystream, key and text from the registers, also from the scratch of transposeWords.
	for i := range 20 {
		VPXORD(z[i], z[i], z[i])
	}
	VZEROUPPER()
	RET()
}

// masked XORs the next bytes of each text, count bytes but at most 64, with registers z[first] to
// z[first+7].
func masked(count Register, text [8]Register, off Register, first int, name string) {
	MOVQ(I32(-1), RCX)
	CMPQ(count, U8(64))
	JGE(LabelRef(name + "Whole"))
	MOVQ(count, RCX)
	MOVQ(U32(1), RAX)
	SHLQ(CL, RAX)
	DECQ(RAX)
	MOVQ(RAX, RCX)
	Label(name + "Whole")
	KMOVQ(RCX, K1)
	for i := range 8 {
		at := Mem{Base: text[i], Index: off, Scale: 1, Disp: 64 * (first / 8)}
		VMOVDQU8_Z(at, K1, Z16)
		VPXORD(Z16, z[first+i], z[first+i])
		VMOVDQU8(z[first+i], K1, at)
	}
}

// quarters emits four quarter rounds (RFC 8439, section 2.1), interleaved.
func quarters(q [4][4]int) {
	step := func(add, to, xor, rot int, by uint8) {
		for _, r := range q {
			VPADDD(z[r[add]], z[r[to]], z[r[to]])
		}
		for _, r := range q {
			VPXORD(z[r[to]], z[r[xor]], z[r[xor]])
		}
		for _, r := range q {
			VPROLD(Imm(uint64(by)), z[r[rot]], z[r[rot]])
		}
	}
	step(1, 0, 3, 3, 16)
	step(3, 2, 1, 1, 12)
	step(1, 0, 3, 3, 8)
	step(3, 2, 1, 1, 7)
}

// transposeWords turns 16 words of 16 lanes in z0 to z15 into 16 lanes of 16 words. It uses z16 to
// z19.
func transposeWords() {
	for k := 0; k < 16; k += 4 {
		a, b, c, d := z[k], z[k+1], z[k+2], z[k+3]
		VPUNPCKLDQ(b, a, Z16)
		VPUNPCKHDQ(b, a, Z17)
		VPUNPCKLDQ(d, c, Z18)
		VPUNPCKHDQ(d, c, Z19)
		VPUNPCKLQDQ(Z18, Z16, a)
		VPUNPCKHQDQ(Z18, Z16, b)
		VPUNPCKLQDQ(Z19, Z17, c)
		VPUNPCKHQDQ(Z19, Z17, d)
	}
	for e := range 4 {
		transposeQuarters(z[e], z[4+e], z[8+e], z[12+e])
	}
}

// transposeQuarters transposes a 4x4 matrix of 128-bit elements. It uses z16 to z19.
func transposeQuarters(a, b, c, d VecPhysical) {
	VSHUFI32X4(Imm(0x44), b, a, Z16)
	VSHUFI32X4(Imm(0xee), b, a, Z17)
	VSHUFI32X4(Imm(0x44), d, c, Z18)
	VSHUFI32X4(Imm(0xee), d, c, Z19)
	VSHUFI32X4(Imm(0x88), Z18, Z16, a)
	VSHUFI32X4(Imm(0xdd), Z18, Z16, b)
	VSHUFI32X4(Imm(0x88), Z19, Z17, c)
	VSHUFI32X4(Imm(0xdd), Z19, Z17, d)
}

// Registers of polyLanes. z0 to z7 are message words, z16 to z19 scratch.
var (
	h    = [3]VecPhysical{Z8, Z9, Z10}
	r    = [3]VecPhysical{Z20, Z21, Z22}
	s    = [3]VecPhysical{nil, Z23, Z24} // 20 r1, 20 r2
	m44  = Z25
	m42  = Z26
	high = Z27 // 2^128 in the top limb
	lo   = [3]VecPhysical{Z11, Z12, Z13}
	hi   = [3]VecPhysical{Z14, Z15, Z28}
)

func poly() {
	limbs := GLOBL("limbs", RODATA|NOPTR)
	DATA(0, U64(1<<44-1))
	DATA(8, U64(1<<42-1))
	DATA(16, U64(1<<40))

	TEXT("polyLanes", NOSPLIT, "func(state *uint64, texts *uint64, n int)")
	Pragma("noescape")
	Doc("polyLanes adds n bytes at each of 8 addresses, padded to 16, and the block of their "+
		"lengths to h.",
		"state is h, r and 20r as 3 limbs each, every limb 8 lanes; 20r has no first limb.")
	state := Load(Param("state"), GP64())
	texts := Load(Param("texts"), GP64())
	n := Load(Param("n"), GP64())
	var text [8]Register
	for i := range text {
		text[i] = GP64()
		MOVQ(Mem{Base: texts, Disp: 8 * i}, text[i])
	}
	for i := range 3 {
		VMOVDQU64(Mem{Base: state, Disp: 64 * i}, h[i])
		VMOVDQU64(Mem{Base: state, Disp: 64 * (3 + i)}, r[i])
		if i > 0 {
			VMOVDQU64(Mem{Base: state, Disp: 64 * (5 + i)}, s[i])
		}
	}
	VPBROADCASTQ(limbs.Offset(0), m44)
	VPBROADCASTQ(limbs.Offset(8), m42)
	VPBROADCASTQ(limbs.Offset(16), high)
	left, off := GP64(), GP64()
	MOVQ(n, left)
	XORQ(off, off)

	SUBQ(U8(64), left)
	JLT(LabelRef("polyTail"))
	Label("polyLoop")
	for i := range 8 {
		VMOVDQU64(Mem{Base: text[i], Index: off, Scale: 1}, z[i])
	}
	transposeQuads()
	for i := 0; i < 8; i += 2 {
		block(z[i], z[i+1])
	}
	ADDQ(U8(64), off)
	SUBQ(U8(64), left)
	JGE(LabelRef("polyLoop"))

	Label("polyTail")
	ADDQ(U8(64), left)
	JZ(LabelRef("polyLength"))
	MOVQ(left, RCX)
	MOVQ(U32(1), RAX)
	SHLQ(CL, RAX)
	DECQ(RAX)
	KMOVQ(RAX, K1)
	for i := range 8 {
		VMOVDQU8_Z(Mem{Base: text[i], Index: off, Scale: 1}, K1, z[i])
	}
	transposeQuads()
	for i := 0; i < 8; i += 2 {
		block(z[i], z[i+1])
		if i < 6 {
			SUBQ(U8(16), left)
			JLE(LabelRef("polyLength"))
		}
	}

	Label("polyLength")
	VPXORQ(Z0, Z0, Z0)
	VPBROADCASTQ(n, Z1)
	block(Z0, Z1)
	for i := range 3 {
		VMOVDQU64(h[i], Mem{Base: state, Disp: 64 * i})
	}
	for i := range 32 {
		VPXORQ(z[i], z[i], z[i])
	}
	VZEROUPPER()
	RET()
}

// transposeQuads turns 8 quadwords of 8 packets in z0 to z7 into words of 8 lanes. It uses z16 to
// z19 and z11 to z14.
func transposeQuads() {
	t := [4]VecPhysical{Z11, Z12, Z13, Z14}
	for i := range 4 {
		VPUNPCKHQDQ(z[2*i+1], z[2*i], t[i])
		VPUNPCKLQDQ(z[2*i+1], z[2*i], z[2*i])
	}
	transposeQuarters(z[0], z[2], z[4], z[6])
	transposeQuarters(t[0], t[1], t[2], t[3])
	for i := range 4 {
		VMOVDQA64(t[i], z[2*i+1])
	}
}

// block adds a block of 16 bytes, low and high quadword, to h and multiplies by r.
//
// No lane overflows. VPMADD52 reads 52 bits of its factors, and limbs have 64.
//
//	On entry            h0 < 2^44, h1 < 2^44 + 2^10, h2 < 2^42. It holds for 0, and at the end.
//	The key, clamped    r0, r1 < 2^44, r2 < 2^36, so 20 r1 < 2^49, 20 r2 < 2^41.
//	With the message    h0 < 2^45, h1 < 2^46, h2 < 2^43: its limbs are below 2^44, 2^44 and 2^41.
//	Products            at most h2 * 20 r1 < 2^92, h1 * 20 r2 < 2^87, others h * r < 2^90.
//	Low parts, of 3     lo < 3 * 2^52.
//	High parts, of 3    hi0 < 2^41, hi1 and hi2 < 2^40.
//	Carry to limb 1     lo0 >> 44 < 2^10, hi0 << 8 < 2^49, so lo1 < 2^54.
//	Carry to limb 2     lo1 >> 44 < 2^10, hi1 << 8 < 2^48, so lo2 < 2^54.
//	Carry out           c = (lo2 >> 42) + (hi2 << 10) < 2^12 + 2^50 < 2^51.
//	At the end          h0 + 5 c < 2^44 + 5 * 2^51 < 2^54, of which h0 keeps 44 bits, and h1 gets
//	                    less than 2^10.
//
// Limb 3 would weigh 2^132, which is 4 * 5 modulo 2^130 - 5: hence 20.
func block(t0, t1 VecPhysical) {
	// Limbs of the message.
	VPANDQ(m44, t0, Z16)
	VPADDQ(Z16, h[0], h[0])
	VPSRLQ(Imm(44), t0, Z17)
	VPSLLQ(Imm(20), t1, Z18)
	VPORQ(Z18, Z17, Z17)
	VPANDQ(m44, Z17, Z17)
	VPADDQ(Z17, h[1], h[1])
	VPSRLQ(Imm(24), t1, Z18)
	VPORQ(high, Z18, Z18)
	VPADDQ(Z18, h[2], h[2])

	for i := range 3 {
		VPXORQ(lo[i], lo[i], lo[i])
		VPXORQ(hi[i], hi[i], hi[i])
	}
	factor := [3][3]VecPhysical{{r[0], s[2], s[1]}, {r[1], r[0], s[2]}, {r[2], r[1], r[0]}}
	for j := range 3 {
		for i := range 3 {
			VPMADD52LUQ(factor[i][j], h[j], lo[i])
			VPMADD52HUQ(factor[i][j], h[j], hi[i])
		}
	}

	// Carries: bits from 44 on, and the high parts, which weigh 2^52, go to the next limb.
	VPANDQ(m44, lo[0], h[0])
	VPSRLQ(Imm(44), lo[0], Z16)
	VPSLLQ(Imm(8), hi[0], hi[0])
	VPADDQ(Z16, lo[1], lo[1])
	VPADDQ(hi[0], lo[1], lo[1])
	VPANDQ(m44, lo[1], h[1])
	VPSRLQ(Imm(44), lo[1], Z16)
	VPSLLQ(Imm(8), hi[1], hi[1])
	VPADDQ(Z16, lo[2], lo[2])
	VPADDQ(hi[1], lo[2], lo[2])
	VPANDQ(m42, lo[2], h[2])
	VPSRLQ(Imm(42), lo[2], Z16)
	VPSLLQ(Imm(10), hi[2], hi[2])
	VPADDQ(hi[2], Z16, Z16)
	// Times 5.
	VPSLLQ(Imm(2), Z16, Z17)
	VPADDQ(Z16, h[0], h[0])
	VPADDQ(Z17, h[0], h[0])
	VPSRLQ(Imm(44), h[0], Z16)
	VPANDQ(m44, h[0], h[0])
	VPADDQ(Z16, h[1], h[1])
}
