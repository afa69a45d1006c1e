// Package aead seals and opens WireGuard's transport messages in batches with ChaCha20-Poly1305
// (RFC 8439), nonce = 4 zero bytes and the 64-bit counter, no additional data.
//
// A Tier is an implementation. Each is proven against x/crypto when the program starts (Choose): a
// tier that differs in one bit is not used. Tiers run in constant time: no branch and no index
// depends on keys or data. Lengths and counters are public.
//
//	x/crypto  every CPU; the reference
//	avx512    8 packets of one length at a time; CPUs with AVX-512 F, BW, VL, DQ and IFMA
//
// Wycheproof's vectors pass through each tier. chachaLanes takes WireGuard's nonces alone, which ten
// vectors have; the tags of all pass through polyLanes. An interpreter runs the assembly where the
// CPU has no AVX-512.
//
// Keys are pointers to memory of package secret, and no tier copies one to the heap. A Worker is
// the scratch of one thread.
//
// Start reading at Tier.
package aead
