package policytest

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// World is a cluster.
type World struct {
	Node       string
	Namespaces map[string]policy.Namespace
	Pods       map[policy.Name]policy.Pod
	Policies   map[policy.Name]policy.Policy
	Cluster    map[string]policy.ClusterPolicy
	// Ranges are the prefixes of pods' addresses. No pod has the first address of a prefix.
	Ranges   []netip.Prefix
	Nodes    map[string]policy.PeerNode
	Attached map[policy.Key][]netip.Addr
	policy.Options
}

func (w *World) addrs(p policy.Pod) []netip.Addr {
	if a := w.Attached[policy.Key{Name: p.Name, UID: p.UID}]; p.Node == w.Node && len(a) > 0 {
		return a
	}
	return p.Addrs
}

// peer returns the pod that an address identifies.
func (w *World) peer(a netip.Addr) (found policy.Pod, ok bool) {
	count := 0
	for _, p := range w.Pods {
		if !p.HostNetwork && !p.Finished && slices.Contains(w.addrs(p), a) {
			found = p
			count++
		}
	}
	return found, count == 1 && !found.Mirror
}

// subjects returns the pods of this node that are attached with the address.
func (w *World) subjects(a netip.Addr) (out []policy.Pod) {
	for _, p := range w.Pods {
		if p.Node == w.Node && p.UID != "" && !p.HostNetwork && !p.Finished &&
			slices.Contains(w.Attached[policy.Key{Name: p.Name, UID: p.UID}], a) {
			out = append(out, p)
		}
	}
	return out
}

// subject returns the pod of this node that is attached with the address; known reports whether it
// may be judged.
func (w *World) subject(a netip.Addr) (p policy.Pod, known bool) {
	subjects := w.subjects(a)
	if len(subjects) == 0 {
		return p, false
	}
	_, known = w.Namespaces[subjects[0].Namespace]
	return subjects[0], known || len(w.Cluster) == 0
}

// Judge judges only by the texts of the APIs of NetworkPolicy and ClusterNetworkPolicy.
func (w *World) Judge(f policy.Flow) policy.Verdict {
	if f.Quotes.IsValid() {
		return w.judgeError(f)
	}
	if f.FromPod {
		if v := w.judge(policy.Egress, f.Src, f.Dst, f); v != policy.Allow {
			return v
		}
	}
	if f.ToPod {
		return w.judge(policy.Ingress, f.Dst, f.Src, f)
	}
	return policy.Allow
}

func (w *World) judge(d policy.Direction, own, other netip.Addr, f policy.Flow) policy.Verdict {
	p, known := w.subject(own)
	if !known {
		return policy.DenyPending
	}
	if f.Midstream && w.isolated(p) {
		return policy.DenyMidstream
	}

	if v, final := w.tier(policy.Admin, d, p, other, f); final {
		return v
	}
	switch isolated, allowed := w.allowed(d, p, own, other, f); {
	case isolated && (allowed || w.AllowOwnNode && d == policy.Egress && f.ToNode):
		return policy.Allow
	case isolated && d == policy.Ingress:
		return policy.DenyIngress
	case isolated:
		return policy.DenyEgress
	}
	v, _ := w.tier(policy.Baseline, d, p, other, f)
	return v
}

// isolated reports whether a policy of any kind concerns the pod, in any direction.
func (w *World) isolated(p policy.Pod) bool {
	for _, c := range w.Cluster {
		if w.selectedBy(c, p) && (says(c, policy.Ingress) || says(c, policy.Egress)) {
			return true
		}
	}
	for _, np := range w.Policies {
		if np.Namespace == p.Namespace && selects(np.Subjects, p.Labels) &&
			(np.Isolates[0] || np.Isolates[1]) {
			return true
		}
	}
	return false
}

func (w *World) allowed(d policy.Direction, p policy.Pod, own, other netip.Addr,
	f policy.Flow) (isolated, allowed bool) {
	for _, np := range w.Policies {
		if np.Namespace != p.Namespace || !selects(np.Subjects, p.Labels) || !np.Isolates[d] {
			continue
		}
		isolated = true
		if np.Invalid != "" {
			continue
		}
		for _, r := range np.Rules[d] {
			if w.peers(np, r, other) && w.ports(d, p, r, other, f) {
				return true, true
			}
		}
	}
	return isolated, own == other
}

func (w *World) peers(np policy.Policy, r policy.Rule, other netip.Addr) bool {
	if len(r.Peers) == 0 {
		return true
	}
	for _, peer := range r.Peers {
		if peer.Nodes != nil {
			for _, n := range w.Nodes {
				if slices.Contains(n.Addrs, other) && selects(*peer.Nodes, n.Labels) {
					return true
				}
			}
			continue
		}
		if peer.Block != nil {
			in := peer.Block.CIDR.Contains(other)
			for _, e := range peer.Block.Except {
				in = in && !e.Contains(other)
			}
			if in {
				return true
			}
			continue
		}

		pod, ok := w.peer(other)
		if !ok {
			continue
		}

		inNS := pod.Namespace == np.Namespace
		if peer.Namespaces != nil {
			ns, known := w.Namespaces[pod.Namespace]
			inNS = known && selects(*peer.Namespaces, ns.Labels)
		}
		if inNS && (peer.Pods == nil || selects(*peer.Pods, pod.Labels)) {
			return true
		}
	}
	return false
}

func (w *World) ports(d policy.Direction, p policy.Pod, r policy.Rule, other netip.Addr,
	f policy.Flow) bool {
	if len(r.Ports) == 0 {
		return true
	}
	for _, port := range r.Ports {
		if port.Proto != f.Proto {
			continue
		}
		switch {
		case port.Name != "":
			dst, ok := p, true
			if d == policy.Egress {
				dst, ok = w.peer(other)
			}
			for _, n := range dst.Ports {
				if ok && n.Name == port.Name && n.Proto == f.Proto && n.Port == f.Port {
					return true
				}
			}
		case port.First == 0 || port.First <= f.Port && f.Port <= port.Last:
			return true
		}
	}
	return false
}

// selects evaluates a selector with the API server's own machinery.
func selects(s policy.Selector, of map[string]string) bool {
	var ls metav1.LabelSelector
	for _, r := range s {
		ls.MatchExpressions = append(ls.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Values: r.Values, Operator: []metav1.LabelSelectorOperator{
				metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
				metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}[r.Op],
		})
	}
	selector, err := metav1.LabelSelectorAsSelector(&ls)
	if err != nil {
		panic(err)
	}
	return selector.Matches(labels.Set(of))
}
