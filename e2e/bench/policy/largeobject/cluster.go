package largeobject

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Kinds with a definition, none of which has a namespace.
var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	veilNodes = schema.GroupVersionResource{Group: "kubeveil.io", Version: "v1alpha1",
		Resource: "veilnodes"}
	clusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io",
		Version: "v1alpha2", Resource: "clusternetworkpolicies"}
)

// numberedLabels returns n labels.
func numberedLabels(n int) map[string]string {
	labels := make(map[string]string, n)
	for i := range n {
		labels[fmt.Sprint("k", i)] = "x"
	}
	return labels
}

// numberedValues returns n values of a label.
func numberedValues(n int) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	return values
}

func nodeAddresses(n int) (all []corev1.NodeAddress) {
	for i := range n {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: numberedAddr(i)})
	}
	return all
}

// makeNamespace makes a Namespace with count labels.
func makeNamespace(ctx context.Context, c clients, name string, count int) error {
	_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: numberedLabels(count)},
	}, metav1.CreateOptions{})
	return err
}

// makeNode makes a Node of a machine that does not exist.
func makeNode(ctx context.Context, c clients, name string, labels map[string]string,
	addresses []corev1.NodeAddress) error {
	_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status:     corev1.NodeStatus{Addresses: addresses},
	}, metav1.CreateOptions{})
	return err
}

// makeVeilNode makes a VeilNode with count labels. The schema bounds all its other lists.
func makeVeilNode(ctx context.Context, c clients, name string, count int) error {
	labels := map[string]any{}
	for k, v := range numberedLabels(count) {
		labels[k] = v
	}
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	return makeDefined(ctx, c, veilNodes, "VeilNode",
		map[string]any{"name": name, "labels": labels},
		map[string]any{"keys": []any{map[string]any{"epoch": int64(0), "publicKey": key}}})
}

// makeClusterPolicy makes a ClusterNetworkPolicy whose selector has count values.
func makeClusterPolicy(ctx context.Context, c clients, name string, count int) error {
	var values []any
	for _, v := range numberedValues(count) {
		values = append(values, v)
	}
	return makeDefined(ctx, c, clusterPolicies, "ClusterNetworkPolicy",
		map[string]any{"name": name},
		map[string]any{"tier": "Admin", "priority": int64(10),
			"subject": map[string]any{"namespaces": map[string]any{"matchExpressions": []any{
				map[string]any{"key": "a", "operator": "In", "values": values}}}},
			"ingress": []any{map[string]any{"action": "Deny", "from": []any{map[string]any{
				"namespaces": map[string]any{}}}}}})
}

func makeDefined(ctx context.Context, c clients, kind schema.GroupVersionResource, name string,
	metadata, spec map[string]any) error {
	o := &unstructured.Unstructured{Object: map[string]any{"kind": name,
		"apiVersion": kind.GroupVersion().String(), "metadata": metadata, "spec": spec}}
	_, err := c.defined.Resource(kind).Create(ctx, o, metav1.CreateOptions{})
	return err
}

// defineClusterPolicies defines ClusterNetworkPolicies without a schema, and waits until the API
// server serves them.
func defineClusterPolicies(ctx context.Context, c clients) error {
	name := clusterPolicies.Resource + "." + clusterPolicies.Group
	_, err := c.defined.Resource(definitions).Create(ctx, &unstructured.Unstructured{
		Object: map[string]any{
			"apiVersion": definitions.GroupVersion().String(), "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": name, "annotations": map[string]any{
				// The API server requires this annotation for groups of k8s.io.
				"api-approved.kubernetes.io": "unapproved, for a benchmark"}},
			"spec": map[string]any{"group": clusterPolicies.Group, "scope": "Cluster",
				"names": map[string]any{"plural": clusterPolicies.Resource,
					"kind": "ClusterNetworkPolicy"},
				"versions": []any{map[string]any{"name": clusterPolicies.Version, "served": true,
					"storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{
						"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return lab.Until(ctx, 20*time.Second, func() error {
		_, err := c.defined.Resource(clusterPolicies).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}
