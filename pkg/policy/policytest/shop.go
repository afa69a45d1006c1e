package policytest

import (
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// Web is the pod of Shop on this node.
var Web = policy.Key{Name: policy.Name{Namespace: "shop", Name: "web"}, UID: "1"}

// Shop returns a planner with the pod web on this node and a client on another node. Their
// addresses are PodAddrs of 1 and 2.
func Shop() *planner.Planner {
	p := planner.New("here")
	p.PutNamespace(policy.Namespace{Name: "shop"})
	p.PutPod(policy.Pod{Name: Web.Name, UID: Web.UID, Node: "here",
		Ports: []policy.NamedPort{{Name: "http", Proto: policy.TCP, Port: 8080}}})
	p.SetAttached(Web, PodAddrs(1))
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "client"}, UID: "2",
		Node:   "there",
		Labels: map[string]string{"app": "client"}, Addrs: PodAddrs(2)})
	return p
}

// From returns a flow from pod i to web.
func From(i int, port uint16) policy.Flow {
	return policy.Flow{Src: PodAddrs(i)[0], Dst: PodAddrs(1)[0], ToPod: true, Proto: policy.TCP,
		Port: port}
}

// Labelled returns a selector of one label.
func Labelled(key, value string) *policy.Selector {
	return &policy.Selector{{Key: key, Op: policy.In, Values: []string{value}}}
}

// ClientRule matches the client of Shop on all ports.
func ClientRule(a policy.Action) policy.ClusterRule {
	return policy.ClusterRule{Action: a, Peers: []policy.Peer{{Namespaces: &policy.Selector{},
		Pods: Labelled("app", "client")}}}
}

// IngressPolicy returns a cluster policy with rules of ingress.
func IngressPolicy(name string, tier policy.Tier, priority int32,
	ingress ...policy.ClusterRule) policy.ClusterPolicy {
	return policy.ClusterPolicy{Name: name, Tier: tier, Priority: priority,
		Rules: [2][]policy.ClusterRule{ingress}}
}

// Isolate puts a policy that denies all ingress to the pods of Shop.
func Isolate(p *planner.Planner) {
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
		Isolates: [2]bool{true}})
}
