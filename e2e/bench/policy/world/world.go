package world

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Scale is the size of what is measured.
type Scale struct {
	// Nodes and Pods, of each node, make up the cluster.
	Nodes, Pods int
	// Policies of so many Rules each all select pods of this node.
	Policies, Rules int
}

// Tiers is the number of sets of peers that the rules refer to, namespaces the number of namespaces
// of the pods.
const Tiers, Namespaces = 200, 10

// Here is the node that is measured.
const Here = "node-0"

// Cluster makes the objects of a cluster. It keeps none of them.
type Cluster struct{ Scale }

// Addrs returns the addresses of pod i of a node.
func Addrs(node, i int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{198, 18, byte(node), byte(i + 1)}),
		netip.AddrFrom16([16]byte{0xfd, 0x42, 3: byte(node), 15: byte(i + 1)}),
	}
}

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

// NamespaceName returns the namespace of pod i of each node.
func NamespaceName(i int) string { return fmt.Sprintf("team-%d", i%Namespaces) }

// Prefixes are the pod prefixes of each node.
func (c Cluster) Prefixes() map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for n := range c.Nodes {
		a := Addrs(n, -1)
		out[nodeName(n)] = []netip.Prefix{netip.PrefixFrom(a[0], 24), netip.PrefixFrom(a[1], 64)}
	}
	return out
}

// PodOf returns pod i of a node. Its tier is the number of its set of peers.
func PodOf(node, i, tier int) policy.Pod {
	name := fmt.Sprintf("app-%d-%d", i, node)
	return policy.Pod{
		Name: policy.Name{Namespace: NamespaceName(i), Name: name},
		UID:  fmt.Sprintf("00000000-0000-4000-8000-%04d%08d", node, i),
		Labels: map[string]string{"app": fmt.Sprintf("app-%d", i), "tier": TierName(tier),
			"pod-template-hash": "5d9c7b8f66"},
		Node: nodeName(node), Addrs: Addrs(node, i),
		Ports: []policy.NamedPort{{Name: "http", Proto: policy.TCP, Port: 8080}},
	}
}

// TierName returns the label of a tier.
func TierName(tier int) string { return fmt.Sprintf("t-%d", tier%Tiers) }

// TierOf is the tier of a pod unless it was changed.
func TierOf(node, i int) int { return node*7 + i }

// KeyOf returns the key of a pod in plans.
func KeyOf(p policy.Pod) policy.Key { return policy.Key{Name: p.Name, UID: p.UID} }

// PolicyOf is policy j, for ingress. It selects one pod of each node. Rules of the policies of one
// pod differ, and seed moves the port of the last one.
func (c Cluster) PolicyOf(j, seed int) policy.Policy {
	pod := j % c.Pods
	p := policy.Policy{
		Name:     policy.Name{Namespace: NamespaceName(pod), Name: fmt.Sprintf("policy-%d", j)},
		Subjects: policy.Selector{{Key: "app", Values: []string{fmt.Sprintf("app-%d", pod)}}},
		Isolates: [2]bool{true, false},
	}

	all := make([]policy.Rule, 0, c.Rules)
	for r := range c.Rules {
		port := uint16(1024 + j/c.Pods*c.Rules + r)
		if r == c.Rules-1 {
			port = uint16(40000 + seed)
		}
		all = append(all, policy.Rule{
			Peers: []policy.Peer{{Namespaces: &policy.Selector{},
				Pods: &policy.Selector{{Key: "tier", Values: []string{TierName(j*7 + r)}}}}},
			Ports: []policy.Port{{Proto: policy.TCP, First: port, Last: port}},
		})
	}
	p.Rules[policy.Ingress] = all
	return p
}

// Sink takes objects: a Planner or a Keeper.
type Sink interface {
	PutNamespace(policy.Namespace)
	PutPod(policy.Pod)
	PutPolicy(policy.Policy)
}

// Put puts the pods of the first nodes, the namespaces, and all policies.
func (c Cluster) Put(to Sink, nodes int) {
	for i := range Namespaces {
		to.PutNamespace(policy.Namespace{Name: NamespaceName(i)})
	}
	for n := range nodes {
		for i := range c.Pods {
			to.PutPod(PodOf(n, i, TierOf(n, i)))
		}
	}
	for j := range c.Policies {
		to.PutPolicy(c.PolicyOf(j, j/c.Pods))
	}
}

// OtherPod returns pod k of the pods of other nodes.
func (c Cluster) OtherPod(k int) (node, i int) {
	return 1 + k/c.Pods%(c.Nodes-1), k % c.Pods
}
