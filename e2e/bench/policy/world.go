package policy

import (
	"fmt"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// scale is the size of what is measured.
type scale struct {
	// nodes and pods, of each node, make up the cluster.
	nodes, pods int
	// policies of so many rules each all select pods of this node.
	policies, rules int
}

// tiers is the number of sets of peers that the rules refer to, namespaces the number of namespaces
// of the pods.
const tiers, namespaces = 200, 10

// here is the node that is measured.
const here = "node-0"

// cluster makes the objects of a cluster. It keeps none of them.
type cluster struct{ scale }

// addrs returns the addresses of pod i of a node.
func addrs(node, i int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{198, 18, byte(node), byte(i + 1)}),
		netip.AddrFrom16([16]byte{0xfd, 0x42, 3: byte(node), 15: byte(i + 1)}),
	}
}

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

func namespaceName(i int) string { return fmt.Sprintf("team-%d", i%namespaces) }

// prefixes are the pod prefixes of each node.
func (c cluster) prefixes() map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for n := range c.nodes {
		a := addrs(n, -1)
		out[nodeName(n)] = []netip.Prefix{netip.PrefixFrom(a[0], 24), netip.PrefixFrom(a[1], 64)}
	}
	return out
}

// podOf returns pod i of a node. Its tier is the number of its set of peers.
func podOf(node, i, tier int) policy.Pod {
	name := fmt.Sprintf("app-%d-%d", i, node)
	return policy.Pod{
		Name: policy.Name{Namespace: namespaceName(i), Name: name},
		UID:  fmt.Sprintf("00000000-0000-4000-8000-%04d%08d", node, i),
		Labels: map[string]string{"app": fmt.Sprintf("app-%d", i), "tier": tierName(tier),
			"pod-template-hash": "5d9c7b8f66"},
		Node: nodeName(node), Addrs: addrs(node, i),
		Ports: []policy.NamedPort{{Name: "http", Proto: policy.TCP, Port: 8080}},
	}
}

func tierName(tier int) string { return fmt.Sprintf("t-%d", tier%tiers) }

// tierOf is the tier of a pod unless it was changed.
func tierOf(node, i int) int { return node*7 + i }

func keyOf(p policy.Pod) policy.Key { return policy.Key{Name: p.Name, UID: p.UID} }

// policyOf is policy j, for ingress. It selects one pod of each node. Rules of the policies of one pod
// differ, and seed moves the port of the last one.
func (c cluster) policyOf(j, seed int) policy.Policy {
	pod := j % c.pods
	p := policy.Policy{
		Name:     policy.Name{Namespace: namespaceName(pod), Name: fmt.Sprintf("policy-%d", j)},
		Subjects: policy.Selector{{Key: "app", Values: []string{fmt.Sprintf("app-%d", pod)}}},
		Isolates: [2]bool{true, false},
	}

	all := make([]policy.Rule, 0, c.rules)
	for r := range c.rules {
		port := uint16(1024 + j/c.pods*c.rules + r)
		if r == c.rules-1 {
			port = uint16(40000 + seed)
		}
		all = append(all, policy.Rule{
			Peers: []policy.Peer{{Namespaces: &policy.Selector{},
				Pods: &policy.Selector{{Key: "tier", Values: []string{tierName(j*7 + r)}}}}},
			Ports: []policy.Port{{Proto: policy.TCP, First: port, Last: port}},
		})
	}
	p.Rules[policy.Ingress] = all
	return p
}

// sink takes objects: a Planner or a Keeper.
type sink interface {
	PutNamespace(policy.Namespace)
	PutPod(policy.Pod)
	PutPolicy(policy.Policy)
}

// put puts the pods of the first nodes, the namespaces, and all policies.
func (c cluster) put(to sink, nodes int) {
	for i := range namespaces {
		to.PutNamespace(policy.Namespace{Name: namespaceName(i)})
	}
	for n := range nodes {
		for i := range c.pods {
			to.PutPod(podOf(n, i, tierOf(n, i)))
		}
	}
	for j := range c.policies {
		to.PutPolicy(c.policyOf(j, j/c.pods))
	}
}

// otherPod returns pod k of the pods of other nodes.
func (c cluster) otherPod(k int) (node, i int) {
	return 1 + k/c.pods%(c.nodes-1), k % c.pods
}
