package kube

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// PolicySink receives the objects that policies depend on as they change. Its methods are called
// from several goroutines and must not block. The sink must not change what it receives.
//
// A Pod's addresses are those that its status claims. The sink decides whether its node owns them.
type PolicySink interface {
	PutPod(p policy.Pod)
	DeletePod(n policy.Name)
	PutNamespace(n policy.Namespace)
	DeleteNamespace(name string)
	PutPolicy(p policy.Policy)
	DeletePolicy(n policy.Name)
	// Listed is called once, when everything there was has been put.
	Listed()
}

// policyRights is the manifest that lets veild read what policies need.
const policyRights = "manifests/components/policy/rights.yaml"

var networkingVersion = schema.GroupVersion{Group: "networking.k8s.io", Version: "v1"}

var (
	podKind = wiredKind[podWire](kind{
		what: "pods", rule: policyRights, path: []string{"/api/v1/pods"},
		version: schema.GroupVersion{Version: "v1"},
	})
	namespaceKind = wiredKind[namespaceWire](kind{
		what: "namespaces", rule: policyRights, path: []string{"/api/v1/namespaces"},
		version: schema.GroupVersion{Version: "v1"},
	})
	networkPolicyKind = wiredKind[networkPolicyWire](kind{
		what: "networkpolicies.networking.k8s.io", rule: policyRights,
		path:    []string{"/apis/networking.k8s.io/v1/networkpolicies"},
		version: networkingVersion,
	})
)

// RunPolicies watches Pods, Namespaces and NetworkPolicies and passes each change to sink until ctx
// ends; it returns ctx's error. A list that is read again yields only its changes. While the API
// server is away there is a Problem, and what was passed stays valid.
func (c *Client) RunPolicies(ctx context.Context, sink PolicySink) error {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var unlisted sync.WaitGroup
	unlisted.Add(3)

	pods := newFeed(c, "Pod ", func(o *object) parsed[policy.Pod] { return parsePod(o, c.node) },
		func(p policy.Pod) any {
			return p.Name
		}, sink.PutPod, func(p policy.Pod) { sink.DeletePod(p.Name) }, unlisted.Done)
	namespaces := newFeed(c, "Namespace ", parseNamespace,
		func(n policy.Namespace) any { return n.Name }, sink.PutNamespace,
		func(n policy.Namespace) { sink.DeleteNamespace(n.Name) }, unlisted.Done)
	policies := newFeed(c, "NetworkPolicy ", parseNetworkPolicy,
		func(p policy.Policy) any { return p.Name }, sink.PutPolicy,
		func(p policy.Policy) { sink.DeletePolicy(p.Name) }, unlisted.Done)
	wg.Go(func() { c.reflect(ctx, podKind, pods) })
	wg.Go(func() { c.reflect(ctx, namespaceKind, namespaces) })
	wg.Go(func() { c.reflect(ctx, networkPolicyKind, policies) })

	listed := make(chan struct{})
	go func() {
		unlisted.Wait()
		close(listed)
	}()
	select {
	case <-listed:
		sink.Listed()
	case <-ctx.Done():
		pods.giveUp()
		namespaces.giveUp()
		policies.giveUp()
		return ctx.Err()
	}
	<-ctx.Done()
	return ctx.Err()
}

// ListPolicies returns all NetworkPolicies that the API server has now, as RunPolicies passes them
// on.
func (c *Client) ListPolicies(ctx context.Context) ([]policy.Policy, error) {
	ctx, cancel := context.WithTimeout(ctx, c.times.request)
	defer cancel()
	var list wiredList[networkPolicyWire]
	if err := c.get(ctx, networkPolicyKind, metav1.ListOptions{}, &list); err != nil {
		return nil, explain("list", networkPolicyKind, err)
	}
	var out []policy.Policy
	for i := range list.Items {
		if p := parseNetworkPolicy(&list.Items[i].object); p.value != nil {
			out = append(out, *p.value)
		}
	}
	return out, nil
}
