// Package tunnel makes WireGuard devices and their peers match the table. Package wgdevice below it
// reads and writes the devices; it is the only importer of wgctrl.
//
//	Plan (pure) → Spec ──────┐
//	                         ├→ Diff (pure) → Changes → System.Create, Configure, Remove
//	System.Read → LiveState ─┘
//
// It promises:
//   - There may be several devices per pair of nodes (key epochs, lanes). A Spec lists devices, and
//     no other package may assume that there is only one.
//   - Only differences are changed. For a changed peer, the configuration that is sent has only
//     that peer, and no other peer is read. Syncing twice changes nothing.
//   - Watch, or a Sync after Forget, finds changes of a device by other programs, and
//     Sync corrects them.
//   - An endpoint that moved, because an authenticated packet came from another address, is kept
//     while handshakes succeed. It is set back to the claimed endpoint if the claim changes, if the
//     last handshake is stale, or if the address does not belong to the peer.
//
// It refuses a Spec in which a key or an allowed IP occurs twice on a device.
//
// Start reading at Manager.Sync.
package tunnel
