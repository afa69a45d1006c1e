// Package tunnel makes WireGuard devices and their peers match the table. It is
// the only importer of wgctrl.
//
//	Plan (pure) → Spec ─┐
//	                    ├→ Diff (pure) → Changes → System.Create, Configure, Remove
//	System.Read → State ┘
//
// It promises:
//   - Several devices a node pair (key epochs, lanes) from the first day: a Spec
//     lists devices, and nothing outside this package may assume one.
//   - Only what differs is touched: a changed peer is the only one in the
//     configuration that is sent, and no other is read for it. Syncing twice changes nothing.
//   - What others change on a device is found by Watch, or after Forget, and mended.
//   - The kernel's WireGuard is used where it can be made, else veil-wg is asked
//     for a TUN. A device that exists is kept whatever its kind, so that nothing is lost.
//   - An endpoint that moved (an authenticated packet came from elsewhere) is kept
//     while handshakes succeed. It is set back to the claimed one when the claim
//     changes, the last handshake is stale, or its address is none of the peer's.
//   - No private key is kept from what a device says: public keys are compared.
//
// It refuses a Spec in which a key or an allowed IP occurs twice on a device, and
// a device's name that belongs to a link of another type. It removes only devices
// whose name and link group are ours.
//
// It is larger than most packages: reading, comparing and writing devices share one State, and what
// veil-wg knows beyond WireGuard's protocol is a part of it.
//
// Start reading at Manager.Sync.
package tunnel
