// chachaLanes is ChaCha20 (RFC 8439) of 8 packets of one length under one key. A vector holds one
// word of the state for 16 blocks: lanes 0 to 7 are a block of each packet, lanes 8 to 15 the next
// block of each. polyLanes is Poly1305 of 8 packets of one length, each under its own key, on limbs
// of 44, 44 and 42 bits with the 52-bit multiply-add (AVX-512 IFMA).
//
// Both run in constant time: branches and addresses depend on the length alone.

#include "textflag.h"

DATA sigma<>+0(SB)/8, $0x3320646e61707865
DATA sigma<>+8(SB)/8, $0x6b20657479622d32
GLOBL sigma<>(SB), RODATA|NOPTR, $16

// The block counters of the first pass.
DATA firstBlocks<>+0(SB)/8, $0
DATA firstBlocks<>+8(SB)/8, $0
DATA firstBlocks<>+16(SB)/8, $0
DATA firstBlocks<>+24(SB)/8, $0
DATA firstBlocks<>+32(SB)/8, $0x0000000100000001
DATA firstBlocks<>+40(SB)/8, $0x0000000100000001
DATA firstBlocks<>+48(SB)/8, $0x0000000100000001
DATA firstBlocks<>+56(SB)/8, $0x0000000100000001
GLOBL firstBlocks<>(SB), RODATA|NOPTR, $64

DATA two<>+0(SB)/4, $2
GLOBL two<>(SB), RODATA|NOPTR, $4

DATA limbs<>+0(SB)/8, $0x00000fffffffffff
DATA limbs<>+8(SB)/8, $0x000003ffffffffff
DATA limbs<>+16(SB)/8, $0x0000010000000000
GLOBL limbs<>(SB), RODATA|NOPTR, $24

// STEP is a quarter of four quarter rounds (RFC 8439, section 2.1), interleaved: a += b, d ^= a,
// d <<<= by.
#define STEP(b0, b1, b2, b3, a0, a1, a2, a3, d0, d1, d2, d3, by) \
	VPADDD b0, a0, a0; \
	VPADDD b1, a1, a1; \
	VPADDD b2, a2, a2; \
	VPADDD b3, a3, a3; \
	VPXORD a0, d0, d0; \
	VPXORD a1, d1, d1; \
	VPXORD a2, d2, d2; \
	VPXORD a3, d3, d3; \
	VPROLD $by, d0, d0; \
	VPROLD $by, d1, d1; \
	VPROLD $by, d2, d2; \
	VPROLD $by, d3, d3

// WORDS transposes 4x4 words in each quarter of a to d. It uses Z16 to Z19, like QUARTERS.
#define WORDS(a, b, c, d) \
	VPUNPCKLDQ b, a, Z16; \
	VPUNPCKHDQ b, a, Z17; \
	VPUNPCKLDQ d, c, Z18; \
	VPUNPCKHDQ d, c, Z19; \
	VPUNPCKLQDQ Z18, Z16, a; \
	VPUNPCKHQDQ Z18, Z16, b; \
	VPUNPCKLQDQ Z19, Z17, c; \
	VPUNPCKHQDQ Z19, Z17, d

// QUARTERS transposes a 4x4 matrix of 128-bit elements.
#define QUARTERS(a, b, c, d) \
	VSHUFI32X4 $0x44, b, a, Z16; \
	VSHUFI32X4 $0xee, b, a, Z17; \
	VSHUFI32X4 $0x44, d, c, Z18; \
	VSHUFI32X4 $0xee, d, c, Z19; \
	VSHUFI32X4 $0x88, Z18, Z16, a; \
	VSHUFI32X4 $0xdd, Z18, Z16, b; \
	VSHUFI32X4 $0x88, Z19, Z17, c; \
	VSHUFI32X4 $0xdd, Z19, Z17, d

// XOR XORs 64 bytes of a text with v. MASKED does so with the bytes in K1.
#define XOR(text, at, v) \
	VPXORD at(text)(R15*1), v, v; \
	VMOVDQU64 v, at(text)(R15*1)

