package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Name identifies an object in a namespace.
type Name struct{ Namespace, Name string }

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then by name.
func (n Name) Compare(other Name) int {
	return cmp.Or(strings.Compare(n.Namespace, other.Namespace), strings.Compare(n.Name, other.Name))
}

// Proto is an IP protocol number. Policies use only the constants.
type Proto uint8

// Protocols of NetworkPolicyPort.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

// String returns the protocol's name as nft writes it.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// Word returns the name that commands show: it names ICMP too, and is the number of any other
// protocol.
func (p Proto) Word() string {
	switch p {
	case TCP, UDP, SCTP:
		return p.String()
	case 1: // ICMP, RFC 792
		return "icmp"
	case 58: // ICMPv6, RFC 4443
		return "icmp6"
	}
	return strconv.Itoa(int(p))
}

// ProtoOf returns the protocol of a Word.
func ProtoOf(word string) (p Proto, known bool) {
	for p := range 256 {
		if Proto(p).Word() == word {
			return Proto(p), true
		}
	}
	return 0, false
}

// Object identifies a revision of an API object. The zero value means that it is not known.
type Object struct {
	UID string
	// Generation counts changes of the spec.
	Generation int64
}

// Operator compares a label with the values of a Requirement.
type Operator uint8

// Operators of a label selector (k8s.io/apimachinery metav1.LabelSelectorOperator).
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
)

// Requirement is one condition of a Selector. Values are not empty for In and NotIn.
type Requirement struct {
	Key    string
	Op     Operator
	Values []string
}

// Selector selects objects whose labels meet all requirements; the zero value selects all.
type Selector []Requirement

// Matches reports whether labels meet all requirements. NotIn matches an absent label.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s {
		value, has := labels[r.Key]
		var ok bool
		switch r.Op {
		case In:
			ok = has && slices.Contains(r.Values, value)
		case NotIn:
			ok = !has || !slices.Contains(r.Values, value)
		case Exists:
			ok = has
		case DoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

// Namespace holds what policies need from a Namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
	// Excess reports whether the namespace has more labels than are kept; Labels is then empty. No
	// selector of peers in other namespaces selects its pods, not even one of all namespaces. A
	// ClusterNetworkPolicy that selects namespaces by labels denies them everything.
	Excess bool
}

// NamedPort is a container port that has a name.
type NamedPort struct {
	Name  string
	Proto Proto
	Port  uint16
}

// Pod holds what policies need from a Pod.
type Pod struct {
	Name
	// UID is the UID that the kubelet passes to the CNI plugin. For a mirror pod that is the value
	// of the annotation kubernetes.io/config.mirror.
	UID    string
	Labels map[string]string
	// Node is spec.nodeName, empty until the pod is bound.
	Node string
	// Addrs are the pod's addresses. The caller leaves out those that the pod's node does not
	// own.
	Addrs []netip.Addr
	Ports []NamedPort
	// HostNetwork pods share the node's addresses.
	HostNetwork bool
	// Finished pods are Succeeded or Failed: another pod may already have their addresses.
	Finished bool
	// Mirror pods are written by kubelets, with labels of the kubelet's choice.
	Mirror bool
	// Excess reports whether the pod has more labels or ports than are kept; Labels and Ports are
	// then empty. It counts as selected by every policy of its namespace, and by every
	// ClusterNetworkPolicy that selects its namespace. Policies that select pods by labels allow it
	// nothing, since they may not be meant for it. No selector of peers selects it.
	Excess bool
}

// PeerNode is a node as a peer.
type PeerNode struct {
	Labels map[string]string
	// Excess reports whether the node has more labels than are kept; Labels is then empty. Only
	// rules that deny select it.
	Excess bool
	// Addrs are the addresses that the node is believed to have.
	Addrs []netip.Addr
}

// Key identifies a pod of this node by name and UID together: a tenant may write a mirror pod with
// the UID of another tenant's pod.
type Key struct {
	Name
	UID string
}

// Key returns the pod's Key.
func (p *Pod) Key() Key { return Key{p.Name, p.UID} }

// Direction is the direction of a connection as its pod sees it.
type Direction uint8

// Directions.
const (
	Ingress Direction = iota
	Egress
)

// String returns the direction's name.
func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Policy is a NetworkPolicy.
type Policy struct {
	Name
	// Subjects selects pods of the policy's namespace.
	Subjects Selector
	// Isolates holds the directions in which the policy isolates its subjects: its policyTypes,
	// with the default of the API applied. Rules of other directions are ignored.
	Isolates [2]bool
	// Rules are the rules by Direction.
	Rules [2][]Rule
	// Invalid is the reason why the object could not be parsed; "" if it was parsed. An invalid
	// policy allows nothing.
	Invalid string
	// Object identifies the API object that the policy was parsed from.
	Object Object
}

// Policies are policies of both kinds.
type Policies struct {
	Namespaced []Policy
	Cluster    []ClusterPolicy
}

// AllOfNamespace is the name of a policy that replaces all NetworkPolicies of its namespace, which
// has more than are kept. No object of the API has this name.
const AllOfNamespace = "*"

// Revisions holds the revision of the API object of each policy.
type Revisions map[Ref]Object

// Rule allows connections with one of the peers on one of the ports.
type Rule struct {
	// Peers is empty for all peers.
	Peers []Peer
	// Ports is empty for all ports and protocols.
	Ports []Port
}

// Peer selects the other end of a connection: by Block or Nodes if it is not nil, otherwise by
// selectors of pods.
type Peer struct {
	Block *Block
	// Nodes selects nodes, which have no named ports.
	Nodes *Selector
	// Namespaces selects namespaces. Nil means the namespace of the policy.
	Namespaces *Selector
	// Pods selects pods in these namespaces. Nil selects all of them.
	Pods *Selector
}

// Block is a range of addresses without some smaller ranges.
type Block struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

// Contains reports whether the block has the address.
func (b Block) Contains(a netip.Addr) bool {
	return b.CIDR.Contains(a) &&
		!slices.ContainsFunc(b.Except, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Port selects destination ports of one protocol.
type Port struct {
	Proto Proto
	// Name refers to a named port of the destination pod. If it is empty, First and Last apply.
	Name string
	// First and Last bound a range, both inclusive. First 0 without a Name means all ports.
	First, Last uint16
}
