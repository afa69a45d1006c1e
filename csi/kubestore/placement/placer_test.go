package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// objectOf returns an object with these fields.
func objectOf(apiVersion, kind, namespace, name string,
	fields map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	o.SetNamespace(namespace)
	o.SetName(name)
	for k, v := range fields {
		o.Object[k] = v
	}
	return o
}

// copyClaim returns a claim of a class that requests a copy.
func copyClaim(name, class, kind, of string) *unstructured.Unstructured {
	ref := map[string]any{"kind": kind, "name": of}
	if kind == "VolumeSnapshot" {
		ref["apiGroup"] = snapshotGroup
	}
	return objectOf("v1", "PersistentVolumeClaim", "a", name, map[string]any{
		"spec": map[string]any{"storageClassName": class, "dataSource": ref}})
}

// A copy is placed on the node of its source. A claim of another driver, or without a source, is
// not changed.
func TestCopiesArePlacedOnTheNodeOfTheirSource(t *testing.T) {
	const group = snapshotGroup + "/v1"
	class := func(name, by string) *unstructured.Unstructured {
		return objectOf("storage.k8s.io/v1", "StorageClass", "", name,
			map[string]any{"provisioner": by})
	}
	affinity := func(values ...any) map[string]any {
		return map[string]any{"required": map[string]any{"nodeSelectorTerms": []any{map[string]any{
			"matchExpressions": []any{map[string]any{"key": topologyKey, "operator": "In",
				"values": values}}}}}}
	}
	uid := func(name string) map[string]any { return map[string]any{"uid": "uid-" + name} }
	pv := func(name, by, claim string, values ...any) *unstructured.Unstructured {
		return objectOf("v1", "PersistentVolume", "", name, map[string]any{"spec": map[string]any{
			"csi": map[string]any{"driver": by}, "claimRef": uid(claim),
			"nodeAffinity": affinity(values...)}})
	}
	bound := func(name, volume string) *unstructured.Unstructured {
		o := objectOf("v1", "PersistentVolumeClaim", "a", name,
			map[string]any{"spec": map[string]any{"volumeName": volume}})
		o.SetUID(types.UID("uid-" + name))
		return o
	}
	snap := func(name string) *unstructured.Unstructured {
		o := objectOf(group, "VolumeSnapshot", "a", name, map[string]any{
			"status": map[string]any{"boundVolumeSnapshotContentName": "content"}})
		o.SetUID(types.UID("uid-" + name))
		return o
	}
	content := objectOf(group, "VolumeSnapshotContent", "", "content", map[string]any{
		"spec": map[string]any{"driver": kubestore.DriverName, "volumeSnapshotRef": uid("snap")}})
	content.SetLabels(map[string]string{managedBy: "node-2"})
	chosen := copyClaim("chosen", "ours", "PersistentVolumeClaim", "source")
	chosen.SetAnnotations(map[string]string{selectedNode: "node-9"})
	elsewhere := copyClaim("other-namespace", "ours", "PersistentVolumeClaim", "source")
	errtest.Must(t, unstructured.SetNestedMap(elsewhere.Object, map[string]any{
		"kind": "PersistentVolumeClaim", "name": "source", "namespace": "b"}, "spec",
		"dataSourceRef"))

	objects := []runtime.Object{class("ours", kubestore.DriverName),
		class("theirs", "csi.example.com"),
		pv("pv", kubestore.DriverName, "source", "node-1"),
		pv("pv-new", kubestore.DriverName, "source-new", "node-1"),
		pv("pv-theirs", "csi.example.com", "source-theirs", "node-1"),
		pv("pv-two", kubestore.DriverName, "source-two", "node-1", "node-2"),
		bound("foreign", "pv"), bound("source", "pv"),
		bound("source-theirs", "pv-theirs"), bound("source-two", "pv-two"),
		bound("source-new", ""), content,
		snap("snap"), snap("snap-foreign"),
		objectOf(group, "VolumeSnapshot", "a", "snap-new", nil),
		chosen, elsewhere}
	want := map[string]string{"chosen": "node-9", "other-namespace": ""}
	for _, c := range []struct{ name, class, kind, of, node string }{
		{"clone", "ours", "PersistentVolumeClaim", "source", "node-1"},
		{"restored", "ours", "VolumeSnapshot", "snap", "node-2"},
		{"other-driver", "theirs", "PersistentVolumeClaim", "source", ""},
		{"no-class", "gone", "PersistentVolumeClaim", "source", ""},
		{"of-other-driver", "ours", "PersistentVolumeClaim", "source-theirs", ""},
		{"of-two-nodes", "ours", "PersistentVolumeClaim", "source-two", ""},
		{"of-volume-of-others", "ours", "PersistentVolumeClaim", "foreign", ""},
		{"of-snapshot-of-others", "ours", "VolumeSnapshot", "snap-foreign", ""},
		{"of-unbound", "ours", "PersistentVolumeClaim", "source-new", ""},
		{"of-new-snapshot", "ours", "VolumeSnapshot", "snap-new", ""},
		{"populated", "ours", "Populator", "source", ""},
	} {
		objects = append(objects, copyClaim(c.name, c.class, c.kind, c.of))
		want[c.name] = c.node
	}

	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{
				claimResource: "PersistentVolumeClaimList", volumeResource: "PersistentVolumeList",
				classResource: "StorageClassList", snapResource: "VolumeSnapshotList",
				contentResource: "VolumeSnapshotContentList"}, objects...)
		claims := client.Resource(claimResource).Namespace("a")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		p := NewForClient(client, slog.New(slog.DiscardHandler))
		go func() { defer close(done); p.Run(ctx) }()
		// The reflector's own goroutine ends with ctx, before the bubble does.
		defer func() { cancel(); <-done; synctest.Wait() }()

		nodes := func(want map[string]string) {
			t.Helper()
			synctest.Wait()
			for name, node := range want {
				o, err := claims.Get(t.Context(), name, metav1.GetOptions{})
				errtest.Must(t, err)
				if got := o.GetAnnotations()[selectedNode]; got != node {
					t.Errorf("%s has the node %q, want %q", name, got, node)
				}
			}
		}
		time.Sleep(3 * placeFirst)
		nodes(want)

		// A node without enough space returns the claim to the scheduler. The claim is placed
		// again, with growing delays.
		clone, err := claims.Get(t.Context(), "clone", metav1.GetOptions{})
		errtest.Must(t, err)
		clone.SetAnnotations(nil)
		_, err = claims.Update(t.Context(), clone, metav1.UpdateOptions{})
		errtest.Must(t, err)
		time.Sleep(2 * placeFirst)
		nodes(map[string]string{"clone": "node-1"})

		// This source is bound later.
		source, err := claims.Get(t.Context(), "source-new", metav1.GetOptions{})
		errtest.Must(t, err, unstructured.SetNestedField(source.Object, "pv-new", "spec", "volumeName"))
		_, err = claims.Update(t.Context(), source, metav1.UpdateOptions{})
		errtest.Must(t, err)
		time.Sleep(time.Minute)
		nodes(map[string]string{"of-unbound": "node-1"})
	})
}

