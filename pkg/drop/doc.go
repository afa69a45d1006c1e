// Package drop keeps samples of the packets that the node dropped, and names their pods, policies
// and peers.
//
//	rules that drop ─► nflog ────┐
//	programs that drop ─► ring ──┴─► Feature ─► Ring ─► veilctl drops
//	policies: their keeper ────────────┘  │
//	counters of all drops ───────────► tally: how many have no sample
//
// It promises:
//   - A packet that is not dropped costs nothing.
//   - Only headers are kept, of at most Size packets.
//   - A pod whose packets are often dropped does not push out the samples of others.
//   - Every packet that was dropped since the Feature began has a sample or counts as skipped.
//
// It refuses to decide anything: without the kernel's log, veild works as before, and its page says
// why there are no samples.
//
// A source address names a pod only if the pod's own link, or a tunnel, vouches for it.
//
// Start with Feature.Sampled.
package drop
