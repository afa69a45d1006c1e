package explain_test

import (
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

var web = policy.Name{Namespace: "shop", Name: "web"}

func labelled(key, value string) *policy.Selector {
	return &policy.Selector{{Key: key, Op: policy.In, Values: []string{value}}}
}

// shop returns a planner with the pod web on this node and a client on another node.
func shop() *planner.Planner {
	p := planner.New("here")
	p.PutNamespace(policy.Namespace{Name: "shop"})
	p.PutPod(policy.Pod{Name: web, UID: "1", Node: "here",
		Ports: []policy.NamedPort{{Name: "http", Proto: policy.TCP, Port: 8080}}})
	p.SetAttached(policy.Key{Name: web, UID: "1"}, policytest.PodAddrs(1))
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "client"}, UID: "2",
		Node:   "there",
		Labels: map[string]string{"app": "client"}, Addrs: policytest.PodAddrs(2)})
	return p
}

// from returns a flow from pod i to web.
func from(i int, port uint16) policy.Flow {
	return policy.Flow{Src: policytest.PodAddrs(i)[0], Dst: policytest.PodAddrs(1)[0], ToPod: true,
		Proto: policy.TCP, Port: port}
}

func rule(a policy.Action) policy.ClusterRule {
	return policy.ClusterRule{Action: a, Peers: []policy.Peer{{Namespaces: &policy.Selector{},
		Pods: labelled("app", "client")}}}
}

func clusterPolicy(name string, tier policy.Tier, priority int32,
	ingress ...policy.ClusterRule) policy.ClusterPolicy {
	return policy.ClusterPolicy{Name: name, Tier: tier, Priority: priority,
		Rules: [2][]policy.ClusterRule{ingress}}
}

func isolate(p *planner.Planner) {
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
		Isolates: [2]bool{true}})
}
