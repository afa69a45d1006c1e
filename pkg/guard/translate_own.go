package guard

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Peers take a packet of this node only from the addresses that its Node has. Who masquerades
// (kube-proxy: NodePort, LoadBalancer, host to ClusterIP) asks the kernel for a source, and veil0
// has no address to give: the kernel takes the first global one of the lowest ifindex
// (inet_select_addr), or what RFC 6724 prefers. On a node with a second NIC, a VIP on lo or a
// second IPv6 address that is another one, and the peer drops the packet. So the source is decided
// here, before others do:
//
//	client ─► NodePort: backend elsewhere ─► keep_source: this node's own address ─► veil0 ═► peer
//	                                         (kube-proxy's masquerade comes too late)
//
// Packets of pods and tunnels have passed before, and packets of a service flow (ServiceMark) get
// their source from the programs at links.

// sourceAddrs returns the first address of each family.
func sourceAddrs(self []netip.Addr) (first []netip.Addr) {
	for _, a := range self {
		same := func(b netip.Addr) bool { return a.Is4() == b.Is4() }
		if !slices.ContainsFunc(first, same) {
			first = append(first, a)
		}
	}
	return first
}

// sendFromOwn binds the source of what this node itself sends into a tunnel, or forwards there for
// a client outside: an own address stays, any other becomes the preferred one.
func sendFromOwn() []rule {
	out := ofGroup("oif", expr.MetaKeyOIFGROUP, abi.TunnelGroup)
	rules := []rule{ruleOf(fromInside(), expr.VerdictReturn, ""), passServed()}
	for _, f := range families {
		text := fmt.Sprintf("%s %s @%s snat to %s", out.text, f.saddr, f.own, f.saddr)
		exprs := slices.Concat(out.exprs, load(f.saddr), []expr.Any{
			&expr.Lookup{SourceRegister: 1, SetName: f.own}, f.sourceKept(),
		})
		rules = append(rules, rule{text, exprs})
	}
	for _, f := range families {
		text := fmt.Sprintf("%s %s not @%s snat to oifgroup map @%s", out.text, f.saddr, f.ranges,
			f.source)
		exprs := slices.Concat(out.exprs, load(f.saddr), []expr.Any{
			&expr.Lookup{SourceRegister: 1, SetName: f.ranges, Invert: true},
		}, f.sourceFrom(f.source))
		rules = append(rules, rule{text, exprs})
	}
	return rules
}
