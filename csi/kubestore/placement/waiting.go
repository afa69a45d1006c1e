package placement

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// forget removes a claim. The caller holds p.mu.
func (p *Placer) forget(name types.NamespacedName) {
	if _, ok := p.waiting[name]; !ok {
		return
	}
	delete(p.waiting, name)
	if p.count[name.Namespace]--; p.count[name.Namespace] == 0 {
		delete(p.count, name.Namespace)
		p.turns = slices.DeleteFunc(p.turns, func(ns string) bool { return ns == name.Namespace })
	}
}

// placing is the store of the reflector. It writes to the Placer.
type placing struct{ *Placer }

func (p placing) Add(obj any) error    { return p.put(obj) }
func (p placing) Update(obj any) error { return p.put(obj) }
func (p placing) Resync() error        { return nil }

// Transformer returns a function that keeps of a claim what put reads. The reflector collects all
// claims of the cluster before Replace, and a tenant may annotate theirs with 256 KiB each.
func (p placing) Transformer() cache.TransformFunc { return slim }

func slim(obj any) (any, error) {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	kept.SetAPIVersion(o.GetAPIVersion())
	kept.SetKind(o.GetKind())
	kept.SetNamespace(o.GetNamespace())
	kept.SetName(o.GetName())
	kept.SetResourceVersion(o.GetResourceVersion())
	kept.SetDeletionTimestamp(o.GetDeletionTimestamp())
	if node := o.GetAnnotations()[selectedNode]; node != "" {
		kept.SetAnnotations(map[string]string{selectedNode: node})
	}
	for _, field := range []string{"storageClassName", "volumeName", "dataSource",
		"dataSourceRef"} {
		if v, ok, err := unstructured.NestedFieldCopy(o.Object, "spec", field); ok && err == nil {
			if err := unstructured.SetNestedField(kept.Object, v, "spec", field); err != nil {
				return nil, err
			}
		}
	}
	return kept, nil
}

func (p placing) Delete(obj any) error {
	if o, ok := obj.(*unstructured.Unstructured); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.forget(nameOf(o))
	}
	return nil
}

func (p placing) Replace(all []any, _ string) error {
	p.mu.Lock()
	p.dropped = false
	there := map[types.NamespacedName]bool{}
	for _, obj := range all {
		if o, ok := obj.(*unstructured.Unstructured); ok {
			there[nameOf(o)] = true
		}
	}
	for name := range p.waiting {
		if !there[name] {
			p.forget(name)
		}
	}
	p.mu.Unlock()

	var errs []error
	for _, obj := range all {
		errs = append(errs, p.put(obj))
	}
	return errors.Join(errs...)
}

func nameOf(o *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// put stores the needed parts of a claim that waits, and forgets any other claim.
func (p *Placer) put(obj any) error {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("place copies: %T is not a claim", obj)
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	name := nameOf(o)
	had := p.waiting[name]

	if !waits(o) {
		// The selected node returns the claim if it lacks space. Keep the entry, so that the delay
		// keeps growing.
		if had != nil && o.GetDeletionTimestamp() == nil && text(o, "spec", "volumeName") == "" {
			had.selected = true
			return nil
		}
		p.forget(name)
		return nil
	}

	if had == nil {
		if p.count[name.Namespace] >= maxWaiting {
			if !p.dropped {
				p.log.Warn("too many claims for copies wait for a node; other claims of the "+
					"namespace wait for these", "namespace", name.Namespace, "most", maxWaiting)
			}
			p.dropped = true
			return nil
		}
		had = &waitingClaim{delay: placeFirst}
		p.waiting[name] = had
		if p.count[name.Namespace]++; p.count[name.Namespace] == 1 {
			p.turns = append(p.turns, name.Namespace)
		}
	}
	kind, of := source(o)
	had.selected = false
	had.copyOf = copyOf{name, o.GetResourceVersion(), text(o, "spec", "storageClassName"), kind, of}
	return nil
}

// waits reports whether a claim is for a copy and no node is selected for it yet.
func waits(o *unstructured.Unstructured) bool {
	kind, _ := source(o)
	return kind != "" && text(o, "spec", "volumeName") == "" && o.GetDeletionTimestamp() == nil &&
		o.GetAnnotations()[selectedNode] == ""
}

// source returns kind and name of the source of a claim, if the source is a claim or a snapshot in
// the same namespace. For any other source it returns an empty kind.
func source(o *unstructured.Unstructured) (kind, name string) {
	for _, field := range []string{"dataSourceRef", "dataSource"} {
		kind, group := text(o, "spec", field, "kind"), text(o, "spec", field, "apiGroup")
		if in := text(o, "spec", field, "namespace"); in != "" && in != o.GetNamespace() {
			return "", ""
		}
		if kind == "PersistentVolumeClaim" && group == "" ||
			kind == "VolumeSnapshot" && group == snapshotGroup {
			return kind, text(o, "spec", field, "name")
		}
	}
	return "", ""
}

func text(o *unstructured.Unstructured, fields ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, fields...)
	return s
}
