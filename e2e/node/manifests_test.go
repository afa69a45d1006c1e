package node_test

import (
	"context"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/restmapper"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// manifestsAccepted: every object is one that a real API server takes.
func manifestsAccepted(ctx context.Context, t *testing.T, l *lab.Lab) {
	all := append(manifesttest.Kustomized(t, filepath.Join(root(t), "manifests")),
		manifesttest.Kustomized(t, filepath.Join(root(t), "manifests/uninstall"))...)
	all = append(all, manifesttest.Kustomized(t, filepath.Join(root(t), csiManifests))...)
	// The API server of the lab has no definition of ServiceMonitor.
	all = append(all, manifesttest.Read(t, filepath.Join(root(t),
		"manifests/components/servicemonitor/service.yaml")))
	for _, m := range all {
		t.Run(m.Object.GetKind()+" "+m.Object.GetName(), func(t *testing.T) {
			if err := dryApply(ctx, l, m.Object); err != nil {
				t.Error(err)
			}
		})
	}
}

func dryApply(ctx context.Context, l *lab.Lab, o *unstructured.Unstructured) error {
	groups, err := restmapper.GetAPIGroupResources(l.Control.Client.Discovery())
	if err != nil {
		return err
	}
	gvk := o.GroupVersionKind()
	m, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	opts := metav1.ApplyOptions{FieldManager: "lab", Force: true,
		DryRun: []string{metav1.DryRunAll}}
	c := l.Control.Dynamic.Resource(m.Resource)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		_, err = c.Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, opts)
	} else {
		_, err = c.Apply(ctx, o.GetName(), o, opts)
	}
	return err
}
