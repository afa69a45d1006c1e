// Package tunnel makes WireGuard devices and their peers match the table. It is
// the only importer of wgctrl.
//
//	Plan (pure) → Spec ─┐
//	                    ├→ Diff (pure) → Changes → System.Create, Configure, Remove
//	System.Read → State ┘
//
// It promises:
//   - There may be several devices per pair of nodes (key epochs, lanes): a Spec
//     lists devices, and no other package may assume that there is one.
//   - Only what differs is touched: a changed peer is the only one in the
//     configuration that is sent, and no other is read for it. Syncing twice changes nothing.
//   - Watch, or a Sync after Forget, finds changes of a device by other programs, and
//     Sync corrects them.
//   - The kernel's WireGuard is used where it can be made. Otherwise veil-wg makes a
//     TUN. An existing device is kept regardless of its kind, so that nothing is lost.
//   - An endpoint that moved (an authenticated packet came from elsewhere) is kept
//     while handshakes succeed. It is set back to the claimed one when the claim
//     changes, the last handshake is stale, or the peer does not have its address.
//   - No private key is kept from a reading of a device: public keys are compared.
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
