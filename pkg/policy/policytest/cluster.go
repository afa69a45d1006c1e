package policytest

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// says reports whether a ClusterNetworkPolicy has rules for a direction.
func says(c policy.ClusterPolicy, d policy.Direction) bool {
	if c.Invalid != "" {
		return c.Denies[d]
	}
	return len(c.Rules[d]) > 0
}

func (w *World) selectedBy(c policy.ClusterPolicy, p policy.Pod) bool {
	return selects(c.Namespaces, w.Namespaces[p.Namespace].Labels) && selects(c.Pods, p.Labels)
}

// tier judges by one tier; final reports whether a rule accepts or denies.
func (w *World) tier(tier policy.Tier, d policy.Direction, p policy.Pod, other netip.Addr,
	f policy.Flow) (v policy.Verdict, final bool) {
	deny := policy.DenyAdmin
	if tier == policy.Baseline {
		deny = policy.DenyBaseline
	}

	var of []policy.ClusterPolicy
	for _, c := range w.Cluster {
		if c.Tier == tier && w.selectedBy(c, p) && says(c, d) {
			of = append(of, c)
		}
	}
	slices.SortFunc(of, func(a, b policy.ClusterPolicy) int {
		if a.Priority != b.Priority {
			return int(a.Priority - b.Priority)
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, c := range of {
		if c.Invalid != "" {
			return deny, true
		}
		for _, r := range c.Rules[d] {
			unknown := r.Unknown || len(r.Peers) == 0
			switch {
			case unknown && r.Action == policy.Accept:
			case unknown:
				return deny, true
			case w.matches(d, p, r, other, f):
				switch r.Action {
				case policy.Accept:
					return policy.Allow, true
				case policy.Deny:
					return deny, true
				case policy.Pass:
					return policy.Allow, false
				}
			case r.Action != policy.Accept && w.mayMatch(d, p, r, other, f):
				return policy.DenyUnknownPeer, true
			}
		}
	}
	return policy.Allow, false
}

func (w *World) matches(d policy.Direction, p policy.Pod, r policy.ClusterRule, other netip.Addr,
	f policy.Flow) bool {
	rule := policy.Rule{Peers: r.Peers, Ports: r.Ports}
	return w.peers(policy.Policy{}, rule, other) && w.ports(d, p, rule, other, f)
}

// mayMatch reports whether the rule might match if everything were known of the other end.
func (w *World) mayMatch(d policy.Direction, p policy.Pod, r policy.ClusterRule, other netip.Addr,
	f policy.Flow) bool {
	inRange := false
	for _, prefix := range w.Ranges {
		inRange = inRange || prefix.Contains(other) && other != prefix.Masked().Addr()
	}
	pod, known := w.peer(other)
	if _, has := w.Namespaces[pod.Namespace]; !inRange || known && has {
		return false
	}

	if d == policy.Egress {
		for _, port := range r.Ports {
			if port.Name != "" && port.Proto == f.Proto {
				return true
			}
		}
	}
	rule := policy.Rule{Ports: r.Ports}
	for _, peer := range r.Peers {
		if peer.Block == nil && peer.Nodes == nil && w.ports(d, p, rule, other, f) {
			return true
		}
	}
	return false
}

func drawClusterRule(t *rapid.T) policy.ClusterRule {
	r := policy.ClusterRule{
		Action: rapid.SampledFrom([]policy.Action{policy.Accept, policy.Deny,
			policy.Pass}).Draw(t, "action"),
		Unknown: rapid.IntRange(0, 19).Draw(t, "unknown peer") == 0,
	}
	for range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 2}).Draw(t, "peers") {
		peer := drawPeer(t)
		if peer.Block == nil && peer.Namespaces == nil {
			s := drawSelector(t)
			peer.Namespaces = &s
		}
		if rapid.IntRange(0, 4).Draw(t, "nodes") == 0 {
			s := drawSelector(t)
			peer = policy.Peer{Nodes: &s}
		}
		r.Peers = append(r.Peers, peer)
	}

	nodes := slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Nodes != nil })
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		if port := drawPort(t); port.Name == "" || !nodes {
			r.Ports = append(r.Ports, port)
		}
	}
	return r
}

func drawClusterPolicy(t *rapid.T) policy.ClusterPolicy {
	c := policy.ClusterPolicy{
		Name: rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "name"),
		Tier: rapid.SampledFrom([]policy.Tier{policy.Admin,
			policy.Baseline}).Draw(t, "tier"),
		Priority:   rapid.Int32Range(0, 2).Draw(t, "priority"),
		Namespaces: drawSelector(t), Pods: drawSelector(t),
	}
	for d := range c.Rules {
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			c.Rules[d] = append(c.Rules[d], drawClusterRule(t))
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "invalid") == 0 {
		c.Invalid = "cannot be parsed"
		c.Denies = [2]bool{rapid.Bool().Draw(t, "ingress"), rapid.Bool().Draw(t, "egress")}
	}
	return c
}

// ranges are the prefixes from which a World draws its Ranges.
var ranges = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/30"),
	netip.MustParsePrefix("198.18.0.4/30"), netip.MustParsePrefix("fd42::/126"),
	netip.MustParsePrefix("fd42::4/126")}

// changeNodes changes the nodes, and passes them to the planner: all, or only what changed.
func (w *World) changeNodes(t *rapid.T, p *planner.Planner) {
	before := w.Nodes
	w.Nodes = map[string]policy.PeerNode{}
	for _, name := range []string{"here", "there", "far"} {
		n, had := before[name]
		switch rapid.IntRange(0, 3).Draw(t, "change of a node") {
		case 0:
			continue
		case 1:
			if !had {
				continue
			}
		default:
			n = policy.PeerNode{Labels: DrawLabels(t)}
			for _, a := range slices.Concat(Outside, PodAddrs(1)) {
				if rapid.Bool().Draw(t, "address of a node") {
					n.Addrs = append(n.Addrs, a)
				}
			}
		}
		w.Nodes[name] = n
	}

	if rapid.Bool().Draw(t, "all nodes") {
		p.SetNodes(maps.Clone(w.Nodes))
		return
	}
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, has := w.Nodes[name]; !has {
			gone = append(gone, name)
		}
	}
	p.ChangeNodes(maps.Clone(w.Nodes), gone)
}

func (w *World) changeCluster(t *rapid.T, p *planner.Planner) {
	switch rapid.IntRange(0, 5).Draw(t, "change of cluster") {
	case 5:
		w.changeNodes(t, p)
		p.SetNodeAddrs(w.nodeAddrs())
	case 0:
		name := drawClusterPolicy(t).Name
		delete(w.Cluster, name)
		p.DeleteClusterPolicy(name)
	case 1:
		w.Ranges = rapid.SliceOfDistinct(rapid.SampledFrom(ranges),
			func(r netip.Prefix) netip.Prefix { return r }).Draw(t, "ranges")
		p.SetRanges(w.Ranges)
	default:
		c := drawClusterPolicy(t)
		w.Cluster[c.Name] = c
		p.PutClusterPolicy(c)

		// Pods of unknown namespaces are mute, so too many of them would hide other mistakes.
		for _, name := range nsNames {
			if _, has := w.Namespaces[name]; !has && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
				ns := policy.Namespace{Name: name, Labels: DrawLabels(t)}
				w.Namespaces[name] = ns
				p.PutNamespace(ns)
			}
		}
	}
}
