// Package leak reports whether anything of a cluster was seen in clear on a network.
//
// It promises: every frame that crossed a watched link between Watch and Stop was judged, or the
// Result says how many were not (Dropped), which is no pass. Judging is an allow-list: what is
// not tunnel UDP between known nodes that begins like a WireGuard message, neighbour discovery, or
// a flow named by the caller is a Finding, and so is what has more IP headers than the guard reads.
// Among the findings are leaks: an address of the cluster's ranges in
// any readable header (ICMP errors, tunnels of other kinds, routing headers, ARP and ND targets
// included), or a canary anywhere in the bytes of any frame, an allowed one too.
//
// It cannot see a secret without a canary inside an allowed flow; that is why all of the lab's
// traffic carries one. It never decrypts.
//
// Start reading at Classify, the pure judgement; internal/packetring is how frames are read.
package leak
