// Package leak reports whether anything of a cluster was seen in clear on a network.
//
// It judges every frame that crosses a watched link between Watch and Stop. Result.Dropped counts
// the frames that it could not judge; if there are any, the run has not passed. It judges by an
// allow-list: UDP between known nodes that begins like a WireGuard message, neighbour discovery,
// and the flows that the caller names. Every other frame is a finding, and so is a frame with more
// IP headers than the guard reads.
//
// Some findings are leaks. A leak has an address of the cluster's ranges in any readable header,
// including ICMP errors, other tunnels, routing headers, and the targets of ARP and neighbour
// discovery. A frame with a canary in its bytes is a leak, even if it is otherwise allowed.
//
// The oracle cannot recognise plaintext without a canary inside an allowed flow, so all traffic of
// the lab carries a canary. It never decrypts.
//
// Start reading at Classify, which judges a frame and is pure. internal/packetring reads the
// frames.
package leak
