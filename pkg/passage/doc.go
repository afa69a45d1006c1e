// Package passage proves that this node forwards what a pod sends into the tunnel. A
// filter of another program at the forward hook (Docker, ufw, firewalld, iptables-legacy)
// may drop it, which no rule of Kubeveil overrules and reading rules alone cannot tell.
//
// Probe attaches a pod of its own and lets it send datagrams to a pod address of a peer,
// in each family. A table of its own counts them where they enter the forward hook and
// where they leave for the tunnel, and drops them there.
//
// It promises:
//   - no datagram of a probe leaves the node, and no peer sees one;
//   - what it made is gone when it returns, and what a killed process left behind is
//     without effect: the link dies with the process;
//   - ErrDropped is proof that a filter drops: the datagram entered the forward hook and
//     did not leave. Any other error means that the probe found out nothing.
//
// The pod of the probe has the network address of this node's pod prefixes, which no IPAM assigns
// to a pod.
//
//	probe's namespace ── veth (PodGroup) ── forward: entered++ … filters … postrouting: left++, drop
//
// Start reading at Probe.
package passage
