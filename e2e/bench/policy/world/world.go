package world

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Scale is the size of a cluster.
type Scale struct {
	// Nodes is the number of nodes. Pods is the number of pods per node.
	Nodes, Pods int
	// Policies is the number of policies, each of which selects one pod of each node. Rules is the
	// number of rules per policy.
	Policies, Rules int
}

// Tiers is the number of sets of peers that the rules refer to. Namespaces is the number of
// namespaces of the pods.
const Tiers, Namespaces = 200, 10

// Here is the name of the measured node.
const Here = "node-0"

// Cluster makes the objects of a cluster of a Scale. It stores none of them.
type Cluster struct{ Scale }

// Addrs returns the IPv4 and the IPv6 address of pod i of a node.
func Addrs(node, i int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{198, 18, byte(node), byte(i + 1)}),
		netip.AddrFrom16([16]byte{0xfd, 0x42, 3: byte(node), 15: byte(i + 1)}),
	}
}

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

// NamespaceName returns the namespace of pod i of each node.
func NamespaceName(i int) string { return fmt.Sprintf("team-%d", i%Namespaces) }

// Prefixes returns the pod prefixes of each node, keyed by the name of the node.
func (c Cluster) Prefixes() map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for n := range c.Nodes {
		a := Addrs(n, -1)
		out[nodeName(n)] = []netip.Prefix{netip.PrefixFrom(a[0], 24), netip.PrefixFrom(a[1], 64)}
	}
	return out
}

// PodOf returns pod i of a node. tier is the number of the set of peers to which it belongs.
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

// TierName returns the value of the label "tier" for a tier.
func TierName(tier int) string { return fmt.Sprintf("t-%d", tier%Tiers) }

// TierOf returns the initial tier of pod i of a node.
func TierOf(node, i int) int { return node*7 + i }

// KeyOf returns the key of a pod in plans.
func KeyOf(p policy.Pod) policy.Key { return policy.Key{Name: p.Name, UID: p.UID} }

// PolicyOf returns policy j, for ingress. It selects one pod of each node. The rules of all
// policies for one pod differ. seed changes the port of the policy's last rule.
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

// Sink receives objects. Planner and Keeper implement it.
type Sink interface {
	PutNamespace(policy.Namespace)
	PutPod(policy.Pod)
	PutPolicy(policy.Policy)
}

// Put puts the namespaces, all policies, and the pods of the nodes below number nodes into to.
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

// OtherPod returns the node and the number of pod k among the pods of other nodes than Here. k may
// exceed the number of these pods.
func (c Cluster) OtherPod(k int) (node, i int) {
	return 1 + k/c.Pods%(c.Nodes-1), k % c.Pods
}
