// Package aead seals and opens WireGuard's transport messages in batches with ChaCha20-Poly1305
// (RFC 8439), nonce = 4 zero bytes and the 64-bit counter, no additional data.
//
// A Tier is an implementation. When the program starts, Choose compares each tier with x/crypto. A
// tier that differs in one bit is not used. Tiers run in constant time: no branch and no index
// depends on keys or data. Lengths and counters are not secret.
//
//	x/crypto  every CPU; the reference
//	avx512    8 packets of one length at a time; CPUs with AVX-512 F, BW, VL, DQ and IFMA
//
// Tests run Wycheproof's vectors through each tier. chachaLanes supports only WireGuard's form of
// nonces, which ten vectors have. The tags of all vectors are computed by polyLanes. Where the CPU
// has no AVX-512, tests interpret the assembly.
//
// Keys are pointers to memory of package secret, and no tier copies a key to the heap. A Worker is
// the scratch memory of one thread.
//
// Start reading at Tier.
package aead
