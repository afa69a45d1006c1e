package apiobject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// Client is a client of an API server as a cluster administrator.
type Client struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
}

// applied lists the kinds of manifests that a cluster without kubelets can use, dependencies first.
var applied = []string{
	"Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role",
	"ClusterRoleBinding", "RoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}

// ApplyAll applies objects from ReadManifests, dependencies first. It sorts objects.
func (c Client) ApplyAll(ctx context.Context, objects []*unstructured.Unstructured) (err error) {
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return slices.Index(applied, a.GetKind()) - slices.Index(applied, b.GetKind())
	})

	var kinds meta.RESTMapper
	for _, o := range objects {
		if kinds, err = c.apply(ctx, o, kinds); err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// ReadManifests reads the objects whose kinds are in applied from a folder and its subfolders. It
// returns none if the folder does not exist.
func ReadManifests(dir string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
		for {
			o := &unstructured.Unstructured{}
			if err := dec.Decode(o); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if slices.Contains(applied, o.GetKind()) {
				out = append(out, o)
			}
		}
	})

	return out, err
}

// apply applies one object. kinds caches the kinds that the API server serves; nil means that they
// were not read yet. Reading them takes tens of requests, so apply returns them for the next call.
// It reads them again while a kind that was just defined is not served yet.
func (c Client) apply(ctx context.Context, o *unstructured.Unstructured,
	kinds meta.RESTMapper) (meta.RESTMapper, error) {
	gvk := o.GroupVersionKind()
	err := labhost.Until(ctx, 20*time.Second, func() error {
		if kinds == nil {
			groups, err := restmapper.GetAPIGroupResources(c.Kubernetes.Discovery())
			if err != nil {
				return err
			}
			kinds = restmapper.NewDiscoveryRESTMapper(groups)
		}
		m, err := kinds.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			kinds = nil
			return err
		}
		opts := metav1.ApplyOptions{FieldManager: "lab", Force: true}
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			_, err = c.Dynamic.Resource(m.Resource).Namespace(o.GetNamespace()).Apply(ctx,
				o.GetName(), o, opts)
		} else {
			_, err = c.Dynamic.Resource(m.Resource).Apply(ctx, o.GetName(), o, opts)
		}
		return err
	})
	return kinds, err
}
