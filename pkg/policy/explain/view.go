package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// Bounds of List, because the policies and the pods of a namespace multiply.
const (
	// maxListed bounds the policies, and maxListedOf the policies of one namespace.
	maxListed, maxListedOf = 1 << 13, 1 << 10
	// maxPods bounds the names of their pods, and maxPodsOf those of one namespace.
	maxPods, maxPodsOf = 1 << 16, 1 << 14
)

// lister collects the views of policies within the bounds.
type lister struct {
	// views holds nil for a policy beyond a bound.
	views map[policy.Name]*policy.PolicyView
	// leftOut counts the policies beyond a bound.
	leftOut int
	// listed and pods count by namespace. podsOfAll is the sum of pods.
	listed, pods map[string]int
	podsOfAll    int
}

// view returns the view of a policy, which new returns at first. It returns nil beyond a bound.
func (l *lister) view(name policy.Name, new func() policy.PolicyView) *policy.PolicyView {
	v, has := l.views[name]
	if has {
		return v
	}
	if len(l.views)-l.leftOut >= maxListed || l.listed[name.Namespace] >= maxListedOf {
		l.leftOut++
	} else {
		l.listed[name.Namespace]++
		made := new()
		made.Enforced, v = true, &made
	}
	l.views[name] = v
	return v
}

// addPod adds a pod that the policy of v selects.
func (l *lister) addPod(v *policy.PolicyView, namespace, pod string) {
	if l.podsOfAll >= maxPods || l.pods[namespace] >= maxPodsOf {
		v.MorePods++
		return
	}
	l.podsOfAll++
	l.pods[namespace]++
	v.Pods = append(v.Pods, pod)
}

// List returns the policies that select a pod of this node, sorted, and how many it leaves out.
// inForce is the plan that is enforced, or nil if none is.
func List(p *planner.Planner, inForce *policy.Plan) (views []policy.PolicyView, leftOut int) {
	now := p.Plan()
	l := lister{views: map[policy.Name]*policy.PolicyView{}, listed: map[string]int{},
		pods: map[string]int{}}
	for _, key := range slices.SortedFunc(maps.Keys(now.Members), func(a, b policy.Key) int {
		return a.Name.Compare(b.Name)
	}) {
		listMember(p, &l, key, now.Members[key], inForce.Enforces(now, key))
	}

	views = []policy.PolicyView{}
	for _, v := range l.views {
		if v != nil {
			views = append(views, *v)
		}
	}
	slices.SortFunc(views, func(a, b policy.PolicyView) int {
		return strings.Compare(a.Policy, b.Policy)
	})
	return views, l.leftOut
}

// listMember adds the policies of a pod to l. enforced reports whether they are in force.
func listMember(p *planner.Planner, l *lister, key policy.Key, m *policy.Member, enforced bool) {
	pod := key.Name.String()
	add := func(name policy.Name, problem string, new func() policy.PolicyView) {
		v := l.view(name, new)
		if v == nil {
			return
		}
		l.addPod(v, name.Namespace, pod)
		if !enforced && v.Enforced {
			v.Enforced, v.Problem = false, "not in force yet for pod "+pod
		}
		if m.Problem != "" {
			v.Enforced, v.Problem = false, "pod "+pod+": "+m.Problem
		}
		if problem != "" {
			v.Enforced, v.Problem = false, problem
		}
	}

	for _, name := range m.Policies {
		if c := p.Policy(name); c != nil {
			problem := ""
			if c.Problem != "" {
				problem = "it denies everything that it isolates: " + clip(c.Problem)
			}
			add(name, problem, func() policy.PolicyView {
				isolates := func(d policy.Direction) bool { return c.Policy.Isolates[d] }
				return policy.PolicyView{Policy: name.String(), Tier: "NetworkPolicy",
					Directions: directions(isolates)}
			})
		}
	}
	for _, name := range m.ClusterPolicies {
		if c := p.ClusterPolicy(name); c != nil {
			add(policy.Name{Name: name}, clip(c.Problem), func() policy.PolicyView {
				return policy.PolicyView{Policy: name, Tier: c.Policy.Tier.String(),
					Directions: directions(c.Policy.Affects)}
			})
		}
	}
}

// directions returns the names of the directions for which has returns true.
func directions(has func(policy.Direction) bool) []string {
	out := []string{}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if has(d) {
			out = append(out, d.String())
		}
	}
	return out
}

