// Package passage proves that this node forwards what a pod sends into the tunnel. A
// filter of another program at the forward hook (Docker, ufw, firewalld, iptables-legacy)
// may drop it, which no rule of Kubeveil overrules and reading rules alone cannot tell.
//
// Probe attaches a temporary pod, which sends datagrams to a pod address of a peer, in each family.
// A temporary nftables table counts the datagrams that enter the forward hook and those that leave
// for the tunnel, and then drops them.
//
// It promises:
//   - No datagram of a probe leaves the node, so no peer receives one.
//   - When Probe returns, its objects are gone. If its process is killed, the link disappears with
//     the process, so the other objects have no effect.
//   - ErrDropped proves that a filter drops: a datagram entered the forward hook and did not leave.
//     Any other error means that the probe has no result.
//
// The pod of the probe has the network address of this node's pod prefixes, which no IPAM assigns
// to a pod.
//
//	probe's namespace ── veth (PodGroup) ── forward: entered++ … filters … postrouting: left++, drop
//
// A Proof decides when to probe again, and keeps what the last probes found.
//
// Start reading at Probe, then Proof.Prove.
package passage
