package known

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// Places is what a node knows on which no policies are in force: where nodes and the node's own
// pods are. It knows no labels.
type Places struct {
	Node string
	// Options are the operator's settings for policies.
	Options policy.Options
	// Prefixes holds the pod prefixes that each node owns, and Addrs the addresses of each node.
	Prefixes map[string][]netip.Prefix
	Addrs    map[string][]netip.Addr
	// Records are the attachments of this node.
	Records []pod.Record
	// Opened is a field of View.
	Opened func() ([]nl.Opened, error)
}

// View returns a View whose planner has these objects, but not their policies.
func (p Places) View(o policy.Objects) *View {
	all := planner.New(p.Node)
	all.SetOptions(p.Options)
	all.SetOwn(FirstAddrs(p.Prefixes[p.Node]))
	all.SetRanges(slices.Concat(slices.Collect(maps.Values(p.Prefixes))...))
	all.SetNodeAddrs(slices.Concat(slices.Collect(maps.Values(p.Addrs))...))
	nodes := make(map[string]policy.PeerNode, len(o.NodeLabels))
	for name, labels := range o.NodeLabels {
		nodes[name] = policy.PeerNode{Labels: labels, Excess: labels == nil, Addrs: p.Addrs[name]}
	}
	all.SetNodes(nodes)

	for _, n := range o.Namespaces {
		all.PutNamespace(n)
	}
	for _, v := range o.Pods {
		v.Addrs = slices.DeleteFunc(slices.Clone(v.Addrs), func(a netip.Addr) bool {
			return !Owns(p.Prefixes[v.Node], a)
		})
		all.PutPod(v)
	}
	v := &View{Node: p.Node, Planner: all, Nodes: NodeNames(p.Addrs, p.Prefixes),
		Policies: o.Policies, Opened: p.Opened}
	if n := p.attach(all, o.Pods); n > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d pods of this node are not among the pods that "+
			"veilctl read, so the result lacks their connections", n))
	}
	return v
}

// attach passes the attachments of pods to all, and counts those of no known pod.
func (p Places) attach(all *planner.Planner, pods []policy.Pod) (unknown int) {
	addrs := map[policy.Key][]netip.Addr{}
	for _, v := range pods {
		if v.Node == p.Node && !v.HostNetwork {
			addrs[v.Key()] = nil
		}
	}
	for _, r := range p.Records {
		key, known := KeyOf(r, p.Node, slices.Values(pods))
		if _, has := addrs[key]; !known || !has {
			unknown++
			continue
		}
		addrs[key] = append(addrs[key], r.Addrs...)
	}
	for key, a := range addrs {
		slices.SortFunc(a, netip.Addr.Compare)
		all.SetAttached(key, a)
	}
	return unknown
}

// KeyOf returns the pod of an attachment. The record names the pod if the runtime passed it.
// Otherwise KeyOf returns the pod of the node whose status has an address of the record.
func KeyOf(r pod.Record, node string, pods iter.Seq[policy.Pod]) (policy.Key, bool) {
	if w := r.Workload; w.UID != "" {
		return policy.Key{Name: policy.Name{Namespace: w.Namespace, Name: w.Name}, UID: w.UID}, true
	}
	var found []policy.Key
	for p := range pods {
		if p.Node == node && !p.HostNetwork && !p.Mirror &&
			slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(r.Addrs, a) }) {
			found = append(found, p.Key())
		}
	}
	if len(found) != 1 {
		return policy.Key{}, false
	}
	return found[0], true
}

// Owns reports whether an address lies in one of a node's pod prefixes.
func Owns(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// FirstAddrs returns the first addresses of a node's pod prefixes. No pod gets them, because
// package passage uses them to prove that pods' packets pass.
func FirstAddrs(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range prefixes {
		addrs = append(addrs, p.Masked().Addr())
	}
	return addrs
}

// NodeNames returns the names of nodes by their addresses. These include the second address of each
// pod prefix: services at links use it for SNAT, so no pod gets it.
func NodeNames(addrs map[string][]netip.Addr,
	prefixes map[string][]netip.Prefix) map[netip.Addr]string {
	names := map[netip.Addr]string{}
	for node, all := range addrs {
		for _, a := range all {
			names[a] = node
		}
	}
	for node, all := range prefixes {
		for _, a := range FirstAddrs(all) {
			names[a.Next()] = node
		}
	}
	return names
}
