package cluster

import (
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// State is a source's knowledge of the cluster at one revision. It is a value: a source never
// changes a State that it has yielded.
type State struct {
	// Revision grows with each State of one source.
	Revision uint64 `json:"revision"`
	// Synced reports whether the source has listed everything once. Peers are only
	// removed for a synced state.
	Synced bool `json:"synced"`
	// Nodes are the claims, in no order.
	Nodes []Node `json:"nodes"`
	// APIServers are the addresses at which API servers are reached.
	APIServers []netip.Addr `json:"apiServers,omitempty"`
	// ServiceRanges are the cluster's ranges at run time, in any order. RangesListed reports
	// whether they are known: an API server need not have them.
	ServiceRanges []ServiceRange `json:"serviceRanges,omitempty"`
	RangesListed  bool           `json:"rangesListed,omitempty"`
}

// Node holds the claims about one node: the Node object, which has authority over prefixes and age,
// and the node's own VeilNode, if it has one.
type Node struct {
	Name string `json:"name"`
	// Created is the creation time of the Node object; the zero time is oldest.
	Created time.Time `json:"created"`
	// ControlPlane is the label node-role.kubernetes.io/control-plane, which
	// the NodeRestriction admission plugin keeps kubelets from setting.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// Zone is the label topology.kubernetes.io/zone; "" without it.
	Zone string `json:"zone,omitempty"`
	// Addresses are the node's own addresses: Node.status.addresses of the types InternalIP and
	// ExternalIP, without duplicates.
	Addresses []netip.Addr `json:"addresses"`
	// Contested are addresses that the Node lists, and that another node has or lists too. They do
	// not count as the node's own, and nothing is routed to the node for them. Its endpoint may be
	// one of them. Only Resolve fills in this field.
	Contested []netip.Addr `json:"contested,omitempty"`
	// PodPrefixes are Node.spec.podCIDRs.
	PodPrefixes []netip.Prefix `json:"podPrefixes"`
	// Claim is the node's VeilNode; nil when there is none (yet).
	Claim *Claim `json:"claim,omitempty"`
}

// Claim is the content of a VeilNode: what a node claims about itself.
type Claim struct {
	// Keys are the node's public keys by epoch, the newest last; at least one.
	Keys []Key `json:"keys"`
	// Endpoints are the underlay addresses of its tunnel, by family at most one.
	Endpoints []netip.AddrPort `json:"endpoints"`
	// PodPrefixes must agree with Node.PodPrefixes, or the claim is not believed.
	PodPrefixes []netip.Prefix `json:"podPrefixes"`
	// MTU is the MTU of the node's underlay, bytes; 0 means unknown.
	MTU int `json:"mtu,omitempty"`
	// Features are the abilities of the node's version, sorted; see Feature. They are not part of a
	// snapshot: until a node's VeilNode is read they are unknown.
	Features []Feature `json:"-"`
}

// Key is a public key and the epoch it belongs to.
type Key struct {
	Epoch  uint32       `json:"epoch"`
	Public wgkey.Public `json:"public"`
}

// Table holds what is believed: the peers of this node, sorted by name, and everything that must
// never be reached in clear.
type Table struct {
	Revision uint64 `json:"revision"`
	// Self is this node as the cluster knows it; nil until its Node is seen.
	Self *Node `json:"self,omitempty"`
	// Peers are the other nodes whose claims are believed, sorted by name.
	Peers []Node `json:"peers"`
	// Keyless are the other nodes that are believed but have no claim yet, sorted
	// by name. They are not peers, but they keep what they hold.
	Keyless []Node `json:"keyless,omitempty"`
	// NodeAddrs are the addresses of all known nodes, sorted. They include the addresses of this
	// node and of nodes without a key, contested addresses, and harmless addresses of refused
	// nodes. For pods, each of them is unreachable unless it is local or belongs to a peer.
	NodeAddrs []netip.Addr `json:"nodeAddrs"`
	// APIServers are State.APIServers, sorted: remembered, so that a worker cannot
	// claim one before the first list of them arrives.
	APIServers []netip.Addr `json:"apiServers,omitempty"`
	// ServiceRanges are closed in addition to the configured ranges: see AddedRanges.
	ServiceRanges []netip.Prefix `json:"serviceRanges,omitempty"`
}

// Refusal is a claim that was not believed.
type Refusal struct {
	// Node is the newcomer that was refused.
	Node string `json:"node"`
	// Incumbent is the node that won against it, if there is one.
	Incumbent string `json:"incumbent,omitempty"`
	// Reason is a sentence for people, with what to do.
	Reason string `json:"reason"`
}

// Rules are the settings by which Resolve judges claims.
type Rules struct {
	// Self is the name of this node.
	Self string
	// ClusterRanges contain all pod prefixes that there may ever be.
	ClusterRanges []netip.Prefix
	// ServiceRanges contain all service addresses that there may ever be.
	ServiceRanges []netip.Prefix
	// NodeRanges contain all node addresses that there may ever be. An empty list allows any. A
	// kubelet may write what it likes into its own Node's addresses. Without a bound, a worker can
	// capture the traffic of pods to an outside address.
	NodeRanges []netip.Prefix
	// Outside are the parts of NodeRanges with hosts that are not nodes.
	Outside []netip.Prefix
	// Gateways are the next hops of this node's default routes on the underlay: evidence
	// against newcomers that are not control-plane nodes.
	Gateways []netip.Addr
}
