// Package reach proves that a tunnel carries packets both ways, by a small echo inside it:
//
//	Prober ─► ICMP echo, bound to the device ─► veil0 ═► the peer's kernel ─► answer ═► veil0 ─► Prober
//
// It promises:
//   - One echo per second for each peer, and none for peers that SetPeers does not name.
//   - Only an answer that came by the same device counts. The echo has the mark of pods, and the
//     peer's kernel answers with the mark of the packet that it answers (fwmark_reflect). So the
//     answer takes the tunnel too.
//   - The kernel answers. A peer whose veild restarts is not dead.
//   - A peer is dead after three echoes without an answer, if no other authentic packet of it came
//     meanwhile. A single answer or packet revives it.
//   - A peer to which this process may not send echoes is not dead, and Problem has the reason.
//
// Package pathmtu keeps the sizes of packets. Start with Prober in prober.go.
package reach
