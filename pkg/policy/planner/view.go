package planner

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
)

// List returns the policies that select a pod of this node, sorted. inForce is the plan that is
// enforced, or nil if none is.
func (p *Planner) List(inForce *policy.Plan) []policy.PolicyView {
	now := p.Plan()
	byName := map[string]*policy.PolicyView{}
	for key, m := range now.Members {
		enforced := inForce.Enforces(now, key)
		add := func(v policy.PolicyView, problem string) {
			if byName[v.Policy] == nil {
				v.Enforced = true
				byName[v.Policy] = &v
			}
			of := byName[v.Policy]
			of.Pods = append(of.Pods, key.Name.String())
			if !enforced && of.Enforced {
				of.Enforced, of.Problem = false, "not in force yet for pod "+key.Name.String()
			}
			if m.Problem != "" {
				of.Enforced, of.Problem = false, "pod "+key.Name.String()+": "+m.Problem
			}
			if problem != "" {
				of.Enforced, of.Problem = false, problem
			}
		}

		for _, name := range m.Policies {
			if c := p.policies[name.Namespace][name.Name]; c != nil {
				problem := ""
				if c.Problem != "" {
					problem = "it denies everything that it isolates: " + c.Problem
				}
				isolates := func(d policy.Direction) bool { return c.Policy.Isolates[d] }
				add(policy.PolicyView{Policy: name.String(), Tier: "NetworkPolicy",
					Directions: directions(isolates)}, problem)
			}
		}
		for _, name := range m.ClusterPolicies {
			if c := p.cluster[name]; c != nil {
				add(policy.PolicyView{Policy: name, Tier: c.Policy.Tier.String(),
					Directions: directions(c.Policy.Affects)}, c.Problem)
			}
		}
	}

	views := []policy.PolicyView{}
	for _, v := range byName {
		slices.Sort(v.Pods)
		views = append(views, *v)
	}
	slices.SortFunc(views, func(a, b policy.PolicyView) int {
		return strings.Compare(a.Policy,
			b.Policy)
	})
	return views
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

// Errors of ShowPod.
var (
	// ErrNoPod matches the error for a pod that the API server did not list, or that has finished.
	ErrNoPod = errors.New("no such pod")
	// ErrElsewhere matches the error for a pod of another node.
	ErrElsewhere = errors.New("the pod is not on this node")
)

// ownPod returns the pod of this node that has the name.
func (p *Planner) ownPod(name policy.Name) (*policy.Pod, error) {
	pod := p.pods[name]
	switch {
	case pod == nil:
		return nil, noPod(name)
	case pod.Node == "":
		return nil, fmt.Errorf("pod %s is not bound to a node yet: %w", name, ErrElsewhere)
	case pod.Node != p.node:
		return nil, fmt.Errorf("pod %s is on node %s: run the command there: %w", name, pod.Node,
			ErrElsewhere)
	}
	return pod, nil
}

// ShowPod returns the policies that judge a pod of this node. inForce is the plan that is enforced,
// or nil if none is.
func (p *Planner) ShowPod(name policy.Name, inForce *policy.Plan) (*policy.PodView, error) {
	pod, err := p.ownPod(name)
	if err != nil {
		return nil, err
	}
	v := &policy.PodView{Pod: name.String(), Addrs: []netip.Addr{}, Policies: []string{}}
	if pod.HostNetwork {
		v.Enforced, v.Why = true, "it has the node's network, so no policy applies to it"
		return v, nil
	}

	now, key := p.Plan(), pod.Key()
	v.Addrs = append(v.Addrs, p.attached[key]...)
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
			v.Problems = append(v.Problems, fmt.Sprintf("%s: %s", clusterName(name), problem))
		}
	}
	v.Ingress, v.Egress = p.side(pod, m, policy.Ingress, now), p.side(pod, m, policy.Egress, now)
	return v, nil
}

// side returns the view of one direction of a pod.
func (p *Planner) side(pod *policy.Pod, m *policy.Member, d policy.Direction,
	plan *policy.Plan) (v policy.SideView) {
	if c := plan.Chains[plan.Groups[m.Group].Chains[d]]; c != nil {
		v.Isolated = !c.Open
		denied := m.Problem != "" && len(c.Admin) > 0
		v.OwnNode = v.Isolated && d == policy.Egress && plan.AllowOwnNode && !denied
	}
	if m.Problem == "" {
		v.Admin = p.tierView(pod, m, policy.Admin, d, plan)
		v.Baseline = p.tierView(pod, m, policy.Baseline, d, plan)
	}
	for _, name := range m.Policies {
		c := p.policies[name.Namespace][name.Name]
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
func (p *Planner) tierView(pod *policy.Pod, m *policy.Member, tier policy.Tier, d policy.Direction,
	plan *policy.Plan) (out []policy.LineView) {
	for _, name := range m.ClusterPolicies {
		c := p.cluster[name]
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
