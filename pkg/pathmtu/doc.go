// Package pathmtu finds paths between nodes that carry less than the MTU of the interface, where
// ICMP is dropped, by probing inside the tunnel.
//
//	Prober ── UDP of N bytes inside, DF ──→ tunnel ──→ the peer's Prober
//	   ↑──────── 24 bytes, same nonce ─────────────────────┘
//
// It promises that a path which drops large packets and carries small ones is
// noticed within an Interval of traffic and searched by halves in steps of 16 bytes, to which
// WireGuard pads; that a size is only believed after a packet of it was answered;
// that loss and dead peers lower nothing; and that the full size is tried again after
// RaiseInterval.
//
// Where the tunnel may send datagrams segmented, each check ends with a burst: eight probes of the
// size as one segmented datagram. A kernel or a device on the path that loses segmented datagrams
// loses the whole burst. The path counts as broken when a burst was lost and a single probe after
// it was answered, as many times in a row as a size is tried.
//
// Only peers with traffic are probed (demand.go): a path that carries nothing is not
// worth a packet, and probes must not be what keeps two idle peers busy.
//
// Probes are in clear for every host inside the tunnel. A probe is only
// answered, and an answer only believed, when it came by the tunnel device of the
// peer from the peer's address; an answer must carry the nonce of the probe that is
// under way. The answer is never larger than the probe.
//
// The decisions are Search, which is pure; Prober has the sockets.
package pathmtu
