package nodetest

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// Apply applies an object as kubectl does.
func Apply(ctx context.Context, l *lab.Lab, o *unstructured.Unstructured) error {
	return apply(ctx, l, o, nil)
}

// DryApply applies an object with dry run: the API server checks it and does not store it.
func DryApply(ctx context.Context, l *lab.Lab, o *unstructured.Unstructured) error {
	return apply(ctx, l, o, []string{metav1.DryRunAll})
}

func apply(ctx context.Context, l *lab.Lab, o *unstructured.Unstructured, dry []string) error {
	groups, err := restmapper.GetAPIGroupResources(l.Control.Client.Discovery())
	if err != nil {
		return err
	}
	gvk := o.GroupVersionKind()
	m, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	opts := metav1.ApplyOptions{FieldManager: "lab", Force: true, DryRun: dry}
	c := l.Control.Dynamic.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		_, err = c.Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, opts)
	} else {
		_, err = c.Apply(ctx, o.GetName(), o, opts)
	}
	return err
}

// ClusterPolicies is the resource of ClusterNetworkPolicies, and Definitions of definitions.
var (
	ClusterPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io",
		Version: "v1alpha2", Resource: "clusternetworkpolicies"}
	Definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
)

// ClusterPolicyDefinition returns a definition of the kind without a schema. So the daemon also
// receives objects that the upstream schema would refuse at admission.
func ClusterPolicyDefinition() *unstructured.Unstructured {
	return PolicyDefinition("ClusterNetworkPolicy", "clusternetworkpolicies", "v1alpha2")
}

// PolicyDefinition defines a kind of policies without a schema, in one version.
func PolicyDefinition(kind, plural, version string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + ClusterPolicies.Group,
			// The API server requires this annotation for groups of k8s.io.
			"annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, for a test"}},
		"spec": map[string]any{"group": ClusterPolicies.Group, "scope": "Cluster",
			"names":    map[string]any{"plural": plural, "kind": kind},
			"versions": []any{PolicyVersion(version, true, true)}}}}
}

// PolicyVersion is a version in a definition.
func PolicyVersion(name string, served, storage bool) map[string]any {
	return map[string]any{"name": name, "served": served, "storage": storage,
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
			"x-kubernetes-preserve-unknown-fields": true}}}
}