#define MASKED(text, at, v) \
	VMOVDQU8.Z at(text)(R15*1), K1, Z16; \
	VPXORD Z16, v, v; \
	VMOVDQU8 v, K1, at(text)(R15*1)

// EACH does do for each text of chachaLanes.
#define EACH(do, at, v0, v1, v2, v3, v4, v5, v6, v7) \
	do(DI, at, v0); \
	do(R8, at, v1); \
	do(R9, at, v2); \
	do(R10, at, v3); \
	do(R11, at, v4); \
	do(R12, at, v5); \
	do(R13, at, v6); \
	do(R14, at, v7)

#define CLEAR(xor, a, b, c, d) \
	xor a, a, a; \
	xor b, b, b; \
	xor c, c, c; \
	xor d, d, d

// func chachaLanes(key *byte, texts *uint64, counters *uint64, polyKeys *byte, n int)
// Requires: AVX, AVX512BW, AVX512F
TEXT ·chachaLanes(SB), NOSPLIT, $0-40
	MOVQ key+0(FP), DX
	MOVQ texts+8(FP), AX
	MOVQ polyKeys+24(FP), BX
	MOVQ n+32(FP), SI
	MOVQ counters+16(FP), CX

	// Rows 14 and 15 are the low and the high word of each packet's counter, in both halves.
	VMOVDQU64 (CX), Z16
	VPMOVQD Z16, Y30
	VPSRLQ $32, Z16, Z16
	VPMOVQD Z16, Y31
	VINSERTI64X4 $1, Y30, Z30, Z30
	VINSERTI64X4 $1, Y31, Z31, Z31
	MOVQ (AX), DI
	MOVQ 8(AX), R8
	MOVQ 16(AX), R9
	MOVQ 24(AX), R10
	MOVQ 32(AX), R11
	MOVQ 40(AX), R12
	MOVQ 48(AX), R13
	MOVQ 56(AX), R14
	VMOVDQU64 firstBlocks<>+0(SB), Z29
	MOVQ $-64, R15

pass:
	VPBROADCASTD sigma<>+0(SB), Z0
	VPBROADCASTD sigma<>+4(SB), Z1
	VPBROADCASTD sigma<>+8(SB), Z2
	VPBROADCASTD sigma<>+12(SB), Z3
	VPBROADCASTD (DX), Z4
	VPBROADCASTD 4(DX), Z5
	VPBROADCASTD 8(DX), Z6
	VPBROADCASTD 12(DX), Z7
	VPBROADCASTD 16(DX), Z8
	VPBROADCASTD 20(DX), Z9
	VPBROADCASTD 24(DX), Z10
	VPBROADCASTD 28(DX), Z11
	VMOVDQA64 Z29, Z12
	VPXORD Z13, Z13, Z13
	VMOVDQA64 Z30, Z14
	VMOVDQA64 Z31, Z15
	MOVQ $10, AX

