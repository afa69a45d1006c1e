package storage_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// edit is a change that a client attempts.
type edit struct {
	what   string
	status bool
	change func(o map[string]any)
	ok     bool
}

// set returns the change that puts a value at a path.
func set(value any, path ...string) func(map[string]any) {
	return func(o map[string]any) {
		if err := unstructured.SetNestedField(o, value, path...); err != nil {
			panic(err)
		}
	}
}

// finalizers returns the change that adds a finalizer, or takes it away.
func finalizers(name string, there bool) func(map[string]any) {
	return func(o map[string]any) {
		had, _, err := unstructured.NestedStringSlice(o, "metadata", "finalizers")
		had = slices.DeleteFunc(had, func(f string) bool { return f == name })
		if there {
			had = append(had, name)
		}
		if err = errors.Join(err, unstructured.SetNestedStringSlice(o, had, "metadata",
			"finalizers")); err != nil {
			panic(err)
		}
	}
}

// snapshotController does what the controller does. The API server refuses what its role would
// allow beyond that: the owner of its pod's token cannot hand a snapshot to another namespace.
func snapshotController(ctx context.Context, t *testing.T, l *lab.Lab) {
	config := rest.CopyConfig(l.Control.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:snapshot-controller",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system",
			"system:authenticated"},
	}
	client, err := dynamic.NewForConfig(config)
	errtest.Must(t, err)
	group := schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	contents, named := group.WithResource("volumesnapshotcontents"),
		group.WithResource("volumesnapshots")
	claims := schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	const protection = "snapshot.storage.kubernetes.io/"

	made := content("snapcontent-u1", "n", driver.Name)
	set("u1", "spec", "volumeSnapshotRef", "uid")(made.Object)
	brought := content("snapcontent-u2", "n", driver.Name)
	set(map[string]any{"snapshotHandle": "snap-theirs"}, "spec", "source")(brought.Object)
	set("u2", "spec", "volumeSnapshotRef", "uid")(brought.Object)
	// The policy is in force a moment after it was made.
	if err := lab.Until(ctx, waitForPolicy, func() error {
		_, err := client.Resource(contents).Create(ctx, brought, metav1.CreateOptions{})
		return wantForbidden(err, "makes the VolumeSnapshotContent of a volume")
	}); err != nil {
		t.Error(err)
	}
	set("snapcontent-of-another", "metadata", "name")(brought.Object)
	set(map[string]any{"volumeHandle": "pvc-1"}, "spec", "source")(brought.Object)
	_, err = client.Resource(contents).Create(ctx, brought, metav1.CreateOptions{})
	forbidden(t, "another name", err, "named by its VolumeSnapshot")
	if _, err := client.Resource(contents).Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatalf("ask for a snapshot: %v", err)
	}
	owners := []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone",
		"uid": "00000000-0000-4000-8000-000000000000"}}
	try(ctx, t, client.Resource(contents), "snapcontent-u1", []edit{
		{"a handle", true, set("snap-theirs", "status", "snapshotHandle"), false},
		{"an error", true, set(map[string]any{"message": "no"}, "status", "error"), true},
		{"whose it is", false, set("another", "spec", "volumeSnapshotRef", "namespace"), false},
		{"which snapshot's", false, set("u3", "spec", "volumeSnapshotRef", "uid"), false},
		{"deletion", false, set("Delete", "spec", "deletionPolicy"), false},
		{"node", false, set(map[string]any{protection + "managed-by": "m"}, "metadata", "labels"),
			false},
		{"owner", false, set(owners, "metadata", "ownerReferences"), false},
		{"secret", false, set(map[string]any{protection + "deletion-secret-name": "a"}, "metadata",
			"annotations"), false},
		{"it is to go", false,
			set(map[string]any{protection + "volumesnapshot-being-deleted": "yes"}, "metadata",
				"annotations"), true},
		{"it may go", false, finalizers(protection+"volumesnapshotcontent-bound-protection", false),
			true},
	})
	if err := client.Resource(contents).Delete(ctx, "snapcontent-u1",
		metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	try(ctx, t, client.Resource(named).Namespace("default"), "s", []edit{
		{"its class", false, set("kubeveil", "spec", "volumeSnapshotClassName"), true},
		{"another class", false, set("other", "spec", "volumeSnapshotClassName"), false},
		{"keep it", false, finalizers(protection+"volumesnapshot-bound-protection", true), true},
		{"another's finalizer", false, finalizers("a.example/b", true), false},
		{"label", false, set(map[string]any{"a": "b"}, "metadata", "labels"), false},
		{"bind it", true, set("snapcontent-s", "status", "boundVolumeSnapshotContentName"), true},
		{"bind it again", true, set("mine", "status", "boundVolumeSnapshotContentName"), false},
		{"ready", true, set(true, "status", "readyToUse"), true},
		{"let it go", false, finalizers(protection+"volumesnapshot-bound-protection", false), true},
	})
	if _, err := l.Control.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx,
		claim("source", driver.Name, "n"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	try(ctx, t, client.Resource(claims).Namespace("default"), "source", []edit{
		{"keep it", false, finalizers(protection+"pvc-as-source-protection", true), true},
		{"its protection", false, set([]any{}, "metadata", "finalizers"), false},
		{"its volume", false, set("theirs", "spec", "volumeName"), false},
		{"owner", false, set(owners, "metadata", "ownerReferences"), false},
		{"label", false, set(map[string]any{"a": "b"}, "metadata", "labels"), false},
		{"annotation", false, set("b", "metadata", "annotations", "a"), false},
		{"let it go", false, finalizers(protection+"pvc-as-source-protection", false), true},
	})
}

// try makes each edit of an object, as it is then.
func try(ctx context.Context, t *testing.T, c dynamic.ResourceInterface, name string,
	edits []edit) {
	t.Helper()
	for _, e := range edits {
		o, err := c.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		e.change(o.Object)
		if e.status {
			// All that the controller may do to the status of a content.
			text, encoded := o.MarshalJSON()
			if encoded != nil {
				t.Fatal(encoded)
			}
			_, err = c.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{}, "status")
		} else {
			_, err = c.Update(ctx, o, metav1.UpdateOptions{})
		}
		switch {
		case e.ok && err != nil:
			t.Errorf("%s, %s: %v", name, e.what, err)
		case !e.ok:
			forbidden(t, name+", "+e.what, err, "snapshot controller")
		}
	}
}
