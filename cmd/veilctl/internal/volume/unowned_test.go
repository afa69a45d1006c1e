package volume

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// newUnowned returns the cluster of newLost without the PersistentVolume, as after a user deleted a
// PersistentVolume with the reclaim policy Retain.
func newUnowned(t *testing.T, nodes ...runtime.Object) *lost {
	t.Helper()
	l := newLost(t, func(*volume.State) {}, nodes...)
	errtest.Must(t, l.client.Tracker().Delete(belongings[0].resource, "", "pvc-1"))
	return l
}

func TestVolumeWithoutAnOwnerIsDestroyedByItsNode(t *testing.T) {
	up := aNode("node-1", corev1.ConditionTrue)
	for situation, c := range map[string]struct {
		nodes []runtime.Object
		name  string
		edit  func(o *unstructured.Unstructured)
		// node does the work of the node's driver when the driver sees the request.
		node func(l *lost) error
		// asked and destroyed are the result, want is part of its error.
		asked, destroyed bool
		want             string
	}{
		"its node is there": {nodes: []runtime.Object{up}, name: "pvc-1",
			node: func(l *lost) error {
				return l.client.Resource(kubestore.VeilVolumes).Delete(t.Context(), "pvc-1",
					metav1.DeleteOptions{})
			}, asked: true, destroyed: true},
		"its node does not answer": {
			nodes: []runtime.Object{aNode("node-1", corev1.ConditionUnknown)}, name: "pvc-1",
			asked: true},
		"its node is gone": {name: "pvc-1", want: "node node-1 is gone: leave --no-owner out"},
		"it has a snapshot's content": {nodes: []runtime.Object{up}, name: "snap-1",
			want: "it belongs to VolumeSnapshotContent/content-1"},
		"it is new": {nodes: []runtime.Object{up}, name: "pvc-1",
			edit: func(o *unstructured.Unstructured) {
				o.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-orphanAge + time.Minute)))
			}, want: "is younger than 5m"},
		"there is none": {nodes: []runtime.Object{up}, name: "pvc-0", want: "no such volume"},
		"it has an owner when the node looks": {nodes: []runtime.Object{up}, name: "pvc-1",
			node: func(l *lost) error {
				pv := lostObject("v1", "PersistentVolume", "", "back", belongings[0],
					map[string]any{"spec": map[string]any{"csi": map[string]any{
						"driver": Driver, "volumeHandle": "pvc-1"}}})
				if err := l.client.Tracker().Add(pv); err != nil {
					return err
				}
				err := l.store.DestroyUnowned(t.Context(), "pvc-1", nil)
				if !errors.As(err, new(*kubestore.OwnedError)) {
					t.Errorf("the node destroys what has an owner: %v", err)
				}
				return nil
			}, asked: true, want: "it belongs to PersistentVolume/back"},
	} {
		t.Run(situation, func(t *testing.T) {
			l := newUnowned(t, c.nodes...)
			if c.edit != nil {
				o, err := l.client.Resource(kubestore.VeilVolumes).Get(t.Context(), c.name,
					metav1.GetOptions{})
				errtest.Must(t, err)
				c.edit(o)
				errtest.Must(t, l.client.Tracker().Update(kubestore.VeilVolumes, o, ""))
			}

			node, err := l.askDestroy(t.Context(), c.name)
			r := destroyReport{Volume: c.name, Asked: node}
			if (err == nil) != c.asked {
				t.Fatalf("asked %q: %v", node, err)
			}
			if err == nil {
				if o, err := l.store.Object(t.Context(), c.name); err != nil || !o.Asked.Destroy {
					t.Errorf("the request is not there: %+v, %v", o.Asked, err)
				}
				if c.node != nil {
					errtest.Must(t, c.node(l))
				}
				r = l.waited(t, r)
			} else {
				r.Error = err.Error()
			}
			if r.KeyDestroyed != c.destroyed || (r.Error == "") != (c.want == "") ||
				!strings.Contains(r.Error, c.want) {
				t.Errorf("%+v; want destroyed %v, %q", r, c.destroyed, c.want)
			}
		})
	}
}

// waited calls waitDestroyed with a context that has ended.
func (l *lost) waited(t *testing.T, r destroyReport) destroyReport {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.waitDestroyed(ctx, &r)
	return r
}