rounds:
	STEP(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z12, Z13, Z14, Z15, 16)
	STEP(Z12, Z13, Z14, Z15, Z8, Z9, Z10, Z11, Z4, Z5, Z6, Z7, 12)
	STEP(Z4, Z5, Z6, Z7, Z0, Z1, Z2, Z3, Z12, Z13, Z14, Z15, 8)
	STEP(Z12, Z13, Z14, Z15, Z8, Z9, Z10, Z11, Z4, Z5, Z6, Z7, 7)
	STEP(Z5, Z6, Z7, Z4, Z0, Z1, Z2, Z3, Z15, Z12, Z13, Z14, 16)
	STEP(Z15, Z12, Z13, Z14, Z10, Z11, Z8, Z9, Z5, Z6, Z7, Z4, 12)
	STEP(Z5, Z6, Z7, Z4, Z0, Z1, Z2, Z3, Z15, Z12, Z13, Z14, 8)
	STEP(Z15, Z12, Z13, Z14, Z10, Z11, Z8, Z9, Z5, Z6, Z7, Z4, 7)
	DECQ AX
	JNZ rounds

	VPADDD.BCST sigma<>+0(SB), Z0, Z0
	VPADDD.BCST sigma<>+4(SB), Z1, Z1
	VPADDD.BCST sigma<>+8(SB), Z2, Z2
	VPADDD.BCST sigma<>+12(SB), Z3, Z3
	VPADDD.BCST (DX), Z4, Z4
	VPADDD.BCST 4(DX), Z5, Z5
	VPADDD.BCST 8(DX), Z6, Z6
	VPADDD.BCST 12(DX), Z7, Z7
	VPADDD.BCST 16(DX), Z8, Z8
	VPADDD.BCST 20(DX), Z9, Z9
	VPADDD.BCST 24(DX), Z10, Z10
	VPADDD.BCST 28(DX), Z11, Z11
	VPADDD Z29, Z12, Z12
	VPADDD Z30, Z14, Z14
	VPADDD Z31, Z15, Z15
	VPADDD.BCST two<>+0(SB), Z29, Z29

	// 16 words of 16 lanes become 16 lanes of 16 words.
	WORDS(Z0, Z1, Z2, Z3)
	WORDS(Z4, Z5, Z6, Z7)
	WORDS(Z8, Z9, Z10, Z11)
	WORDS(Z12, Z13, Z14, Z15)
	QUARTERS(Z0, Z4, Z8, Z12)
	QUARTERS(Z1, Z5, Z9, Z13)
	QUARTERS(Z2, Z6, Z10, Z14)
	QUARTERS(Z3, Z7, Z11, Z15)

	// In the first pass, the first half is block 0, which holds the Poly1305 keys. Otherwise it is
	// keystream for text.
	TESTQ R15, R15
	JNS text
	VMOVDQU Y0, (BX)
	VMOVDQU Y1, 32(BX)
	VMOVDQU Y2, 64(BX)
	VMOVDQU Y3, 96(BX)
	VMOVDQU Y4, 128(BX)
	VMOVDQU Y5, 160(BX)
	VMOVDQU Y6, 192(BX)
	VMOVDQU Y7, 224(BX)
	JMP second

