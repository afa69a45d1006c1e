package apiobject

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// Inventory lists objects by UID, with the programs that wrote each object.
type Inventory map[types.UID]string

// List returns all objects that can be deleted.
func (c Client) List(ctx context.Context) (Inventory, error) {
	objects := Inventory{}
	err := c.eachObject(ctx, func(_ schema.GroupVersionResource,
		o *unstructured.Unstructured) error {
		objects[o.GetUID()] = writers(o)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list all objects: %w", err)
	}
	return objects, nil
}

// DeleteAdded deletes the objects that are not in had. It returns an error if an object in had was
// changed or deleted, or if an object cannot be deleted.
func (c Client) DeleteAdded(ctx context.Context, had Inventory) error {
	return labhost.Until(ctx, 20*time.Second, func() error {
		there, added := map[types.UID]bool{}, 0
		var namespaces []string
		err := c.eachObject(ctx, func(r schema.GroupVersionResource,
			o *unstructured.Unstructured) error {
			there[o.GetUID()] = true
			was, known := had[o.GetUID()]
			now := writers(o)
			if known && now != was {
				return labhost.Stop(fmt.Errorf("%s %s was written by %q, and before by %q", r.Resource,
					o.GetName(), now, was))
			}
			// Objects that the API server itself adds also exist at a new API server.
			if known || now == "" {
				return nil
			}
			added++
			if r.Resource == "namespaces" {
				namespaces = append(namespaces, o.GetName())
				return nil
			}
			return c.remove(ctx, r, o)
		})
		if err != nil {
			return err
		}
		if added == len(namespaces) { // all namespaces are empty
			err = c.removeNamespaces(ctx, namespaces)
		}
		if err == nil && added > 0 {
			err = fmt.Errorf("%d objects are left", added)
		}
		if err != nil {
			return err
		}
		for uid, by := range had {
			if !there[uid] && by != "" { // the API server creates its own objects again
				return labhost.Stop(fmt.Errorf("an object is gone that was written by %q", by))
			}
		}
		return nil
	})
}

// eachObject calls visit for every object that can be deleted. It visits an object twice if two
// resources serve it.
func (c Client) eachObject(ctx context.Context,
	visit func(schema.GroupVersionResource, *unstructured.Unstructured) error) error {
	lists, err := c.Kubernetes.Discovery().ServerPreferredResources()
	if err != nil {
		return err
	}

	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
				continue
			}
			resource := gv.WithResource(r.Name)
			all, err := c.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // its definition has just been deleted
			}
			if err != nil {
				return fmt.Errorf("list %s: %w", r.Name, err)
			}
			for i := range all.Items {
				if err := visit(resource, &all.Items[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// writers returns the programs that wrote an object, except the API server. It returns "" if only
// the API server wrote it.
func writers(o *unstructured.Unstructured) string {
	fields := o.GetManagedFields()
	if len(fields) == 0 {
		return "a client that set no field"
	}
	var names []string
	for _, f := range fields {
		if f.Manager != "kube-apiserver" {
			names = append(names, f.Manager)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// remove deletes an object. It also removes the finalizers, because the programs that would do so
// do not run. Only the API server removes the finalizers of definitions.
func (c Client) remove(ctx context.Context, r schema.GroupVersionResource,
	o *unstructured.Unstructured) error {
	at := c.Dynamic.Resource(r).Namespace(o.GetNamespace())
	background, atOnce := metav1.DeletePropagationBackground, int64(0)
	err := at.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background,
		GracePeriodSeconds: &atOnce})
	if err == nil && len(o.GetFinalizers()) > 0 && r.Resource != "customresourcedefinitions" {
		_, err = at.Patch(ctx, o.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the object is gone, or the next try finds it again
	}
	if err != nil {
		return labhost.Stop(fmt.Errorf("delete %s %s: %w", r.Resource, o.GetName(), err))
	}
	return nil
}

// removeNamespaces deletes and finalizes empty namespaces, as the namespace controller does.
func (c Client) removeNamespaces(ctx context.Context, names []string) error {
	all := c.Kubernetes.CoreV1().Namespaces()
	for _, name := range names {
		err := all.Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil {
			_, err = all.Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return labhost.Stop(fmt.Errorf("delete namespace %s: %w", name, err))
		}
	}
	return nil
}
