// Package pathmtu finds paths between nodes that carry less than the MTU of the interface, where
// ICMP is dropped, by probing inside the tunnel.
//
//	Prober ── UDP of N bytes inside, DF ──→ tunnel ──→ the peer's Prober
//	   ↑──────── 24 bytes, same nonce ─────────────────────┘
//
// It promises:
//
//   - A path that drops large packets and carries small ones is noticed within an Interval of
//     traffic. A binary search then finds the size, in steps of 16 bytes, to which WireGuard pads.
//   - A size counts as carried only after a probe of that size was answered.
//   - Random loss and dead peers do not lower the size. A slow peer does not either: an answer that
//     comes after its probe counted as lost still shows that the path carries its size.
//   - A size that was lowered wrongly, by losses in a row, does not stay: the full size is tried
//     again after RaiseMin, then after twice that, and so on, up to RaiseInterval.
//
// Where the tunnel may send segmented datagrams, each check ends with a burst: eight probes of the
// size in one segmented datagram. If the kernel or a device on the path cannot handle segmented
// datagrams, the whole burst is lost. The path counts as broken if a burst is lost and the single
// probe after it is answered, Tries times in a row.
//
// Only peers with traffic are probed (demand.go), so that probes do not keep tunnels between idle
// peers busy. Silent peers get one small probe each in turn, one peer every two seconds, so that
// their return is noticed without traffic.
//
// The tunnel encrypts probes, but the peer reads them in clear. A probe is answered, and an answer
// is accepted, only if it came through the tunnel device of the peer and from the peer's address.
// An answer must also carry the nonce of the probe under way. An answer is never larger than its
// probe.
//
// Search makes the decisions and is pure. Prober has the sockets.
package pathmtu
