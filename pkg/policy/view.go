package policy

import (
	"net/netip"
	"slices"
)

// PolicyView describes a policy that selects a pod of this node.
type PolicyView struct {
	// Policy is the namespace/name, or the name of a ClusterNetworkPolicy.
	Policy string `json:"policy"`
	// Tier is Admin, NetworkPolicy or Baseline.
	Tier string `json:"tier"`
	// Directions are the directions in which the policy isolates its pods, or has rules.
	Directions []string `json:"directions"`
	// Pods are pods of this node that the policy selects, sorted. MorePods counts the pods beyond a
	// bound.
	Pods     []string `json:"pods"`
	MorePods int      `json:"morePods,omitempty"`
	// Enforced reports whether the policy is in force as it is written.
	Enforced bool `json:"enforced"`
	// Problem is the reason why the policy is not in force as written; "" if Enforced.
	Problem string `json:"problem,omitempty"`
	// Rules counts what rules of the policy did, sorted. It has no rules that did nothing, and is
	// empty where counts were not asked for.
	Rules []RuleCount `json:"rules,omitempty"`
}

// RuleName names a rule of a policy in one direction, in words. All rules of a NetworkPolicy
// together deny what none of them allows.
type RuleName struct {
	Policy    string `json:"-"`
	Direction string `json:"direction"`
	Rule      string `json:"rule"`
}

// RuleCount counts the connections and drops of a rule on this node.
type RuleCount struct {
	RuleName
	// Allowed counts known connections that the rule allows. One counts for each such rule.
	Allowed int `json:"allowed"`
	// Denied counts the samples of packets that the rule denied, since the daemon began.
	Denied uint64 `json:"denied"`
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
	// ClusterPolicies are the ClusterNetworkPolicies that select the pod, in the order of
	// evaluation.
	ClusterPolicies []string `json:"clusterPolicies,omitempty"`

	Ingress SideView `json:"ingress"`
	Egress  SideView `json:"egress"`
	// FastPath is nil if no pod of the node can have the fast path, and for pods with the node's
	// network.
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
	// Action is the action of a ClusterNetworkPolicy's rule. It is empty for a NetworkPolicy's
	// line, which always allows.
	Action string `json:"action,omitempty"`
	Peers  string `json:"peers"`
	Ports  string `json:"ports"`
	// Members is the present number of the peers' addresses. -1 means all addresses, or ranges.
	Members int `json:"members"`
}

// Enforces reports whether p judges a pod in the same way as other. It returns false if p is nil,
// or if other lacks changes of the pod's namespace.
func (p *Plan) Enforces(other *Plan, key Key) bool {
	if p == nil || slices.Contains(other.Postponed, key.Namespace) {
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
