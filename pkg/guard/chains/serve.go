package chains

import (
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A client outside connects to a service. At the link its packet has the service's address. Inside
// this host the packet has the backend's address, and so does the reply until it leaves. The
// programs at links that translate between the two mark such packets, both ways:
//
//	client > service ─► NIC: guard, then translated and marked ─► here: client > backend ─► pod or tunnel
//	client < service ◄─ NIC: translated, then guard ◄──────────── here: client < backend, marked ◄─ pod or tunnel
//
// With that mark, backend addresses are allowed inbound as destination and outbound as source: the
// program at the link judges the addresses that the network sees. No other host can set a mark, and
// a packet that leaves a pod's network namespace loses it. A pod's packet still reaches a backend
// only by a tunnel.

// A pod's packet to a service may stay untranslated: it is a segment of a forgotten flow or a
// fragment, or the service table is lost. A packet to a ClusterIP is dropped, because Ranges
// contains its address. A packet to a LoadBalancer IP would leave in clear, although a backend may
// be inside. So a pod's packets to such addresses are dropped, except replies: a load balancer that
// does not keep its clients' addresses connects from the address of the service.
//
// Connection tracking recognizes replies, and a rule marks them for the programs at links, which
// cannot recognize them. Routes cannot distinguish replies from other packets. A packet that opens
// such a TCP connection was answered with a reset earlier (tcp.go).

// markAnswers marks and accepts pods' replies to addresses of services. A packet without a
// connection, or of an unknown one, continues to the next rule.
func markAnswers() (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(nft.Direction(nft.Eq, ctReply), f.daddr.In(f.vips),
			nft.SetMark(0, abi.ServiceMark), nft.Return))
	}
	return rules
}

// dropUntranslated drops pods' packets to addresses of services. Earlier rules have accepted
// translated packets and replies.
func dropUntranslated() (rules []nft.Rule) {
	for _, f := range families {
		rules = append(rules, nft.All(f.daddr.In(f.vips), Drop(Untranslated)))
	}
	return rules
}

// unserved matches packets that belong to no service flow.
func unserved() nft.Rule { return nft.Mark(abi.ServiceMark, nft.Eq, 0) }

// passServed accepts packets of a service flow.
func passServed() nft.Rule { return nft.All(nft.Mark(abi.ServiceMark, nft.Neq, 0), nft.Return) }
