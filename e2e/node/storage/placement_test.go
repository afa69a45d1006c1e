package storage_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/kubestore/placement"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// testPlacement: with its own rights, the placement selects the node of the source for a copy, also
// again after the copy was returned, and changes no other claim.
func testPlacement(ctx context.Context, t *testing.T, l *lab.Lab, own, other string) {
	config := rest.CopyConfig(l.Control.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:kube-system:veil-csi-placement",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system",
			"system:authenticated"},
	}
	client, err := kubernetes.NewForConfig(config)
	errtest.Must(t, err)
	mine, all := client.CoreV1().PersistentVolumeClaims("default"),
		l.Control.Client.CoreV1().PersistentVolumeClaims("default")

	copyOf := func(name, class string) *corev1.PersistentVolumeClaim {
		c := claim(name, "", "")
		c.Spec.StorageClassName = &class
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim",
			Name: "placed-source"}
		return c
	}
	source := claim("placed-source", driver.Name, own)
	source.Spec.VolumeName = "placed-source"
	selected := copyOf("copy-selected", "kubeveil")
	selected.Annotations[selectedNode] = other
	for _, c := range []*corev1.PersistentVolumeClaim{source, copyOf("copy", "kubeveil"),
		copyOf("copy-foreign", "ebs"), claim("no-copy", "", ""), selected} {
		if _, err := all.Create(ctx, c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bound, err := all.Get(ctx, source.Name, metav1.GetOptions{})
	errtest.Must(t, err)
	volume := persistentVolume("placed-source", own)
	volume.Spec.ClaimRef.UID = bound.UID
	if _, err := l.Control.Client.CoreV1().PersistentVolumes().Create(ctx, volume,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	write := func(name, patch string) error {
		_, err := mine.Patch(ctx, name, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{DryRun: dryRun})
		return err
	}
	node := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, selectedNode, own)
	for _, c := range []struct{ what, claim, patch, why string }{
		{"of no copy", "no-copy", node, "for copies only"},
		{"of another class", "copy-foreign", node, "is of class"},
		{"where one is selected", "copy-selected", node, "where none is selected"},
		{"taken away", "copy-selected",
			fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, selectedNode),
			"adds the selected node"},
		{"and another annotation", "copy",
			`{"metadata":{"annotations":{"volume.kubernetes.io/storage-provisioner":"x"}}}`,
			"adds the selected node"},
		{"and the owner", "copy", ownerGone, "adds the selected node"},
		{"and the volume", "copy", `{"spec":{"volumeName":"veil-x"}}`, "adds the selected node"},
	} {
		if err := lab.Until(ctx, waitForPolicy, func() error {
			return wantForbidden(write(c.claim, c.patch), c.why)
		}); err != nil {
			t.Errorf("select a node %s: %v", c.what, err)
		}
	}

	d, err := dynamic.NewForConfig(config)
	errtest.Must(t, err)
	defer place(ctx, t, d)()
	for _, round := range []string{"at first", "after it was given back"} {
		if err := lab.Until(ctx, waitForPolicy, func() error {
			c, err := all.Get(ctx, "copy", metav1.GetOptions{})
			if err == nil && c.Annotations[selectedNode] != own {
				err = fmt.Errorf("it has the node %q", c.Annotations[selectedNode])
			}
			return err
		}); err != nil {
			t.Errorf("%s: %v", round, err)
		}
		_, err := all.Patch(ctx, "copy", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, selectedNode),
			metav1.PatchOptions{})
		errtest.Must(t, err)
	}
	t.Run("two at once", func(t *testing.T) {
		defer place(ctx, t, d)()
		placedOnce(ctx, t, all, copyOf, own)
	})
	for _, name := range []string{"copy-foreign", "no-copy"} {
		if c, err := all.Get(ctx, name, metav1.GetOptions{}); err != nil ||
			c.Annotations[selectedNode] != "" {
			t.Errorf("%s: node %q, %v", name, c.Annotations[selectedNode], err)
		}
	}
}

// place runs the placement until the returned function is called.
func place(ctx context.Context, t *testing.T, d dynamic.Interface) (stop func()) {
	p := placement.NewForClient(d, slog.New(slog.NewTextHandler(t.Output(), nil)))
	running, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); p.Run(running) }()
	return func() { end(); <-done }
}

// placedOnce makes copies, and removes the selected node of each once. Concurrent placements write
// a copy as often as one placement does: each writes only to the revision in which no node was
// selected.
func placedOnce(ctx context.Context, t *testing.T, claims typedcorev1.PersistentVolumeClaimInterface,
	copyOf func(name, class string) *corev1.PersistentVolumeClaim, own string) {
	const copies = 20
	seen := map[string][]string{} // the nodes of each copy, write by write
	list, err := claims.List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	w, err := claims.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	errtest.Must(t, err)
	defer w.Stop()

	for i := range copies {
		_, err := claims.Create(ctx, copyOf(fmt.Sprint("copy-once-", i), "kubeveil"),
			metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, selectedNode)
	for done := 0; done < copies; {
		event, open := <-w.ResultChan()
		c, is := event.Object.(*corev1.PersistentVolumeClaim)
		if !open || !is {
			t.Fatalf("%+v, open %t: %v", event, open, ctx.Err())
		}
		if !strings.HasPrefix(c.Name, "copy-once-") {
			continue
		}
		seen[c.Name] = append(seen[c.Name], c.Annotations[selectedNode])
		switch len(seen[c.Name]) {
		case 2:
			_, err := claims.Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			errtest.Must(t, err)
		case 4:
			done++
		}
	}
	for name, nodes := range seen {
		if want := []string{"", own, "", own}; !slices.Equal(nodes, want) {
			t.Errorf("%s had the nodes %q, want %q", name, nodes, want)
		}
	}
}
