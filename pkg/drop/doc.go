// Package drop keeps samples of the packets that the node dropped, and names their pods, policies
// and peers.
//
//	rules that drop ─► nflog ────┐
//	programs that drop ─► ring ──┴─► Feature ─► Ring ─► veilctl drops
//	policies: their keeper ────────────┘  │
//	counters of all drops ───────────► tally: how many have no sample
//
// It promises:
//   - Packets that are not dropped cost nothing.
//   - Only headers are kept, of at most Size packets.
//   - A pod with many dropped packets does not displace the samples of other pods.
//   - Every packet that was dropped since the Feature began has a sample or counts as skipped.
//
// It never changes which packets are dropped. Without nflog, veild works as before, and the page
// contains the reason why there are no samples.
//
// A source address is attributed to a pod only if the packet came from the pod's own link or from
// a tunnel.
//
// Start with Feature.Sampled.
package drop
