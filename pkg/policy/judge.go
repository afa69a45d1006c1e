package policy

import (
	"net/netip"
	"slices"
)

// Flow is the first packet of a connection, with the addresses of its real ends: behind
// destination NAT and before source NAT.
type Flow struct {
	Src, Dst netip.Addr
	// FromPod and ToPod report whether the packet comes from, and goes to, a link of a pod of
	// this node.
	FromPod, ToPod bool
	// Proto is the IP protocol. Port is the destination port if Proto is one of the constants.
	Proto Proto
	Port  uint16
	// Midstream reports whether it is a segment of TCP that opens no connection.
	Midstream bool
}

// Verdict is the decision about a Flow.
type Verdict uint8

// Verdicts.
const (
	Allow Verdict = iota
	// DenyPending denies because a pod of the flow has no group yet.
	DenyPending
	// DenyMidstream denies because a pod of the flow is isolated and nothing is known of the
	// connection that the flow belongs to.
	DenyMidstream
	// DenyEgress and DenyIngress deny because no line of the chain allows the flow.
	DenyEgress
	DenyIngress
)

// String returns the verdict, denials as the name of the drop reason.
func (v Verdict) String() string {
	return [...]string{"allow", "policy_pending", "policy_midstream", "policy_egress", "policy_ingress"}[v]
}

// Judge interprets the plan as the kernel does: first egress of the source, then ingress of the
// destination. A pod's connection to its own address is allowed, as Kubernetes defines.
func (p *Plan) Judge(f Flow) Verdict {
	if f.FromPod && !slices.Contains(p.Own, f.Src) {
		if v := p.judge(f, Egress, f.Src, f.Dst, DenyEgress); v != Allow {
			return v
		}
	}
	if f.ToPod {
		return p.judge(f, Ingress, f.Dst, f.Src, DenyIngress)
	}
	return Allow
}

func (p *Plan) judge(f Flow, d Direction, own, peer netip.Addr, deny Verdict) Verdict {
	g := p.groupOf(own)
	if g == nil {
		return DenyPending
	}
	if f.Midstream && g.Chains[Ingress]+g.Chains[Egress] != "" {
		return DenyMidstream
	}
	if g.Chains[d] == "" || own == peer {
		return Allow
	}
	for _, l := range p.Chains[g.Chains[d]].Lines {
		if l.Ports.has(f.Proto, f.Port) && (l.Peer == "" || p.Sets[l.Peer].has(peer, f)) {
			return Allow
		}
	}
	return deny
}

// groupOf returns the group of the pod of this node that has the address; nil is none.
func (p *Plan) groupOf(a netip.Addr) *Group {
	for _, m := range p.Members {
		if slices.Contains(m.Addrs, a) {
			return p.Groups[m.Group]
		}
	}
	return nil
}

// has reports whether the set has the peer of a flow.
func (s *Set) has(peer netip.Addr, f Flow) bool {
	switch s.Kind {
	case KindPods:
		_, found := slices.BinarySearchFunc(s.Addrs, peer, netip.Addr.Compare)
		return found
	case KindBlock:
		return slices.ContainsFunc(s.Ranges, func(r Range) bool {
			return r.First.BitLen() == peer.BitLen() && !peer.Less(r.First) && !r.Last.Less(peer)
		})
	case KindNamed:
		_, found := slices.BinarySearchFunc(s.Named, AddrPort{peer, f.Proto, f.Port},
			AddrPort.compare)
		return found
	}
	return false
}
