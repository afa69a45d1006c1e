package guard

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// A pod may reach a node by way of another one: by its NodePort, whose backend is
// a process of a host, of the pod's own even. From there on the packet cannot keep
// its source, since peers take a pod's address from the pod's node only, and the
// answer has to come back through here. Nor can it have this node's address, since
// the answer would be host to host. So it is sent from an address that this node
// has among its pods', self, which to peers is this node's and must come by its tunnel:
//
//	pod of A ═► B: translated to C or A, source becomes self ═► answers self ═► B ═► pod of A
//
// This is for what others translated here only: B forwards nothing to nodes that it
// was not told to. A pod of B itself keeps its source, which is right where it arrives.
// While self is not known, sources are kept, and the peer's tunnel drops the packet.

// ctDstNAT is IPS_DST_NAT (nf_conntrack_common.h).
const ctDstNAT = 1 << 5

// selfAddrs are what this node sends from, at most one a family: the first address of a pod prefix,
// which host-local keeps for a gateway that there is not, so no pod and no host has it.
// A prefix of one address has none.
func selfAddrs(podPrefixes []netip.Prefix) (self []netip.Addr) {
	for _, p := range podPrefixes {
		a := p.Masked().Addr().Next()
		taken := slices.ContainsFunc(self, func(s netip.Addr) bool { return s.Is4() == a.Is4() })
		if p.Contains(a) && !a.Is4In6() && !taken {
			self = append(self, a)
		}
	}
	return self
}

// sendFromSelf translates the source of what came out of a tunnel, was translated to a node and
// enters a tunnel again.
func sendFromSelf() (rules []rule) {
	for _, f := range families {
		text := fmt.Sprintf("iifgroup %#x oifgroup %#x %s @%s ct status dnat snat to "+
			"oifgroup map @%s",
			abi.TunnelGroup, abi.TunnelGroup, f.daddr, f.nodes, f.self)
		out := ofGroup("oif", expr.MetaKeyOIFGROUP, abi.TunnelGroup)
		exprs := slices.Concat(inGroup(abi.TunnelGroup).exprs, out.exprs, f.toNode(), []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(ctDstNAT), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		}, f.sourceFrom(f.self))
		rules = append(rules, rule{text, exprs})
	}
	return rules
}

// sourceFrom translates the source to the address that a map has for the group of tunnels; without
// one the rule does nothing.
func (f family) sourceFrom(name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1},
		&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: name},
		&expr.NAT{
			Type: expr.NATTypeSourceNAT, Family: uint32(fields[f.saddr].proto), RegAddrMin: 1,
		},
	}
}

// keep keeps what is in force in these sets, for when their content is not known yet.
func (t table) keep(have table, sets ...string) {
	for _, name := range sets {
		t.sets[name] = have.sets[name]
	}
}
