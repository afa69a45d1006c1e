// Package noise is WireGuard's handshake: Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s with MAC1, MAC2 and
// cookies (WireGuard whitepaper, sections 5.3 and 5.4).
//
//	Identity.Initiate ── initiation ──→ Identity.Open, Verify, Respond
//	Identity.Finish   ←─ response ────────────────┘
//
// It promises:
//   - A message changes nothing until it has proven to be whole and authentic.
//   - The state of an initiation that this side began survives the initiations of the other side,
//     so that both can begin at once.
//   - Private keys, shared secrets, chaining keys and session keys live in memory of package secret
//     and are zeroed once they are used. X25519 and HKDF are computed there too.
//
// It keeps no clock, no table and no socket, and it decides nothing about rates or replays: package
// engine compares timestamps. Identity and the values of one peer are not safe for concurrent use.
//
// Start reading at Identity.Initiate.
package noise
