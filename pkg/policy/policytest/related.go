package policytest

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// judgeError judges an ICMP error about a known connection: a pod reports packets that it received,
// a node reports packets that pass it, and a router outside reports packets that left the cluster.
func (w *World) judgeError(f policy.Flow) policy.Verdict {
	received := f.Quotes == f.Src
	var accept bool
	switch {
	case f.FromPod:
		_, known := w.subject(f.Src)
		accept = received && known
	case !f.ToPod: // It concerns no pod of this node.
		accept = true
	case f.FromTunnel && w.isNode(f.Src):
		accept = true
	case f.FromTunnel:
		accept = received
	default:
		accept = !w.isNode(f.Quotes) && !w.inRanges(f.Quotes)
	}
	if accept {
		return policy.Allow
	}
	return policy.DenyRelated
}

func (w *World) isNode(a netip.Addr) bool { return slices.Contains(w.nodeAddrs(), a) }

// nodeAddrs returns the addresses of all nodes.
func (w *World) nodeAddrs() (out []netip.Addr) {
	for _, n := range w.Nodes {
		out = append(out, n.Addrs...)
	}
	return out
}

func (w *World) inRanges(a netip.Addr) bool {
	for _, r := range w.Ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// Errors returns ICMP errors between the addresses of the universe, about packets to any of them.
func Errors() (out []policy.Flow) {
	addrs := append([]netip.Addr{}, Outside...)
	for i := 1; i <= Pool; i++ {
		addrs = append(addrs, PodAddrs(i)...)
	}
	for _, src := range addrs {
		for i, dst := range addrs {
			quotes := addrs[(i*7+2)/2*2%len(addrs)+i%2]
			if src.Is4() != dst.Is4() || dst.Is4() != quotes.Is4() {
				continue
			}
			for _, f := range []policy.Flow{{FromPod: true, ToPod: true}, {FromPod: true},
				{FromPod: true, ToNode: true}, {ToPod: true}, {ToPod: true, FromTunnel: true},
				{FromTunnel: true}, {}} {
				for _, f.Quotes = range []netip.Addr{src, dst, quotes} {
					f.Src, f.Dst, f.Proto = src, dst, 1
					if src.Is6() {
						f.Proto = 58
					}
					out = append(out, f)
				}
			}
		}
	}
	return out
}
