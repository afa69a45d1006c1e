package nodetest

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
