package storage_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// volumeDestroyed: the API server, with our definition and policies, accepts the requests of
// veilctl volume destroy. A volume whose node is Ready does not change.
func volumeDestroyed(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	const provisioner = "external-provisioner.volume.kubernetes.io/finalizer"
	up := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "up"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			Reason: "Lab"}}}}
	if _, err := l.Control.Client.CoreV1().Nodes().Create(ctx, up,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Control.Client.CoreV1().Nodes().UpdateStatus(ctx, up,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pvs := l.Control.Client.CoreV1().PersistentVolumes()
	for name, node := range map[string]string{"pvc-lost": "gone", "pvc-alive": "up"} {
		errtest.Must(t, s.Create(ctx, newState(name, node)))
		_, r, err := s.Get(ctx, name)
		if err == nil {
			_, err = s.Update(ctx, readyState(name, node), r)
		}
		errtest.Must(t, err)
		pv := persistentVolume(name, node)
		pv.Finalizers = append(pv.Finalizers, provisioner)
		if _, err := pvs.Create(ctx, pv, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	destroy := []string{"volume", "destroy", "--kubeconfig", kubeconfig(t, l, "destroy", ""),
		"pvc-lost", "pvc-alive"}
	out, err := l.Control.Host().Command(ctx, l.Program("veilctl"), destroy...).CombinedOutput()
	for _, want := range []string{"pvc-lost   destroyed", "node up is Ready"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, it does not say %q:\n%s", err, want, out)
		}
	}
	withoutOwner(ctx, t, l, s)
	if _, _, err := s.Get(ctx, "pvc-lost"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("its VeilVolume: %v", err)
	}
	if pv, err := pvs.Get(ctx, "pvc-lost", metav1.GetOptions{}); err != nil ||
		pv.DeletionTimestamp == nil || slices.Contains(pv.Finalizers, provisioner) {
		t.Errorf("its PersistentVolume: %+v, %v", pv.ObjectMeta, err)
	}
	if st, _, err := s.Get(ctx, "pvc-alive"); err != nil || st.Phase != volume.Ready ||
		st.Key.IsZero() {
		t.Errorf("the other: %+v, %v", st, err)
	}
	if pv, err := pvs.Get(ctx, "pvc-alive", metav1.GetOptions{}); err != nil ||
		pv.DeletionTimestamp != nil {
		t.Errorf("the other's PersistentVolume: %+v, %v", pv.ObjectMeta, err)
	}
}

// withoutOwner: the node's driver, with its own rights, destroys a volume without an owner on
// request, and does not destroy one with an owner.
func withoutOwner(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	errtest.Must(t, s.Create(ctx, newState("pvc-unowned", "up")))
	out, err := l.Control.Host().Command(ctx, l.Program("veilctl"), "volume", "destroy",
		"--no-owner", "--kubeconfig", kubeconfig(t, l, "unowned", ""), "pvc-unowned",
		"pvc-alive").CombinedOutput()
	if err == nil || strings.Count(string(out), "is younger than 5m") != 2 {
		t.Errorf("volumes that were just made: %v\n%s", err, out)
	}

	node := storeAs(ctx, t, l, "up")
	for _, name := range []string{"pvc-unowned", "pvc-alive"} {
		destroyed := false
		err := errors.Join(s.AskDestroy(ctx, name), node.DestroyUnowned(ctx, name,
			func(ctx context.Context, name string) error {
				destroyed = true
				return node.Destroy(ctx, name, func(kubestore.Object) error { return nil })
			}))
		owned := name == "pvc-alive"
		if owned != errors.As(err, new(*kubestore.OwnedError)) || !owned && err != nil ||
			destroyed == owned {
			t.Errorf("%s: destroyed %v, %v", name, destroyed, err)
		}
		if o, err := s.Object(ctx, name); err != nil || o.Asked.Destroy == owned {
			t.Errorf("%s is still asked to be destroyed: %v, %v", name, o.Asked.Destroy, err)
		}
	}
}
