package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// PolicyView describes a policy that selects a pod of this node.
type PolicyView struct {
	// Policy is the namespace/name, or the name of a ClusterNetworkPolicy.
	Policy string `json:"policy"`
	// Tier is Admin, NetworkPolicy or Baseline.
	Tier string `json:"tier"`
	// Directions are the directions in which the policy isolates its pods, or has rules.
	Directions []string `json:"directions"`
	// Pods are the pods of this node that the policy selects, sorted.
	Pods []string `json:"pods"`
	// Enforced reports whether the policy is in force as it is written.
	Enforced bool `json:"enforced"`
	// Problem is the reason why it is not; "" if Enforced.
	Problem string `json:"problem,omitempty"`
}

// PodView describes a pod of this node.
type PodView struct {
	Pod string `json:"pod"`
	// Addrs are the addresses of the pod's attachment. The list is empty until the pod is attached.
	Addrs []netip.Addr `json:"addrs"`
	// Group is the pod's group, or its future group while Enforced is false; "" if it has none.
	Group string `json:"group,omitempty"`
	// Mute reports whether the node drops all that the pod sends and receives.
	Mute bool `json:"mute"`
	// Enforced reports whether the content of this view is in force.
	Enforced bool `json:"enforced"`
	// Why explains a pod that is mute, not enforced, or not subject to policies.
	Why string `json:"why,omitempty"`
	// Policies are the NetworkPolicies that select the pod, sorted.
	Policies []string `json:"policies"`
	// ClusterPolicies are the ClusterNetworkPolicies that do, in the order of evaluation.
	ClusterPolicies []string `json:"clusterPolicies,omitempty"`

	Ingress SideView `json:"ingress"`
	Egress  SideView `json:"egress"`
	// FastPath is nil where no pod of the node can have it, and for pods with the node's network.
	FastPath *FastPathView `json:"fastPath,omitempty"`
	// Problems name the policies that deny everything in a direction that they isolate, and why.
	Problems []string `json:"problems,omitempty"`
}

// SideView is one direction of a pod. Admin is evaluated first, then Lines if the direction is
// Isolated, otherwise Baseline. Flows that neither decides are allowed.
type SideView struct {
	// Admin and Baseline are the tiers of ClusterNetworkPolicies: the first line that matches
	// decides, and Pass skips the rest of its tier.
	Admin    []LineView `json:"admin,omitempty"`
	Baseline []LineView `json:"baseline,omitempty"`
	// Isolated reports whether a NetworkPolicy isolates the direction. Then only Lines allow flows
	// that Admin does not decide.
	Isolated bool `json:"isolated"`
	// OwnNode reports whether the pod reaches its own node regardless of Lines.
	OwnNode bool `json:"ownNode,omitempty"`
	// By are the policies that isolate the direction, sorted.
	By    []string   `json:"by,omitempty"`
	Lines []LineView `json:"lines,omitempty"`
}

// LineView describes one line: the action on peers and ports, in words.
type LineView struct {
	Policy string `json:"policy"`
	// Action is the action of a ClusterNetworkPolicy's rule. A NetworkPolicy's line has "": it
	// allows.
	Action string `json:"action,omitempty"`
	Peers  string `json:"peers"`
	Ports  string `json:"ports"`
	// Members is the present number of the peers' addresses. -1 means all addresses, or ranges.
	Members int `json:"members"`
}

// enforces reports whether p judges a pod in the same way as other. A nil plan does not.
func (p *Plan) enforces(other *Plan, key Key) bool {
	if p == nil {
		return false
	}
	m, n := p.Members[key], other.Members[key]
	if m == nil || n == nil || m.Group != n.Group || !slices.Equal(m.Addrs, n.Addrs) {
		return false
	}
	for _, chain := range other.Groups[n.Group].Chains {
		if chain == "" {
			continue
		}
		c := other.Chains[chain]
		for _, l := range slices.Concat(c.Admin, c.Lines, c.Baseline) {
			if l.Peer != "" && p.Sets.Get(l.Peer) != other.Sets.Get(l.Peer) {
				return false
			}
			if l.Doubts() && (p.Sets.Get(SetKnown) != other.Sets.Get(SetKnown) ||
				p.Sets.Get(SetRanges) != other.Sets.Get(SetRanges)) {
				return false
			}
		}
	}
	return true
}

// List returns the policies that select a pod of this node, sorted. inForce is the plan that is
// enforced, or nil if none is.
func (p *Planner) List(inForce *Plan) []PolicyView {
	now := p.Plan()
	byName := map[string]*PolicyView{}
	for key, m := range now.Members {
		enforced := inForce.enforces(now, key)
		add := func(v PolicyView, problem string) {
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
				if c.problem != "" {
					problem = "it denies everything that it isolates: " + c.problem
				}
				add(PolicyView{Policy: name.String(), Tier: "NetworkPolicy",
					Directions: directions(func(d Direction) bool { return c.policy.Isolates[d] })},
					problem)
			}
		}
		for _, name := range m.ClusterPolicies {
			if c := p.cluster[name]; c != nil {
				add(PolicyView{Policy: name, Tier: c.policy.Tier.String(),
					Directions: directions(c.policy.affects)}, c.problem)
			}
		}
	}

	views := []PolicyView{}
	for _, v := range byName {
		slices.Sort(v.Pods)
		views = append(views, *v)
	}
	slices.SortFunc(views, func(a, b PolicyView) int { return strings.Compare(a.Policy, b.Policy) })
	return views
}

