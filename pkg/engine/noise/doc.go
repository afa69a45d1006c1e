// Package noise is WireGuard's handshake: Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s with MAC1, MAC2 and
// cookies (WireGuard whitepaper, sections 5.3 and 5.4).
//
//	Identity.Initiate ── initiation ──→ Identity.Open, Verify, Respond
//	Identity.Finish   ←─ response ────────────────┘
//
// It promises:
//   - A message changes no state until it is known to be complete and authentic.
//   - Initiations of the peer do not affect the state of this side's initiation, so both sides can
//     initiate at the same time.
//   - Private keys, shared secrets, chaining keys and session keys live in memory of package secret
//     and are zeroed once they are used. X25519 and HKDF are computed there too.
//
// It has no clock, no table of peers and no socket. It does not limit rates and does not detect
// replays; package engine does both. Identity and the values of one peer are not safe for
// concurrent use.
//
// Start reading at Identity.Initiate.
package noise