// Pod returns the policies that judge a pod of this node. inForce is the plan that is enforced,
// or nil if none is.
func Pod(p *planner.Planner, name policy.Name, inForce *policy.Plan) (*policy.PodView, error) {
	pod, err := p.OwnPod(name)
	if err != nil {
		return nil, err
	}
	v := &policy.PodView{Pod: name.String(), Addrs: []netip.Addr{}, Policies: []string{}}
	if pod.HostNetwork {
		v.Enforced, v.Why = true, "it has the node's network, so no policy applies to it"
		return v, nil
	}

	now, key := p.Plan(), pod.Key()
	v.Addrs = append(v.Addrs, p.AddrsOf(key)...)
	v.Enforced = inForce.Enforces(now, key)
	v.Mute = inForce != nil && inForce.Members[key] == nil
	switch {
	case v.Mute:
		v.Why = "veild does not know its policies yet, so all its packets are dropped"
	case !v.Enforced:
		v.Why = "these policies are not in force yet"
	case len(v.Addrs) == 0:
		v.Why = "its interface is not attached yet"
	}

	m := now.Members[key]
	if m == nil {
		return v, nil
	}
	v.Group = m.Group
	if m.Problem != "" {
		v.Problems = append(v.Problems, m.Problem)
	}
	for _, n := range m.Policies {
		v.Policies = append(v.Policies, n.String())
		if problem := now.Problems[n]; problem != "" {
			v.Problems = append(v.Problems,
				fmt.Sprintf("%s denies everything that it isolates: %s", n, problem))
		}
	}
	v.ClusterPolicies = slices.Clone(m.ClusterPolicies)
	for _, name := range m.ClusterPolicies {
		if problem := now.ClusterProblems[name]; problem != "" {
			v.Problems = append(v.Problems, "ClusterNetworkPolicy "+name+": "+problem)
		}
	}
	v.Ingress, v.Egress = side(p, pod, m, policy.Ingress, now), side(p, pod, m, policy.Egress, now)
	return v, nil
}

// side returns the view of one direction of a pod.
func side(p *planner.Planner, pod *policy.Pod, m *policy.Member, d policy.Direction,
	plan *policy.Plan) (v policy.SideView) {
	if c := plan.Chains[plan.Groups[m.Group].Chains[d]]; c != nil {
		v.Isolated = !c.Open
		denied := m.Problem != "" && len(c.Admin) > 0
		v.OwnNode = v.Isolated && d == policy.Egress && plan.AllowOwnNode && !denied
	}
	if m.Problem == "" {
		v.Admin = tierView(p, pod, m, policy.Admin, d, plan)
		v.Baseline = tierView(p, pod, m, policy.Baseline, d, plan)
	}
	for _, name := range m.Policies {
		c := p.Policy(name)
		if c == nil || !c.Policy.Isolates[d] {
			continue
		}
		v.By = append(v.By, name.String())
		if m.Problem == "" {
			v.Lines = append(v.Lines, show(c, d, pod, plan.Sets)...)
		}
	}
	return v
}

// tierView returns the lines of one tier in words, in the order of evaluation.
func tierView(p *planner.Planner, pod *policy.Pod, m *policy.Member, tier policy.Tier,
	d policy.Direction, plan *policy.Plan) (out []policy.LineView) {
	for _, name := range m.ClusterPolicies {
		c := p.ClusterPolicy(name)
		if c == nil || c.Policy.Tier != tier {
			continue
		}
		for _, l := range c.LinesOf(d, pod) {
			def := c.Sets[l.Peer]
			v := policy.LineView{Policy: name, Action: l.Action.String(),
				Ports: compile.PortWords(l, def)}
			v.Peers, v.Members = peerWords(def, plan.Sets.Get(l.Peer))
			out = append(out, v)
		}
	}
	return out
}

// peerWords returns the peers of a set in words, and the number of their addresses; -1 means all
// addresses, or ranges of addresses. A nil definition means all peers.
func peerWords(def *compile.Definition, s *policy.Set) (words string, members int) {
	if def == nil {
		return "anywhere", -1
	}
	if s == nil || s.Kind == policy.KindBlock {
		return def.Words(), -1
	}
	return def.Words(), len(s.Addrs) + len(s.Named)
}

// show returns the lines of one direction of a policy in words. It joins lines with the same peers.
func show(c *compile.Namespaced, d policy.Direction, pod *policy.Pod,
	sets policy.SetMap) []policy.LineView {
	ports := map[string][]string{}
	for _, l := range c.LinesOf(d, pod) {
		ports[l.Peer] = append(ports[l.Peer], compile.PortWords(l, c.Sets[l.Peer]))
	}

	var out []policy.LineView
	for _, peer := range slices.Sorted(maps.Keys(ports)) {
		v := policy.LineView{Policy: c.Policy.Name.String()}
		v.Peers, v.Members = peerWords(c.Sets[peer], sets.Get(peer))
		slices.Sort(ports[peer])
		v.Ports = strings.Join(slices.Compact(ports[peer]), ", ")
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b policy.LineView) int {
		return strings.Compare(a.Peers+a.Ports, b.Peers+b.Ports)
	})
	return out
}
