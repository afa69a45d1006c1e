package chains

import "github.com/kubeveil/kubeveil/internal/nft"

// A peer decides what it sends into its tunnel. Without a rule, a compromised node could reach the
// networks around this node with this node's address, which firewalls there may admit:
//
//	peer: 198.51.100.9 into veil0 ═► this node: routed as a pod's, masqueraded ─► 198.51.100.9
//
// Three kinds of packets out of a tunnel may leave the cluster. Packets of a service flow
// (ServiceMark) have passed before. A NodePort with an endpoint outside has DNAT in its connection.
// A reply is a reply to connection tracking. Untracked packets are none of these.

// dropOutside drops packets that came out of a tunnel and leave the cluster, except replies and
// what this node translated.
func dropOutside() []nft.Rule {
	return []nft.Rule{
		nft.All(nft.Direction(nft.Eq, ctReply), nft.Return),
		nft.All(nft.Status(ctDstNAT, nft.Neq), nft.Return),
		drop(TunnelToOutside),
	}
}
