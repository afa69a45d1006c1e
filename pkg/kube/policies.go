package kube

import (
	"context"
	"maps"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

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
	// clusterPolicyKind is optional: see reflectInstalled.
	clusterPolicyKind = kind{
		what: "clusternetworkpolicies.policy.networking.k8s.io", rule: policyRights,
		path:    []string{"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"},
		version: schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha2"},
	}
)

// RunPolicies watches Pods, Namespaces, NetworkPolicies and, where the cluster has that kind,
// ClusterNetworkPolicies, and passes each change to sink until ctx ends; it returns ctx's error. A
// list that is read again yields only its changes. While the API server is away there is a Problem,
// and what was passed stays valid. The labels of Nodes are those that Run reads.
func (c *Client) RunPolicies(ctx context.Context, sink policy.Sink) error {
	var unlisted sync.WaitGroup
	unlisted.Add(5)
	r := &reading{node: c.node, tell: sink.SetFailing, failing: map[string]bool{}}

	pods := newFeed(c, "Pod ", func(o *object) parsed[policy.Pod] { return parsePod(o, c.node) },
		func(p policy.Pod) any {
			return p.Name
		}, func(p policy.Pod) {
			r.saw(p)
			sink.PutPod(p)
		}, func(p policy.Pod) { sink.DeletePod(p.Name) }, unlisted.Done)
	namespaces := newFeed(c, "Namespace ", parseNamespace,
		func(n policy.Namespace) any { return n.Name }, sink.PutNamespace,
		func(n policy.Namespace) { sink.DeleteNamespace(n.Name) }, unlisted.Done)
	policies := newFeed(c, "NetworkPolicy ", parseNetworkPolicy,
		func(p policy.Policy) any { return p.Name }, sink.PutPolicy,
		func(p policy.Policy) { sink.DeletePolicy(p.Name) }, unlisted.Done)
	pods.bound, policies.bound = boundedPods(), boundedPolicies()
	cluster := newFeed(c, "ClusterNetworkPolicy ", parseClusterPolicy,
		func(p policy.ClusterPolicy) any { return p.Name }, sink.PutClusterPolicy,
		func(p policy.ClusterPolicy) { sink.DeleteClusterPolicy(p.Name) }, unlisted.Done)
	return tell(ctx, &unlisted, sink.Listed, func() {
		pods.giveUp()
		namespaces.giveUp()
		policies.giveUp()
		cluster.giveUp()
	}, func(ctx context.Context) { c.reflect(ctx, podKind, pods) },
		func(ctx context.Context) { r.reflector(c, namespaceKind, namespaces).Run(ctx, namespaces) },
		func(ctx context.Context) { r.reflector(c, networkPolicyKind, policies).Run(ctx, policies) },
		func(ctx context.Context) { pods.readAgain(ctx, podKind) },
		func(ctx context.Context) { policies.readAgain(ctx, networkPolicyKind) },
		func(ctx context.Context) { c.reflectInstalled(ctx, clusterPolicyKind, cluster, r) },
		func(ctx context.Context) { c.noteIgnored(ctx, ignoredKinds[0]) },
		func(ctx context.Context) { c.noteIgnored(ctx, ignoredKinds[1]) },
		func(ctx context.Context) { c.tellNodeLabels(ctx, sink, unlisted.Done) })
}

// sameLabels compares labels. Nil means more labels than are kept.
func sameLabels(a, b map[string]string) bool {
	return maps.Equal(a, b) && (a == nil) == (b == nil)
}

// tellNodeLabels passes the labels of Nodes to sink, until ctx ends. It calls once after the first
// time, or when ctx ends before.
func (c *Client) tellNodeLabels(ctx context.Context, sink policy.Sink, once func()) {
	once = sync.OnceFunc(once)
	defer once()
	var told map[string]map[string]string
	for {
		if nodes, synced := c.nodes.all(); synced {
			labels := make(map[string]map[string]string, len(nodes))
			for name, e := range nodes {
				labels[name] = e.labels
			}
			if told == nil || !maps.EqualFunc(told, labels, sameLabels) {
				told = labels
				sink.SetNodeLabels(labels)
			}
			once()
		}
		select {
		case <-ctx.Done():
			return
		case <-c.labelled:
		}
	}
}

// ListPolicies returns all NetworkPolicies and ClusterNetworkPolicies that the API server has now, as
// RunPolicies passes them on.
func (c *Client) ListPolicies(ctx context.Context) (all policy.Policies, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.times.request)
	defer cancel()
	err = c.get(ctx, networkPolicyKind, metav1.ListOptions{}, networkPolicyKind.newList(),
		func(v any) (any, error) {
			o, _ := heldBy(v)
			if p := parseNetworkPolicy(o); p.value != nil {
				all.Namespaced = append(all.Namespaced, *p.value)
			}
			*o = object{}
			return v, nil
		})
	if err != nil {
		return all, explain("list", networkPolicyKind, err)
	}

	err = c.get(ctx, clusterPolicyKind, metav1.ListOptions{}, &objectList{},
		func(v any) (any, error) {
			o, _ := heldBy(v)
			if p := parseClusterPolicy(o); p.value != nil {
				all.Cluster = append(all.Cluster, *p.value)
			}
			*o = object{}
			return v, nil
		})
	if err != nil && !apierrors.IsNotFound(err) { // not found: the kind is not installed
		return all, explain("list", clusterPolicyKind, err)
	}
	return all, nil
}
