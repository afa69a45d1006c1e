package policy

import (
	"cmp"
	"net/netip"
)

// SetKind is the kind of a Set's content.
type SetKind uint8

// Kinds of sets.
const (
	// KindPods is a set of the addresses of the pods that selectors select.
	KindPods SetKind = iota
	// KindBlock is a set of address ranges.
	KindBlock
	// KindNamed is a set of addresses with the number of a port that the pod names.
	KindNamed
	// KindNodes is a set of the addresses of the nodes that a selector selects.
	KindNodes
)

// setPrefixes begin the names of sets.
var setPrefixes = map[SetKind]string{KindPods: "p", KindBlock: "b", KindNamed: "n",
	KindNodes: "h"}

// Prefix returns how the names of sets of this kind begin.
func (k SetKind) Prefix() string { return setPrefixes[k] }

// Range is a range of addresses of one family, both ends inclusive.
type Range struct{ First, Last netip.Addr }

// Interval is a range of destination ports of one protocol, both ends inclusive. The zero value
// is all ports of all protocols.
type Interval struct {
	Proto       Proto
	First, Last uint16
}

// Compare orders intervals by protocol, then by port.
func (i Interval) Compare(j Interval) int {
	return cmp.Or(cmp.Compare(i.Proto, j.Proto), cmp.Compare(i.First, j.First),
		cmp.Compare(i.Last, j.Last))
}

// Has reports whether the interval has a port of a protocol.
func (i Interval) Has(proto Proto, port uint16) bool {
	return i.Proto == 0 || i.Proto == proto && i.First <= port && port <= i.Last
}

// AddrPort is one named port of one address.
type AddrPort struct {
	Addr  netip.Addr
	Proto Proto
	Port  uint16
}

// Compare orders by address, then by protocol and port.
func (a AddrPort) Compare(b AddrPort) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.Port, b.Port))
}

// Set is a set of peers. Kind decides which of Addrs, Ranges and Named holds the content. Each is
// sorted and has no duplicates.
type Set struct {
	Name   string
	Kind   SetKind
	Addrs  []netip.Addr
	Ranges []Range
	Named  []AddrPort
}

// Line matches flows with a peer of the set and a port of the interval.
type Line struct {
	// Action is the action on a match. In Chain.Lines it is always Accept.
	Action Action
	// Peer is the name of a Set. An empty name matches all peers.
	Peer  string
	Ports Interval
}

// Chain judges one direction of a pod: first by Admin, then by Lines, and if it is Open by
// Baseline.
type Chain struct {
	Name string
	// Admin and Baseline are the tiers of ClusterNetworkPolicies. The first line that matches
	// decides. Accept and Deny are final; Pass skips the rest of the tier.
	Admin, Baseline []Line
	// Open reports whether no NetworkPolicy isolates the pod. Lines is then empty, and flows that
	// no tier denies are allowed. Otherwise Lines are final: flows that no line allows are denied.
	Open bool
	// Lines are sorted and have no duplicates.
	Lines []Line
}

// Group is shared by pods that are judged the same way. An empty chain name means that no policy
// selects the direction, so all its flows are allowed.
type Group struct {
	Name   string
	Chains [2]string
}

// Member is a pod of this node.
type Member struct {
	// Group is the name of a Group.
	Group string
	// Addrs are the addresses of the pod's attachment. The list is empty until the pod is attached.
	Addrs []netip.Addr
	// Policies are the policies that select the pod, sorted.
	Policies []Name
	// ClusterPolicies are the ClusterNetworkPolicies that select the pod, in the order in which
	// they are evaluated.
	ClusterPolicies []string
	// Problem is the reason why a direction denies everything; "" if none does.
	Problem string
}

// Plan holds the policies that a node enforces, in the form for Judge and for the kernel. It is
// never changed.
type Plan struct {
	Sets   SetMap
	Chains map[string]*Chain
	Groups map[string]*Group
	// Members are the pods of this node.
	Members map[Key]*Member
	// Own are the addresses from which the node itself sends packets through pods' links, to prove
	// that pods' packets pass. No pod can send from them.
	Own []netip.Addr
	// NodeAddrs are the addresses of all nodes. Inside holds them and the prefixes of all pods.
	// Both are sorted. They decide which ICMP errors are accepted.
	NodeAddrs []netip.Addr
	Inside    []Range
	Options
	// Problems holds, by policy, the reason why it denies everything.
	Problems map[Name]string
	// ClusterProblems holds, by ClusterNetworkPolicy, which part denies more than its text does.
	ClusterProblems map[string]string
	// Denials are the policies that deny more than their text does, sorted by name. Selecting is
	// the number of NetworkPolicies that select a pod of this node.
	Denials   []Denial
	Selecting int
	// Elements is an upper bound of the elements in all sets of the kernel: each address, range and
	// box counts once per set that contains it.
	Elements int
	// Postponed are the namespaces whose changes are not in the plan yet, sorted. Their pods are
	// planned as before these changes, and new pods are missing.
	Postponed []string
	// Revision is the result of Planner.Revision as of this plan. Plan leaves it empty, since it
	// costs time.
	Revision string
}

// Unjudged reports whether no policy judges any packet of the pod, in either direction. A pod
// without a group is judged: it is mute.
func (p *Plan) Unjudged(m *Member) bool {
	g := p.Groups[m.Group]
	return g != nil && g.Chains[Ingress] == "" && g.Chains[Egress] == ""
}

// FastPathView reports whether a pod's packets go past netfilter (hostRouting ebpf).
type FastPathView struct {
	Has bool `json:"has"`
	// Why is the reason why the pod's packets do not go past netfilter; "" if Has.
	Why string `json:"why,omitempty"`
}

// LastOf returns the last address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Names of the sets that identify an unknown peer: an address in SetRanges that is not in SetKnown.
// A Plan has both sets if a line that denies or passes refers to pods, otherwise neither.
const (
	SetRanges = "ranges"
	SetKnown  = "known"
)

// Options are the operator's settings for policies. A Planner puts them into each Plan, where
// Judge, the table and the views read them. The zero value holds the defaults.
type Options struct {
	// AllowOwnNode reports whether a pod that NetworkPolicies isolate still reaches its own node,
	// as the Kubernetes API defines. The Admin tier of ClusterNetworkPolicies judges first.
	AllowOwnNode bool
}

// Denial is a policy that denies more than its text does, for pods of this node.
type Denial struct {
	// Name names the policy. A ClusterNetworkPolicy has no namespace.
	Name
	Object
	// Problem describes what is denied and why.
	Problem string
}