text:
	MOVQ SI, AX
	SUBQ R15, AX
	CMPQ AX, $128
	JLT firstTail
	EACH(XOR, 0, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
	EACH(XOR, 64, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)
	JMP next

	// The next bytes of each text, AX bytes but at most 64.
firstTail:
	MOVQ $-1, CX
	CMPQ AX, $64
	JGE firstWhole
	MOVQ AX, CX
	MOVQ $1, AX
	SHLQ CL, AX
	DECQ AX
	MOVQ AX, CX

firstWhole:
	KMOVQ CX, K1
	EACH(MASKED, 0, Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)

second:
	MOVQ SI, AX
	SUBQ R15, AX
	SUBQ $64, AX
	JLE done
	MOVQ $-1, CX
	CMPQ AX, $64
	JGE secondWhole
	MOVQ AX, CX
	MOVQ $1, AX
	SHLQ CL, AX
	DECQ AX
	MOVQ AX, CX

secondWhole:
	KMOVQ CX, K1
	EACH(MASKED, 64, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15)

next:
	ADDQ $128, R15
	CMPQ R15, SI
	JLT pass

	// Keystream, key and text leave the registers, also the scratch of WORDS.
done:
	CLEAR(VPXORD, Z0, Z1, Z2, Z3)
	CLEAR(VPXORD, Z4, Z5, Z6, Z7)
	CLEAR(VPXORD, Z8, Z9, Z10, Z11)
	CLEAR(VPXORD, Z12, Z13, Z14, Z15)
	CLEAR(VPXORD, Z16, Z17, Z18, Z19)
	VZEROUPPER
	RET

// Registers of polyLanes. Z0 to Z7 are message words, Z16 to Z19 scratch.
#define H0 Z8
#define H1 Z9
#define H2 Z10
#define LOW0 Z11
#define LOW1 Z12
#define LOW2 Z13
#define HIGH0 Z14
#define HIGH1 Z15
#define HIGH2 Z28
#define KEY0 Z20
#define KEY1 Z21
#define KEY2 Z22
#define TWENTY1 Z23 // 20 r1
#define TWENTY2 Z24 // 20 r2
#define MASK44 Z25
#define MASK42 Z26
#define TOP Z27 // 2^128 in the top limb

// QUADS turns 8 quadwords of 8 packets in Z0 to Z7 into words of 8 lanes. It uses Z11 to Z14.
#define QUADS \
	VPUNPCKHQDQ Z1, Z0, Z11; \
	VPUNPCKLQDQ Z1, Z0, Z0; \
	VPUNPCKHQDQ Z3, Z2, Z12; \
	VPUNPCKLQDQ Z3, Z2, Z2; \
	VPUNPCKHQDQ Z5, Z4, Z13; \
	VPUNPCKLQDQ Z5, Z4, Z4; \
	VPUNPCKHQDQ Z7, Z6, Z14; \
	VPUNPCKLQDQ Z7, Z6, Z6; \
	QUARTERS(Z0, Z2, Z4, Z6); \
	QUARTERS(Z11, Z12, Z13, Z14); \
	VMOVDQA64 Z11, Z1; \
	VMOVDQA64 Z12, Z3; \
	VMOVDQA64 Z13, Z5; \
	VMOVDQA64 Z14, Z7

#define PRODUCT(r, h, low, high) \
	VPMADD52LUQ r, h, low; \
	VPMADD52HUQ r, h, high

// BLOCK adds a block of 16 bytes, low and high quadword, to h and multiplies by r. It adds the
// limbs of the message, then multiplies, then carries: bits from 44 on, and the high parts, which
// weigh 2^52, go to the next limb. Five times the last carry goes to limb 0.
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
#define BLOCK(word0, word1) \
	VPANDQ MASK44, word0, Z16; \
	VPADDQ Z16, H0, H0; \
	VPSRLQ $44, word0, Z17; \
	VPSLLQ $20, word1, Z18; \
	VPORQ Z18, Z17, Z17; \
	VPANDQ MASK44, Z17, Z17; \
	VPADDQ Z17, H1, H1; \
	VPSRLQ $24, word1, Z18; \
	VPORQ TOP, Z18, Z18; \
	VPADDQ Z18, H2, H2; \
	VPXORQ LOW0, LOW0, LOW0; \
	VPXORQ HIGH0, HIGH0, HIGH0; \
	VPXORQ LOW1, LOW1, LOW1; \
	VPXORQ HIGH1, HIGH1, HIGH1; \
	VPXORQ LOW2, LOW2, LOW2; \
	VPXORQ HIGH2, HIGH2, HIGH2; \
	PRODUCT(KEY0, H0, LOW0, HIGH0); \
	PRODUCT(KEY1, H0, LOW1, HIGH1); \
	PRODUCT(KEY2, H0, LOW2, HIGH2); \
	PRODUCT(TWENTY2, H1, LOW0, HIGH0); \
	PRODUCT(KEY0, H1, LOW1, HIGH1); \
	PRODUCT(KEY1, H1, LOW2, HIGH2); \
	PRODUCT(TWENTY1, H2, LOW0, HIGH0); \
	PRODUCT(TWENTY2, H2, LOW1, HIGH1); \
	PRODUCT(KEY0, H2, LOW2, HIGH2); \
	VPANDQ MASK44, LOW0, H0; \
	VPSRLQ $44, LOW0, Z16; \
	VPSLLQ $8, HIGH0, HIGH0; \
	VPADDQ Z16, LOW1, LOW1; \
	VPADDQ HIGH0, LOW1, LOW1; \
	VPANDQ MASK44, LOW1, H1; \
	VPSRLQ $44, LOW1, Z16; \
	VPSLLQ $8, HIGH1, HIGH1; \
	VPADDQ Z16, LOW2, LOW2; \
	VPADDQ HIGH1, LOW2, LOW2; \
	VPANDQ MASK42, LOW2, H2; \
	VPSRLQ $42, LOW2, Z16; \
	VPSLLQ $10, HIGH2, HIGH2; \
	VPADDQ HIGH2, Z16, Z16; \
	VPSLLQ $2, Z16, Z17; \
	VPADDQ Z16, H0, H0; \
	VPADDQ Z17, H0, H0; \
	VPSRLQ $44, H0, Z16; \
	VPANDQ MASK44, H0, H0; \
	VPADDQ Z16, H1, H1

// func polyLanes(state *uint64, texts *uint64, n int)
// Requires: AVX, AVX512BW, AVX512F, AVX512IFMA
TEXT ·polyLanes(SB), NOSPLIT, $0-24
	MOVQ state+0(FP), DX
	MOVQ texts+8(FP), AX
	MOVQ n+16(FP), BX
	MOVQ (AX), SI
	MOVQ 8(AX), DI
	MOVQ 16(AX), R8
	MOVQ 24(AX), R9
	MOVQ 32(AX), R10
	MOVQ 40(AX), R11
	MOVQ 48(AX), R12
	MOVQ 56(AX), R13
	VMOVDQU64 (DX), H0
	VMOVDQU64 192(DX), KEY0
	VMOVDQU64 64(DX), H1
	VMOVDQU64 256(DX), KEY1
	VMOVDQU64 384(DX), TWENTY1
	VMOVDQU64 128(DX), H2
	VMOVDQU64 320(DX), KEY2
	VMOVDQU64 448(DX), TWENTY2
	VPBROADCASTQ limbs<>+0(SB), MASK44
	VPBROADCASTQ limbs<>+8(SB), MASK42
	VPBROADCASTQ limbs<>+16(SB), TOP
	MOVQ BX, R14
	XORQ R15, R15
	SUBQ $64, R14
	JLT polyTail

polyLoop:
	VMOVDQU64 (SI)(R15*1), Z0
	VMOVDQU64 (DI)(R15*1), Z1
	VMOVDQU64 (R8)(R15*1), Z2
	VMOVDQU64 (R9)(R15*1), Z3
	VMOVDQU64 (R10)(R15*1), Z4
	VMOVDQU64 (R11)(R15*1), Z5
	VMOVDQU64 (R12)(R15*1), Z6
	VMOVDQU64 (R13)(R15*1), Z7
	QUADS
	BLOCK(Z0, Z1)
	BLOCK(Z2, Z3)
	BLOCK(Z4, Z5)
	BLOCK(Z6, Z7)
	ADDQ $64, R15
	SUBQ $64, R14
	JGE polyLoop

polyTail:
	ADDQ $64, R14
	JZ polyLength
	MOVQ R14, CX
	MOVQ $1, AX
	SHLQ CL, AX
	DECQ AX
	KMOVQ AX, K1
	VMOVDQU8.Z (SI)(R15*1), K1, Z0
	VMOVDQU8.Z (DI)(R15*1), K1, Z1
	VMOVDQU8.Z (R8)(R15*1), K1, Z2
	VMOVDQU8.Z (R9)(R15*1), K1, Z3
	VMOVDQU8.Z (R10)(R15*1), K1, Z4
	VMOVDQU8.Z (R11)(R15*1), K1, Z5
	VMOVDQU8.Z (R12)(R15*1), K1, Z6
	VMOVDQU8.Z (R13)(R15*1), K1, Z7
	QUADS
	BLOCK(Z0, Z1)
	SUBQ $16, R14
	JLE polyLength
	BLOCK(Z2, Z3)
	SUBQ $16, R14
	JLE polyLength
	BLOCK(Z4, Z5)
	SUBQ $16, R14
	JLE polyLength
	BLOCK(Z6, Z7)

polyLength:
	VPXORQ Z0, Z0, Z0
	VPBROADCASTQ BX, Z1
	BLOCK(Z0, Z1)
	VMOVDQU64 H0, (DX)
	VMOVDQU64 H1, 64(DX)
	VMOVDQU64 H2, 128(DX)
	CLEAR(VPXORQ, Z0, Z1, Z2, Z3)
	CLEAR(VPXORQ, Z4, Z5, Z6, Z7)
	CLEAR(VPXORQ, Z8, Z9, Z10, Z11)
	CLEAR(VPXORQ, Z12, Z13, Z14, Z15)
	CLEAR(VPXORQ, Z16, Z17, Z18, Z19)
	CLEAR(VPXORQ, Z20, Z21, Z22, Z23)
	CLEAR(VPXORQ, Z24, Z25, Z26, Z27)
	CLEAR(VPXORQ, Z28, Z29, Z30, Z31)
	VZEROUPPER
	RET
