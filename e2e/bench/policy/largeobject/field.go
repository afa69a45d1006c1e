package largeobject

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// swollenField is a repeated field that makes an object large.
type swollenField struct {
	name, what string
	// prefix is the prefix of the key in etcd.
	prefix string
	// count is the number of entries that gives the object 1.3 to 1.5 MB in etcd.
	count int
	// make makes an object with count entries in namespace evil.
	make  func(ctx context.Context, c clients, name string, count int) error
	edits objectEdit
}

// clients are the clients of an API server: for built-in kinds, and for kinds with a definition.
type clients struct {
	kubernetes.Interface
	defined dynamic.Interface
}

// objectEdit edits an object in namespace good.
type objectEdit struct {
	// path is the path of the objects of this kind at the API server.
	path string
	// edit changes the object and writes mark into it. It returns a function that reports whether
	// the change is in force.
	edit func(ctx context.Context, n *lab.Node, c kubernetes.Interface, mark string) (
		inForce func() (bool, error), err error)
}

var (
	policyEdit  = objectEdit{"/apis/networking.k8s.io/v1/networkpolicies", editPolicy}
	serviceEdit = objectEdit{"/api/v1/services", editService}
	sliceEdit   = objectEdit{"/apis/discovery.k8s.io/v1/endpointslices", editSlice}
)

// Prefixes of the keys of large objects in etcd: objects in namespace evil, and objects without a
// namespace.
const (
	policyKey  = "/registry/networkpolicies/" + evil + "/"
	podKey     = "/registry/pods/" + evil + "/"
	serviceKey = "/registry/services/specs/" + evil + "/"
	sliceKey   = "/registry/endpointslices/" + evil + "/"

	namespaceKey     = "/registry/namespaces/"
	nodeKey          = "/registry/minions/"
	veilNodeKey      = "/registry/kubeveil.io/veilnodes/"
	clusterPolicyKey = "/registry/policy.networking.k8s.io/clusternetworkpolicies/"
)

// swollenFields lists, for each kind of object, the repeated fields that cost veild the most memory
// if it does not limit their number of entries.
var swollenFields = []swollenField{
	{"rules", "empty rules", policyKey, 700_000, largePolicy(func(s *networkingv1.NetworkPolicySpec, n int) {
		s.Ingress = make([]networkingv1.NetworkPolicyIngressRule, n)
	}), policyEdit},
	{"peers", "peers", policyKey, 300_000, largePolicy(func(s *networkingv1.NetworkPolicySpec, n int) {
		peers := make([]networkingv1.NetworkPolicyPeer, n)
		for i := range peers {
			peers[i].PodSelector = &metav1.LabelSelector{}
		}
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers}}
	}), policyEdit},
	{"values", "label values", policyKey, 140_000, largePolicy(func(s *networkingv1.NetworkPolicySpec, n int) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a",
					Operator: metav1.LabelSelectorOpIn, Values: numberedValues(n)}}}}}}}
	}), policyEdit},
	{"ports", "ports", policyKey, 190_000, largePolicy(func(s *networkingv1.NetworkPolicySpec,
		n int) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{
			Ports: make([]networkingv1.NetworkPolicyPort, n)}}
	}), policyEdit},
	{"pods", "labels of a pod", podKey, 45_000, func(ctx context.Context, c clients, name string,
		n int) error {
		return makePod(ctx, c, evil, name, numberedLabels(n))
	}, policyEdit},
	{"namespaces", "labels of a namespace", namespaceKey, 45_000, makeNamespace, policyEdit},
	{"nodes", "labels of a node", nodeKey, 45_000, func(ctx context.Context, c clients, name string,
		n int) error {
		return makeNode(ctx, c, name, numberedLabels(n), nil)
	}, policyEdit},
	{"nodeaddresses", "addresses of a node", nodeKey, 50_000, func(ctx context.Context, c clients,
		name string, n int) error {
		return makeNode(ctx, c, name, nil, nodeAddresses(n))
	}, policyEdit},
	{"veilnodes", "labels of a VeilNode", veilNodeKey, 45_000, makeVeilNode, policyEdit},
	{"clusterpolicies", "label values of a ClusterNetworkPolicy", clusterPolicyKey, 130_000,
		makeClusterPolicy, policyEdit},
	{"ips", "external IPs of a Service", serviceKey, 110_000, makeService, serviceEdit},
	{"addresses", "addresses of an EndpointSlice", sliceKey, 90, makeSlice, sliceEdit},
}

func largePolicy(fill func(*networkingv1.NetworkPolicySpec, int)) func(context.Context, clients,
	string, int) error {
	return func(ctx context.Context, c clients, name string, n int) error {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		fill(&p.Spec, n)
		_, err := c.NetworkingV1().NetworkPolicies(evil).Create(ctx, p, metav1.CreateOptions{})
		return err
	}
}

// makeLarge makes a large object. It retries after a timeout, because the API server may need
// longer for such an object than its limit for a request.
func makeLarge(ctx context.Context, c clients, f swollenField, name string) error {
	for tries := 5; ; tries-- {
		err := f.make(ctx, c, name, f.count)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if tries == 0 || !apierrors.IsTimeout(err) {
			return err
		}
	}
}

func largeName(i int) string { return fmt.Sprintf("large-%02d", i) }

// makePod makes a Pod object that is bound to a node that does not exist.
func makePod(ctx context.Context, c kubernetes.Interface, namespace, name string,
	labels map[string]string) error {
	no := false
	_, err := c.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: "elsewhere", AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	return err
}
