package policy

import (
	"strings"
)

// Action is the effect of a rule on the connections that it matches.
type Action uint8

// Actions of a ClusterNetworkPolicy. Rules of a NetworkPolicy only accept.
const (
	// Accept allows the connection. Lower tiers do not judge it.
	Accept Action = iota
	// Deny drops the connection's packets.
	Deny
	// Pass skips the rest of the tier.
	Pass
)

// String returns the action as the API writes it.
func (a Action) String() string {
	return [...]string{"Accept", "Deny", "Pass"}[a]
}

// Tier is a tier of ClusterNetworkPolicies. NetworkPolicies come between the two tiers.
type Tier uint8

// Tiers, in their order.
const (
	Admin Tier = iota
	Baseline
)

// String returns the tier as the API writes it.
func (t Tier) String() string {
	return [...]string{"Admin", "Baseline"}[t]
}

// ClusterPolicy is a ClusterNetworkPolicy.
type ClusterPolicy struct {
	Name string
	Tier Tier
	// Priority orders the policies of a tier, the lowest first. Policies of equal priority are
	// ordered by name.
	Priority int32
	// Namespaces and Pods select the subjects: pods that Pods selects, in namespaces that
	// Namespaces selects.
	Namespaces, Pods Selector
	// Rules are the rules by Direction; the first that matches decides. A direction without
	// rules is not affected.
	Rules [2][]ClusterRule
	// Invalid is the reason why the object could not be parsed; "" if it was parsed. An invalid
	// policy denies everything in the directions of Denies.
	Invalid string
	Denies  [2]bool
	// Object identifies the API object that the policy was parsed from.
	Object Object
}

// ClusterRule is a rule of a ClusterPolicy.
type ClusterRule struct {
	Action Action
	Peers  []Peer
	// Ports is empty for all ports and protocols.
	Ports []Port
	// Unknown reports whether a peer has no field that this version knows. Such a rule, like a rule
	// without peers, matches nothing if its action is Accept. With any other action it denies
	// everything.
	Unknown bool
}

// Affects reports whether the policy has rules for a direction, or denies it.
func (c *ClusterPolicy) Affects(d Direction) bool {
	if c.Invalid != "" {
		return c.Denies[d]
	}
	return len(c.Rules[d]) > 0
}

// OfPods reports whether the line refers to pods, not to addresses or nodes.
func (l Line) OfPods() bool {
	return strings.HasPrefix(l.Peer, setPrefixes[KindPods]) ||
		strings.HasPrefix(l.Peer, setPrefixes[KindNamed])
}
