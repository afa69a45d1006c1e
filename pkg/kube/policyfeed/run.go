package policyfeed

import (
	"context"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Run watches Pods, Namespaces, NetworkPolicies and, if the cluster has that kind,
// ClusterNetworkPolicies of s. It passes each change to sink until ctx ends, and returns ctx's
// error. When a list is read again, only the differences are passed on. While the API server is
// unreachable, s has a problem, and the objects that were passed on stay valid. node is the name of
// this node. nodeLabels must pass the labels of Nodes to the sink until its ctx ends, and call
// listed after the first time.
func Run(ctx context.Context, s *api.Server, node string, sink policy.Sink,
	nodeLabels func(ctx context.Context, listed func())) error {
	unlisted := feed.NewLists(5)
	r := &reading{node: node, setFailing: sink.SetFailing, failing: map[string]bool{}}

	pods := &feed.Feed[policy.Pod]{Server: s, What: object.Pods.Kind, Listed: unlisted.Done,
		Parse: func(o *object.Object) feed.Parsed[policy.Pod] { return parsePod(o, node) },
		Owner: func(p policy.Pod) any { return p.Name },
		Put: func(p policy.Pod) {
			r.saw(p)
			sink.PutPod(p)
		}, Drop: func(p policy.Pod) { sink.DeletePod(p.Name) }}
	boundPods(pods)
	namespaces := &feed.Feed[policy.Namespace]{Server: s, What: object.Namespaces.Kind,
		Listed: unlisted.Done, Parse: parseNamespace,
		Owner: func(n policy.Namespace) any { return n.Name }, Put: sink.PutNamespace,
		Drop: func(n policy.Namespace) { sink.DeleteNamespace(n.Name) }}
	policies := &feed.Feed[policy.Policy]{Server: s, What: object.NetworkPolicies.Kind,
		Listed: unlisted.Done, Parse: parseNetworkPolicy,
		Owner: func(p policy.Policy) any { return p.Name }, Put: sink.PutPolicy,
		Drop: func(p policy.Policy) { sink.DeletePolicy(p.Name) }}
	boundPolicies(policies, sink)
	cluster := &feed.Feed[policy.ClusterPolicy]{Server: s, What: object.ClusterPolicies.Kind,
		Listed: unlisted.Done, Parse: parseClusterPolicy,
		Owner: func(p policy.ClusterPolicy) any { return p.Name }, Put: sink.PutClusterPolicy,
		Drop: func(p policy.ClusterPolicy) { sink.DeleteClusterPolicy(p.Name) }}

	return feed.Run(ctx, unlisted, sink.Listed,
		func(ctx context.Context) {
			pods.Reflect(ctx, object.Pods, s.Reflector(object.Pods, pods))
		},
		func(ctx context.Context) {
			r.reflector(s, object.Namespaces, namespaces).Run(ctx, namespaces)
		},
		func(ctx context.Context) {
			k := object.NetworkPolicies
			policies.Reflect(ctx, k, r.reflector(s, k, policies))
		},
		func(ctx context.Context) { reflectInstalled(ctx, s, object.ClusterPolicies, cluster, r) },
		func(ctx context.Context) { noteIgnored(ctx, s, object.IgnoredPolicies[0]) },
		func(ctx context.Context) { noteIgnored(ctx, s, object.IgnoredPolicies[1]) },
		func(ctx context.Context) { nodeLabels(ctx, unlisted.Done) })
}

// List lists all NetworkPolicies and ClusterNetworkPolicies of s, and returns the revisions that
// Run passes on. Other contents of the objects are not kept.
func List(ctx context.Context, s *api.Server) (policy.Revisions, error) {
	ctx, cancel := context.WithTimeout(ctx, 6*s.Times.Request) // it may have thousands of objects
	defer cancel()
	all, counts := policy.Revisions{}, map[string]int{}
	_, err := s.Get(ctx, object.NetworkPolicies, metav1.ListOptions{}, func(o *object.Object) bool {
		if counts[o.Namespace]++; counts[o.Namespace] <= MaxCount {
			all[policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: o.Namespace,
				Name: o.Name}] = idOf(o)
		}
		return false
	})
	if err != nil {
		return nil, api.Explain("list", object.NetworkPolicies, err)
	}
	maps.DeleteFunc(all, func(r policy.Ref, _ policy.Object) bool {
		return counts[r.Namespace] > MaxCount
	})
	for namespace, n := range counts {
		if n > MaxCount {
			all[policy.Ref{Kind: policy.KindNetworkPolicy, Namespace: namespace,
				Name: policy.AllOfNamespace}] = policy.Object{}
		}
	}

	_, err = s.Get(ctx, object.ClusterPolicies, metav1.ListOptions{}, func(o *object.Object) bool {
		all[policy.Ref{Kind: policy.KindClusterNetworkPolicy, Name: o.Name}] = idOf(o)
		return false
	})
	if err != nil && !apierrors.IsNotFound(err) { // not found means that the kind is not installed
		return nil, api.Explain("list", object.ClusterPolicies, err)
	}
	return all, nil
}
