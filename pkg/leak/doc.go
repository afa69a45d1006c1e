// Package leak reports whether anything of a cluster was seen in clear on a network.
//
// It promises that every frame that crossed a watched link between Watch and Stop was judged, or
// that Result.Dropped counts the frames that were not, and then the run has not passed. Judging is
// an allow-list. It allows UDP between known nodes that begins like a WireGuard message, neighbour
// discovery, and the flows that the caller names. Everything else is a Finding, and so is a frame
// with more IP headers than the guard reads.
//
// Some findings are leaks. A leak has an address of the cluster's ranges in any readable header
// (ICMP errors, tunnels of other kinds, routing headers, ARP and ND targets included), or a canary
// in its bytes. An allowed frame with a canary is a leak, too.
//
// It cannot see a secret without a canary inside an allowed flow; that is why all of the lab's
// traffic carries one. It never decrypts.
//
// Start reading at Classify, the pure judgement; internal/packetring reads the frames.
package leak
