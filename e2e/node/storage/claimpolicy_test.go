package storage_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

// selectedNode is the annotation of the node on which a claim's volume is to be made.
const selectedNode = "volume.kubernetes.io/selected-node"

// claim returns a claim whose volume the driver by makes on node. If by is empty, no driver does
// yet; if node is empty, no node is selected.
func claim(name, by, node string) *corev1.PersistentVolumeClaim {
	class := "kubeveil"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
	}
	if node != "" {
		c.Annotations[selectedNode] = node
	}
	if by != "" {
		c.Annotations["volume.kubernetes.io/storage-provisioner"] = by
	}
	return c
}

// change is a patch of an object, of its status when that is so, and what it would do.
type change struct {
	what, name string
	status     bool
	text       string
}

func (p change) subresources() []string {
	if p.status {
		return []string{"status"}
	}
	return nil
}

// ownerGone is the metadata with which the garbage collector deletes an object.
const ownerGone = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"00000000-0000-4000-8000-000000000000"}]}}`

// claims are written by the side-cars as far as these need it. Fields that they may not patch they
// may update, so the update is tried.
func claims(ctx context.Context, t *testing.T, l *lab.Lab, own, other string) {
	client, err := kubernetes.NewForConfig(csiToken(ctx, t, l, own))
	errtest.Must(t, err)

	mine, all := client.CoreV1().PersistentVolumeClaims("default"),
		l.Control.Client.CoreV1().PersistentVolumeClaims("default")
	for _, c := range []*corev1.PersistentVolumeClaim{claim("ours", driver.Name, own),
		claim("by-hand", "", own), claim("foreign", "csi.example.com", other),
		claim("waiting", "", ""), claim("elsewhere", driver.Name, other)} {
		if _, err := all.Create(ctx, c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	edit := func(name string, edit func(*corev1.PersistentVolumeClaim)) error {
		c, err := mine.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		edit(c)
		_, err = mine.Update(ctx, c, metav1.UpdateOptions{})
		return err
	}

	cloned := func(c *corev1.PersistentVolumeClaim) {
		c.Finalizers = append(c.Finalizers, "provisioner.storage.kubernetes.io/cloning-protection")
	}
	if err := edit("ours", cloned); err != nil {
		t.Errorf("keep the source of a copy: %v", err)
	}

	// A claim that names a node draws its pods to that node.
	choose := func(node string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			if c.Annotations == nil {
				c.Annotations = map[string]string{}
			}
			if delete(c.Annotations, selectedNode); node != "" {
				c.Annotations[selectedNode] = node
			}
		}
	}
	for what, e := range map[string]struct{ claim, node string }{
		"one that waits to this node": {"waiting", own},
		"one that waits to another":   {"waiting", other},
		"another node's to this one":  {"elsewhere", own},
		"its own to another":          {"ours", other},
		"another node's to none":      {"elsewhere", ""},
	} {
		forbidden(t, "select a node: "+what, edit(e.claim, choose(e.node)), "selects no node")
		text := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, selectedNode, e.node)
		if e.node == "" {
			text = fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, selectedNode)
		}
		_, err := mine.Patch(ctx, e.claim, types.MergePatchType, text, metav1.PatchOptions{},
			"status")
		forbidden(t, "select a node beside the status: "+what, err, "selects no node")
	}
	forbidden(t, "select a node: another driver's", edit("foreign", choose(own)),
		"not of the driver")
	if err := edit("ours", choose("")); err != nil {
		t.Errorf("give a node back: %v", err)
	}
	forbidden(t, "select a node: what it gave back", edit("ours", choose(own)), "selects no node")

	forbidden(t, "another driver's", edit("foreign", cloned), "not of the driver")
	for what, c := range map[string]func(*corev1.PersistentVolumeClaim){
		"volume": func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "theirs" },
		"owner": func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap",
				Name: "gone", UID: "00000000-0000-4000-8000-000000000000"}}
		},
		"protection": func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil },
		"label": func(c *corev1.PersistentVolumeClaim) {
			c.Labels = map[string]string{"a": "b"}
		},
		"driver": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations["volume.kubernetes.io/storage-provisioner"] = "csi.example.com"
		},
	} {
		forbidden(t, what, edit("ours", c), "a side-car of csi.kubeveil.io")
	}

	for _, name := range []string{"ours", "by-hand"} {
		progress :=
			`{"metadata":{"annotations":{"volume.kubernetes.io/node-expansion-not-required":"true"}},
			"status":{"capacity":{"storage":"2Gi"},"allocatedResources":{"storage":"2Gi"},"conditions":[{"type":"Resizing","status":"True"}]}}`
		if _, err := mine.Patch(ctx, name, types.StrategicMergePatchType, []byte(progress),
			metav1.PatchOptions{}, "status"); err != nil {
			t.Errorf("expansion of %s: %v", name, err)
		}
	}

	for _, p := range []change{
		{"another driver's size", "foreign", true, `{"status":{"capacity":{"storage":"2Gi"}}}`},
		{"phase", "ours", true, `{"status":{"phase":"Lost"}}`},
		{"owner beside the status", "ours", true, ownerGone},
		{"driver beside the status", "ours", true,
			`{"metadata":{"annotations":{"volume.kubernetes.io/storage-provisioner":null}}}`},
	} {
		_, err := mine.Patch(ctx, p.name, types.MergePatchType, []byte(p.text),
			metav1.PatchOptions{}, p.subresources()...)
		forbidden(t, p.what, err, "csi.kubeveil.io")
	}
}

// snapshots: a node's snapshots have the names that its snapshotter assigns, and no others.
func snapshots(ctx context.Context, t *testing.T, l *lab.Lab, own, other string) {
	dir := filepath.Join(nodetest.Root(t), "manifests/components/snapshots")
	for _, m := range append(manifesttest.Kustomized(t, filepath.Join(dir, "crd")),
		manifesttest.Kustomized(t, dir)...) {
		if err := apply(ctx, l, m.Object); err != nil {
			t.Fatalf("%s: %v", m.Path, err)
		}
	}

	client, err := dynamic.NewForConfig(csiToken(ctx, t, l, own))
	errtest.Must(t, err)

	group := schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	contents, named := group.WithResource("volumesnapshotcontents"),
		group.WithResource("volumesnapshots")
	for _, c := range []*unstructured.Unstructured{content("mine", own, driver.Name),
		content("theirs", other, driver.Name), content("foreign", own, "csi.example.com")} {
		if _, err := l.Control.Dynamic.Resource(contents).Create(ctx, c,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	_, err = l.Control.Dynamic.Resource(named).Namespace("default").Create(ctx,
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group.String(), "kind": "VolumeSnapshot",
			"metadata": map[string]any{"name": "s"},
			"spec":     map[string]any{"source": map[string]any{"persistentVolumeClaimName": "a"}},
		}}, metav1.CreateOptions{})
	errtest.Must(t, err)

	patch := func(p change) error {
		_, err := client.Resource(contents).Patch(ctx, p.name, types.MergePatchType, []byte(p.text),
			metav1.PatchOptions{}, p.subresources()...)
		return err
	}
	const being = `{"metadata":{"annotations":{"snapshot.storage.kubernetes.io/volumesnapshot-being-created":"yes"}}}`

	// The policy is in force a moment after it was made.
	if err := lab.Until(ctx, waitForPolicy, func() error {
		return wantForbidden(patch(change{"", "theirs", false, being}), "is not of the driver")
	}); err != nil {
		t.Error(err)
	}

	for _, p := range []change{
		{"another node's", "theirs", true,
			`{"status":{"snapshotHandle":"snap-theirs","readyToUse":true}}`},
		{"another driver's", "foreign", true, `{"status":{"snapshotHandle":"snap-foreign"}}`},
		{"another's snapshot", "mine", true,
			`{"status":{"snapshotHandle":"snap-theirs","readyToUse":true}}`},
		{"what it is of", "mine", false, `{"spec":{"deletionPolicy":"Delete"}}`},
		{"owner", "mine", false, ownerGone},
		{"node", "theirs", false,
			`{"metadata":{"labels":{"snapshot.storage.kubernetes.io/managed-by":"` + own + `"}}}`},
		{"secret", "mine", false,
			`{"metadata":{"annotations":{"snapshot.storage.kubernetes.io/deletion-secret-name":"a"}}}`},
	} {
		forbidden(t, p.what, patch(p), "csi.kubeveil.io", "is not of snapshot")
	}

	for _, p := range []change{
		{"work begins", "mine", false, being},
		{"an error", "mine", true, `{"status":{"readyToUse":false,"error":{"message":"no room"}}}`},
		{"taken", "mine", true, `{"status":{"snapshotHandle":"snap-mine","readyToUse":true}}`},
		{"work ends", "mine", false, `{"metadata":{"annotations":null}}`},
		{"it may go", "mine", false, `{"metadata":{"finalizers":null}}`},
		{"deleted", "mine", true, `{"status":{"snapshotHandle":null,"readyToUse":null}}`},
	} {
		if err := patch(p); err != nil {
			t.Errorf("%s: %v", p.what, err)
		}
	}

	provisioner(ctx, t, client.Resource(named).Namespace("default"))
}

// provisioner protects a snapshot and changes nothing else of it.
func provisioner(ctx context.Context, t *testing.T, c dynamic.ResourceInterface) {
	for what, e := range map[string]struct {
		edit func(o *unstructured.Unstructured) error
		ok   bool
	}{
		"keep it": {func(o *unstructured.Unstructured) error {
			o.SetFinalizers(
				[]string{"provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"})
			return nil
		}, true},
		"another finalizer": {func(o *unstructured.Unstructured) error {
			o.SetFinalizers([]string{"a.example/b"})
			return nil
		}, false},
		"what it is of": {func(o *unstructured.Unstructured) error {
			return unstructured.SetNestedField(o.Object, "other", "spec", "volumeSnapshotClassName")
		}, false},
		"annotation": {func(o *unstructured.Unstructured) error {
			o.SetAnnotations(map[string]string{"a": "b"})
			return nil
		}, false},
	} {
		o, err := c.Get(ctx, "s", metav1.GetOptions{})
		errtest.Must(t, err)
		errtest.Must(t, e.edit(o))

		_, err = c.Update(ctx, o, metav1.UpdateOptions{})
		if e.ok && err != nil {
			t.Errorf("%s: %v", what, err)
		} else if !e.ok {
			forbidden(t, what, err, "a side-car of csi.kubeveil.io")
		}
	}
}

// content returns a VolumeSnapshotContent of a node and driver, in the form of the snapshot
// controller.
func content(name, node, by string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
		"metadata": map[string]any{"name": name,
			"labels": map[string]any{"snapshot.storage.kubernetes.io/managed-by": node},
			"finalizers": []any{
				"snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"}},
		"spec": map[string]any{"driver": by, "deletionPolicy": "Retain",
			"source":            map[string]any{"volumeHandle": "pvc-1"},
			"volumeSnapshotRef": map[string]any{"namespace": "default", "name": name, "uid": name}},
	}}
}
