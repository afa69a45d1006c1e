// Package tunnel makes WireGuard devices and their peers match the table. Package wgdevice below it
// reads and writes the devices; it is the only importer of wgctrl.
//
//	Plan (pure) → Spec ──────┐
//	                         ├→ Diff (pure) → Changes → System.Create, Configure, Remove
//	System.Read → LiveState ─┘
//
// It promises:
//   - There may be several devices per pair of nodes (key epochs, lanes): a Spec
//     lists devices, and no other package may assume that there is one.
//   - Only what differs is touched: a changed peer is the only one in the
//     configuration that is sent, and no other is read for it. Syncing twice changes nothing.
//   - Watch, or a Sync after Forget, finds changes of a device by other programs, and
//     Sync corrects them.
//   - An endpoint that moved (an authenticated packet came from elsewhere) is kept
//     while handshakes succeed. It is set back to the claimed one when the claim
//     changes, the last handshake is stale, or the peer does not have its address.
//
// It refuses a Spec in which a key or an allowed IP occurs twice on a device.
//
// Start reading at Manager.Sync.
package tunnel