// The claims of one tenant for copies only take that tenant's share of the waiting list.
func TestCopiesOfOneNamespaceDelayNoOther(t *testing.T) {
	p := NewForClient(nil, slog.New(slog.DiscardHandler))
	store := placing{p}
	claim := func(namespace string, i int) *unstructured.Unstructured {
		o := copyClaim(fmt.Sprint("copy-", i), "ours", "PersistentVolumeClaim", "source")
		o.SetNamespace(namespace)
		o.SetResourceVersion("1")
		return o
	}
	for i := range 2 * maxWaiting {
		errtest.Must(t, store.Add(claim("a", i)))
	}
	errtest.Must(t, store.Add(claim("b", 0)))
	if p.count["a"] != maxWaiting || p.count["b"] != 1 || !p.overflowed() {
		t.Errorf("%v wait, dropped %v", p.count, p.dropped)
	}

	errtest.Must(t, store.Delete(claim("a", 0)), store.Delete(claim("a", 0)),
		store.Add(claim("a", 2*maxWaiting)))
	if p.count["a"] != maxWaiting {
		t.Errorf("%v wait after one was deleted and one was added", p.count)
	}
	errtest.Must(t, store.Replace([]any{claim("b", 1)}, ""))
	if len(p.waiting) != 1 || p.count["b"] != 1 || len(p.count) != 1 || p.overflowed() {
		t.Errorf("%v wait after a list, dropped %v", p.count, p.dropped)
	}
}

// Namespaces take turns, so that a claim waits for at most one attempt of each other namespace,
// even if these have many claims that cannot be placed, or make theirs again.
func TestNamespacesTakeTurns(t *testing.T) {
	p := NewForClient(nil, slog.New(slog.DiscardHandler))
	store := placing{p}
	claim := func(namespace string, i int) *unstructured.Unstructured {
		o := copyClaim(fmt.Sprint("copy-", i), "ours", "PersistentVolumeClaim", "source")
		o.SetNamespace(namespace)
		return o
	}
	for i := range maxWaiting {
		errtest.Must(t, store.Add(claim("a", i)), store.Add(claim("b", i)))
	}
	now := time.Now()
	for range 10 {
		if _, ok := p.next(now); !ok {
			t.Fatal("no claim is due")
		}
	}

	errtest.Must(t, store.Add(claim("c", 0)))
	var got []string
	for range 3 {
		c, _ := p.next(now)
		got = append(got, c.Namespace)
		for i := range maxWaiting { // a makes its claims again
			errtest.Must(t, store.Delete(claim("a", i)), store.Add(claim("a", i)))
		}
	}
	if !slices.Contains(got, "c") {
		t.Errorf("placed next are claims of %q, want one of c", got)
	}
	for range 3*maxWaiting + 1 {
		if _, ok := p.next(now); !ok {
			return
		}
	}
	t.Error("claims are due for ever")
}

// A list of claims keeps only what the Placer reads, because a tenant may annotate theirs at will.
func TestListsKeepNoAnnotations(t *testing.T) {
	o := copyClaim("clone", "ours", "VolumeSnapshot", "snap")
	o.SetResourceVersion("7")
	o.SetLabels(map[string]string{"a": "b"})
	o.SetAnnotations(map[string]string{"note": strings.Repeat("x", 1<<18), selectedNode: "node-1"})
	kept, err := placing{}.Transformer()(o)
	errtest.Must(t, err)
	text, err := json.Marshal(kept)
	errtest.Must(t, err)
	if len(text) > 512 {
		t.Errorf("%d bytes are kept", len(text))
	}
	k := kept.(*unstructured.Unstructured)
	kind, of := source(k)
	if kind != "VolumeSnapshot" || of != "snap" || k.GetAnnotations()[selectedNode] != "node-1" ||
		nameOf(k) != nameOf(o) || k.GetResourceVersion() != "7" {
		t.Errorf("kept is %s", text)
	}
}
