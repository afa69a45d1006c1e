package cluster

import (
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// State is the knowledge of a source about the cluster at one revision. A source never changes a
// State that it has yielded.
type State struct {
	// Revision grows with each State of one source.
	Revision uint64 `json:"revision"`
	// Synced reports whether the source has listed all objects once. Only a synced State removes
	// peers.
	Synced bool `json:"synced"`
	// Nodes are the claims, in no order. They include nodes of sites, see SiteNodeName.
	Nodes []Node `json:"nodes"`
	// SitesUnlisted reports whether the source has not listed the nodes of sites yet. The nodes of
	// sites in the last good table then stay.
	SitesUnlisted bool `json:"sitesUnlisted,omitempty"`
	// APIServers are the addresses of the API servers.
	APIServers []netip.Addr `json:"apiServers,omitempty"`
	// ServiceRanges are the service ranges that were added at run time, in no order. RangesListed
	// reports whether they are known. Not every API server supports them.
	ServiceRanges []ServiceRange `json:"serviceRanges,omitempty"`
	RangesListed  bool           `json:"rangesListed,omitempty"`
}

// Node holds the claims about one node: the Node object, which has authority over prefixes and age,
// and the node's own VeilNode, if it has one.
type Node struct {
	Name string `json:"name"`
	// Created is the creation time of the Node object. The zero time counts as the oldest.
	Created time.Time `json:"created"`
	// ControlPlane reports whether the Node has the label node-role.kubernetes.io/control-plane.
	// The NodeRestriction admission plugin prevents kubelets from setting it.
	ControlPlane bool `json:"controlPlane,omitempty"`
	// Zone is the label topology.kubernetes.io/zone; "" without it.
	Zone string `json:"zone,omitempty"`
	// Leaving reports whether the Node is about to be deleted.
	Leaving bool `json:"leaving,omitempty"`
	// Addresses are the node's own addresses: Node.status.addresses of the types InternalIP and
	// ExternalIP, without duplicates.
	Addresses []netip.Addr `json:"addresses"`
	// Contested are addresses that the Node lists, and that another node has or lists too. They are
	// not assigned to this node, and their packets are not routed to it. But its endpoint may be
	// one of them. Only Resolve sets this field.
	Contested []netip.Addr `json:"contested,omitempty"`
	// PodPrefixes are Node.spec.podCIDRs.
	PodPrefixes []netip.Prefix `json:"podPrefixes"`
	// Claim is the content of the node's VeilNode; nil means that there is none (yet).
	Claim *Claim `json:"claim,omitempty"`
}

// Claim is the content of a VeilNode: what a node claims about itself.
type Claim struct {
	// Keys are the node's public keys, at least one, sorted by epoch, the newest last.
	Keys []Key `json:"keys"`
	// Endpoints are the underlay addresses and ports of its tunnel, at most one per family.
	Endpoints []netip.AddrPort `json:"endpoints"`
	// PodPrefixes must be equal to Node.PodPrefixes. Otherwise the claim is refused.
	PodPrefixes []netip.Prefix `json:"podPrefixes"`
	// MTU is the MTU of the node's underlay, bytes; 0 means unknown.
	MTU int `json:"mtu,omitempty"`
	// Features are the features of the node's version, sorted. They are not part of a snapshot, so
	// they are unknown until the node's VeilNode is read.
	Features []Feature `json:"-"`
}

// Key is a public key and its epoch.
type Key struct {
	Epoch  uint32       `json:"epoch"`
	Public wgkey.Public `json:"public"`
}

// Table holds the believed claims: the peers of this node, and the addresses that must never be
// reached in clear.
type Table struct {
	Revision uint64 `json:"revision"`
	// Self is this node as the cluster knows it; nil until its Node is seen.
	Self *Node `json:"self,omitempty"`
	// Peers are the other nodes whose claims are believed, sorted by name.
	Peers []Node `json:"peers"`
	// Keyless are the other accepted nodes without a believed claim, sorted by name. They are not
	// peers, but they keep their prefixes and addresses.
	Keyless []Node `json:"keyless,omitempty"`
	// NodeAddrs are the addresses of all known nodes, sorted. They include the addresses of this
	// node and of nodes without a key, contested addresses, and harmless addresses of refused
	// nodes. For pods, each of them is unreachable unless it is local or belongs to a peer.
	NodeAddrs []netip.Addr `json:"nodeAddrs"`
	// APIServers are State.APIServers, sorted. They are stored, so that a worker cannot claim the
	// address of an API server before the source lists these addresses.
	APIServers []netip.Addr `json:"apiServers,omitempty"`
	// ServiceRanges are closed in addition to the configured ranges; see AddedRanges.
	ServiceRanges []netip.Prefix `json:"serviceRanges,omitempty"`
}

// Refusal is a claim that was not believed.
type Refusal struct {
	// Node is the name of the node whose claim was refused.
	Node string `json:"node"`
	// Incumbent is the name of the node that holds what Node claims; empty means none.
	Incumbent string `json:"incumbent,omitempty"`
	// Reason is a sentence for people, with the remedy.
	Reason string `json:"reason"`
}

// Rules are the settings by which Resolve decides about claims.
type Rules struct {
	// Self is the name of this node.
	Self string
	// ClusterRanges contain all possible pod prefixes.
	ClusterRanges []netip.Prefix
	// ServiceRanges contain all possible service addresses.
	ServiceRanges []netip.Prefix
	// NodeRanges contain all possible node addresses. An empty list allows any address. A kubelet
	// can write any address into its own Node. So without this bound a worker can capture the
	// traffic of pods to an outside address.
	NodeRanges []netip.Prefix
	// Outside are the parts of NodeRanges with hosts that are not nodes.
	Outside []netip.Prefix
	// Sites are the other clusters. Their ranges overlap no other range.
	Sites []Site
	// Gateways are the next hops on the underlay. A newcomer that is not a control-plane node
	// cannot claim them.
	Gateways []netip.Addr

	// site is the site whose ranges these rules have, see of. It is empty for this cluster.
	site string
}