// directions returns the names of the directions for which has returns true.
func directions(has func(Direction) bool) []string {
	out := []string{}
	for _, d := range []Direction{Ingress, Egress} {
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
func (p *Planner) ownPod(name Name) (*Pod, error) {
	pod := p.pods[name]
	switch {
	case pod == nil:
		return nil, noPod(name)
	case pod.Node == "":
		return nil, fmt.Errorf("pod %s is not bound to a node yet: %w", name, ErrElsewhere)
	case pod.Node != p.node:
		return nil, fmt.Errorf("pod %s is on node %s: ask there: %w", name, pod.Node, ErrElsewhere)
	}
	return pod, nil
}

// ShowPod returns the policies that judge a pod of this node. inForce is the plan that is enforced,
// or nil if none is.
func (p *Planner) ShowPod(name Name, inForce *Plan) (*PodView, error) {
	pod, err := p.ownPod(name)
	if err != nil {
		return nil, err
	}
	v := &PodView{Pod: name.String(), Addrs: []netip.Addr{}, Policies: []string{}}
	if pod.HostNetwork {
		v.Enforced, v.Why = true, "it has the node's network: no policy is about it"
		return v, nil
	}

	now, key := p.Plan(), pod.key()
	v.Addrs = append(v.Addrs, p.attached[key]...)
	v.Enforced = inForce.enforces(now, key)
	v.Mute = inForce != nil && inForce.Members[key] == nil
	switch {
	case v.Mute:
		v.Why = "the node does not judge it yet: all that it sends and receives is dropped"
	case !v.Enforced:
		v.Why = "what is shown is not in force yet"
	case len(v.Addrs) == 0:
		v.Why = "it is not attached yet; its place is reserved"
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
	v.Ingress, v.Egress = p.side(pod, m, Ingress, now), p.side(pod, m, Egress, now)
	return v, nil
}

// side returns one direction of a pod.
func (p *Planner) side(pod *Pod, m *Member, d Direction, plan *Plan) (v SideView) {
	if c := plan.Chains[plan.Groups[m.Group].Chains[d]]; c != nil {
		v.Isolated = !c.Open
		denied := m.Problem != "" && len(c.Admin) > 0
		v.OwnNode = v.Isolated && d == Egress && plan.AllowOwnNode && !denied
	}
	if m.Problem == "" {
		v.Admin = p.tierView(pod, m, Admin, d, plan)
		v.Baseline = p.tierView(pod, m, Baseline, d, plan)
	}
	for _, name := range m.Policies {
		c := p.policies[name.Namespace][name.Name]
		if c == nil || !c.policy.Isolates[d] {
			continue
		}
		v.By = append(v.By, name.String())
		if m.Problem == "" {
			v.Lines = append(v.Lines, c.show(d, pod, plan.Sets)...)
		}
	}
	return v
}

// tierView returns the lines of one tier in words, in the order of evaluation.
func (p *Planner) tierView(pod *Pod, m *Member, tier Tier, d Direction,
	plan *Plan) (out []LineView) {
	for _, name := range m.ClusterPolicies {
		c := p.cluster[name]
		if c == nil || c.policy.Tier != tier {
			continue
		}
		for _, l := range c.linesOf(d, pod) {
			def := c.sets[l.Peer]
			v := LineView{Policy: name, Action: l.Action.String(), Ports: portWords(l, def)}
			v.Peers, v.Members = peerWords(def, plan.Sets.Get(l.Peer))
			out = append(out, v)
		}
	}
	return out
}

// peerWords returns the peers of a set in words, and the number of their addresses; -1 means all
// addresses, or ranges. A nil definition means all peers.
func peerWords(def *definition, s *Set) (words string, members int) {
	if def == nil {
		return "anywhere", -1
	}
	if s == nil || s.Kind == KindBlock {
		return def.words(), -1
	}
	return def.words(), len(s.Addrs) + len(s.Named)
}

// show returns the lines of one direction of a policy in words. It joins lines with the same peers.
func (c *compiled) show(d Direction, pod *Pod, sets SetMap) []LineView {
	ports := map[string][]string{}
	for _, l := range c.linesOf(d, pod) {
		ports[l.Peer] = append(ports[l.Peer], portWords(l, c.sets[l.Peer]))
	}

	var out []LineView
	for _, peer := range slices.Sorted(maps.Keys(ports)) {
		v := LineView{Policy: c.policy.Name.String()}
		v.Peers, v.Members = peerWords(c.sets[peer], sets.Get(peer))
		slices.Sort(ports[peer])
		v.Ports = strings.Join(slices.Compact(ports[peer]), ", ")
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b LineView) int {
		return strings.Compare(a.Peers+a.Ports, b.Peers+b.Ports)
	})
	return out
}
