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
	// ToNode reports whether the packet goes to this node itself; ToPod is false then.
	ToNode bool
	// FromTunnel reports whether the packet comes out of a tunnel; FromPod is false then.
	FromTunnel bool
	// Quotes is the destination of the packet that this one quotes, as an ICMP error about a known
	// connection. The zero value means that it is not such an error.
	Quotes netip.Addr
	// Proto is the IP protocol. Port is the destination port if Proto is one of the constants.
	Proto Proto
	Port  uint16
	// Midstream reports whether it is a TCP segment that does not open a connection and that
	// conntrack tracks. An untracked segment is judged like a first packet.
	Midstream bool
}

// Ends returns the addresses of the pod that is judged in a direction, and of the other end.
func (f Flow) Ends(d Direction) (own, peer netip.Addr) {
	if d == Egress {
		return f.Src, f.Dst
	}
	return f.Dst, f.Src
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
	// DenyAdmin and DenyBaseline deny because of a line of the tier.
	DenyAdmin
	DenyBaseline
	// DenyUnknownPeer denies because a line denies or passes pods, and it is not known which pod
	// has the peer's address. The line may be meant for that pod.
	DenyUnknownPeer
	// DenyRelated denies an ICMP error about a known connection that the sender has no part in.
	DenyRelated
)

var verdicts = [...]string{"allow", "policy_pending", "policy_midstream", "policy_egress",
	"policy_ingress", "policy_admin", "policy_baseline", "policy_unknown_peer",
	"policy_related"}

// DropReasons are the names of all denials. It is read only.
var DropReasons = verdicts[DenyPending:]

// String returns the verdict, denials as the name of the drop reason.
func (v Verdict) String() string { return verdicts[v] }

// Judge interprets the plan as the kernel does: first egress of the source, then ingress of the
// destination. NetworkPolicies allow a pod's connection to its own address, as Kubernetes defines;
// ClusterNetworkPolicies judge it like any other.
func (p *Plan) Judge(f Flow) Verdict { return p.judgeBy(p.groupOf, f) }

// Judges returns a function that judges as Judge does. It is faster for many flows, because it
// finds the group of a pod in a map.
func (p *Plan) Judges() func(Flow) Verdict {
	groups := map[netip.Addr]*Group{}
	for _, m := range p.Members {
		for _, a := range m.Addrs {
			groups[a] = p.Groups[m.Group]
		}
	}
	return func(f Flow) Verdict {
		return p.judgeBy(func(a netip.Addr) *Group { return groups[a] }, f)
	}
}

func (p *Plan) judgeBy(groupOf func(netip.Addr) *Group, f Flow) Verdict {
	if f.Quotes.IsValid() {
		return p.judgeError(f, groupOf)
	}
	if f.FromPod && !slices.Contains(p.Own, f.Src) {
		if v := p.judge(groupOf(f.Src), f, Egress, f.Src, f.Dst, DenyEgress); v != Allow {
			return v
		}
	}
	if f.ToPod {
		return p.judge(groupOf(f.Dst), f, Ingress, f.Dst, f.Src, DenyIngress)
	}
	return Allow
}

func (p *Plan) judge(g *Group, f Flow, d Direction, own, peer netip.Addr, deny Verdict) Verdict {
	if g == nil {
		return DenyPending
	}
	if f.Midstream && g.Chains[Ingress]+g.Chains[Egress] != "" {
		return DenyMidstream
	}

	c := p.Chains[g.Chains[d]]
	if c == nil {
		return Allow
	}
	if v, final := p.tier(c.Admin, peer, f, DenyAdmin); final {
		return v
	}
	if c.Open {
		v, _ := p.tier(c.Baseline, peer, f, DenyBaseline)
		return v
	}
	if own == peer {
		return Allow
	}
	if v, final := p.tier(c.Lines, peer, f, deny); final {
		return v
	}
	if p.AllowOwnNode && d == Egress && f.ToNode {
		return Allow
	}
	return deny
}

// tier judges by the first line that matches. final reports whether that line accepts or denies.
func (p *Plan) tier(lines []Line, peer netip.Addr, f Flow, deny Verdict) (v Verdict, final bool) {
	for _, l := range lines {
		matched, unknown := p.Matches(l, peer, f)
		switch {
		case unknown:
			return DenyUnknownPeer, true
		case !matched:
			continue
		}
		switch l.Action {
		case Accept:
			return Allow, true
		case Deny:
			return deny, true
		}
		return Allow, false
	}
	return Allow, false
}

// Matches reports whether a line matches a flow with a peer. unknown reports whether it may match:
// the peer is unknown, and the line denies or passes pods.
func (p *Plan) Matches(l Line, peer netip.Addr, f Flow) (matched, unknown bool) {
	if !l.Ports.Has(f.Proto, f.Port) {
		return false, false
	}
	if l.Doubts() && p.Sets.Get(SetRanges).has(peer, f) && !p.Sets.Get(SetKnown).has(peer, f) {
		return false, true
	}
	return l.Peer == "" || p.Sets.Get(l.Peer).has(peer, f), false
}

// Doubts reports whether the line denies or passes pods, so that it may be meant for an unknown
// peer on the ports of the line.
func (l Line) Doubts() bool {
	return l.Action != Accept && l.OfPods()
}

// groupOf returns the group of the pod of this node that has the address, or nil if no pod has it.
func (p *Plan) groupOf(a netip.Addr) *Group {
	for _, m := range p.Members {
		if slices.Contains(m.Addrs, a) {
			return p.Groups[m.Group]
		}
	}
	return nil
}

// has reports whether the set contains the peer of a flow. A nil set contains nothing.
func (s *Set) has(peer netip.Addr, f Flow) bool {
	if s == nil {
		return false
	}
	switch s.Kind {
	case KindPods, KindNodes:
		_, found := slices.BinarySearchFunc(s.Addrs, peer, netip.Addr.Compare)
		return found
	case KindBlock:
		return within(s.Ranges, peer)
	case KindNamed:
		_, found := slices.BinarySearchFunc(s.Named, AddrPort{peer, f.Proto, f.Port},
			AddrPort.Compare)
		return found
	}
	return false
}

// Size returns the number of addresses and ranges in the set. A nil set is empty.
func (s *Set) Size() int {
	if s == nil {
		return 0
	}
	return len(s.Addrs) + len(s.Ranges) + len(s.Named)
}
