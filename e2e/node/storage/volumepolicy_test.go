package storage_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// csiToken is the token of the driver's pod on a node; of none, when node is empty.
func csiToken(ctx context.Context, t *testing.T, l *lab.Lab, node string) *rest.Config {
	t.Helper()
	var bound *authenticationv1.BoundObjectReference
	if node != "" {
		bound = nodetest.DaemonPod(ctx, t, l, csiAccount, node)
	}
	return nodetest.ConfigAs(l, nodetest.NewToken(ctx, t, l, csiAccount, bound))
}

// storeAs is a store with the token of the driver on a node.
func storeAs(ctx context.Context, t *testing.T, l *lab.Lab, node string) *kubestore.Store {
	t.Helper()
	s, err := kubestore.NewForConfig(csiToken(ctx, t, l, node), node)
	errtest.Must(t, err)
	return s
}

// driversToken: a token of a node's driver changes the volumes of that node and no others.
func driversToken(ctx context.Context, t *testing.T, l *lab.Lab) {
	own, other := l.Nodes()[0].Name, l.Nodes()[1].Name
	installCSI(ctx, t, l)
	admin, err := kubestore.NewForConfig(l.Control.Config, other)
	errtest.Must(t, err)

	s := storeAs(ctx, t, l, own)
	csiPolicyInForce(ctx, t, s, other)
	t.Run("its own", func(t *testing.T) { storeLife(ctx, t, s, own) })
	t.Run("another's", func(t *testing.T) { othersVolume(ctx, t, l, s, admin, own, other) })
	t.Run("bound to nothing", func(t *testing.T) {
		forbidden(t, "create", storeAs(ctx, t, l, "").Create(ctx, newState("pvc-x", own)),
			"names no node")
	})
	t.Run("what the driver needs", func(t *testing.T) {
		if _, err := s.Cluster(ctx); err != nil {
			t.Error(err)
		}
	})

	t.Run("persistent volumes", func(t *testing.T) { persistentVolumes(ctx, t, l, own, other) })
	t.Run("claims", func(t *testing.T) { claims(ctx, t, l, own, other) })
	t.Run("placement", func(t *testing.T) { testPlacement(ctx, t, l, own, other) })
	t.Run("binding", func(t *testing.T) { binding(ctx, t, l, own, other) })
	t.Run("snapshots", func(t *testing.T) { snapshots(ctx, t, l, own, other) })
	t.Run("snapshot controller", func(t *testing.T) { snapshotController(ctx, t, l) })
	t.Run("keys are kept", func(t *testing.T) { keysAreKept(ctx, t, l, admin, other) })
	t.Run("without the policy it would be allowed", func(t *testing.T) {
		err := l.Control.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().
			Delete(ctx, "kubeveil-veilvolume-own", metav1.DeleteOptions{})
		errtest.Must(t, err)
		n := 0
		err = lab.Until(ctx, 30*time.Second, func() error {
			n++
			return s.Create(ctx, newState(fmt.Sprintf("pvc-without-%d", n), other))
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func csiPolicyInForce(ctx context.Context, t *testing.T, s *kubestore.Store, other string) {
	t.Helper()
	n := 0
	err := lab.Until(ctx, waitForPolicy, func() error {
		n++
		return wantForbidden(s.Create(ctx, newState(fmt.Sprintf("pvc-probe-%d", n), other)),
			"is of node")
	})
	errtest.Must(t, err)
}

// waitForPolicy is how long it may take until a policy that was made is in force.
const waitForPolicy = 30 * time.Second

// wantForbidden returns an error unless err is a refusal that contains one of because.
func wantForbidden(err error, because ...string) error {
	if err == nil {
		return fmt.Errorf("it was allowed, want a refusal that says one of %q", because)
	}
	if slices.ContainsFunc(because, func(b string) bool {
		return strings.Contains(err.Error(), b)
	}) {
		return nil
	}
	return fmt.Errorf("want a refusal that says one of %q: %w", because, err)
}

func forbidden(t *testing.T, what string, err error, because ...string) {
	t.Helper()
	if err := wantForbidden(err, because...); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// othersVolume tries to create, change, delete and take over a volume of another node, and then
// does what a person allowed.
func othersVolume(ctx context.Context, t *testing.T, l *lab.Lab, s, admin *kubestore.Store,
	own, other string) {
	const because = "is of node"
	errtest.Must(t, admin.Create(ctx, newState("pvc-other", other)))
	st, r, err := s.Get(ctx, "pvc-other")
	errtest.Must(t, err)
	st.Content = volume.Made
	_, err = s.Update(ctx, st, r)
	forbidden(t, "update", err, because)
	forbidden(t, "remove", s.Remove(ctx, "pvc-other", r), because)
	c := dynamicAs(ctx, t, l, own)
	o, err := c.Get(ctx, "pvc-other", metav1.GetOptions{})
	errtest.Must(t, err)
	take := map[string]any{"from": other, "to": own}
	errtest.Must(t, unstructured.SetNestedMap(o.Object, take, "spec", "takeOver"))
	_, err = c.Update(ctx, o, metav1.UpdateOptions{})
	forbidden(t, "takeover by itself", err, because)
	forbidden(t, "delete all", c.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}), "cannot deletecollection")
	_, err = c.Patch(ctx, "pvc-other", types.MergePatchType, []byte(`{"spec":{"rewrap":"x"}}`),
		metav1.PatchOptions{})
	forbidden(t, "patch", err, "cannot patch")

	ask(ctx, t, l, "pvc-other", fmt.Sprintf(`{"spec":{"takeOver":{"from":%q,"to":%q}}}`, other,
		own))
	if st, r, err = s.Get(ctx, "pvc-other"); err != nil {
		t.Fatal(err)
	}
	st.Content = volume.Made
	if r, err = s.Update(ctx, st, r); err != nil {
		t.Errorf("after a person asked for a takeover: %v", err)
	}
	_, err = s.Update(ctx, st.Destroyed(), r)
	forbidden(t, "destroy the key of what was taken over", err, "may not destroy or change its key")
	forbidden(t, "remove what was taken over", s.Remove(ctx, "pvc-other", r), because)
}

// persistentVolumes are made and deleted by the node that has them, and changed by any.
func persistentVolumes(ctx context.Context, t *testing.T, l *lab.Lab, own, other string) {
	client, err := kubernetes.NewForConfig(csiToken(ctx, t, l, own))
	errtest.Must(t, err)

	mine, all := client.CoreV1().PersistentVolumes(), l.Control.Client.CoreV1().PersistentVolumes()
	foreign := persistentVolume("foreign", other)
	foreign.Spec.CSI.Driver = "csi.example.com"
	made := madeFor("uid-mine", own)
	if _, err = mine.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Errorf("its own: %v", err)
	}
	volumesOfOthers(ctx, t, l, mine, own, other)
	for _, pv := range []*corev1.PersistentVolume{foreign, persistentVolume("theirs", other)} {
		if _, err := all.Create(ctx, pv, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	forbidden(t, "delete another's", mine.Delete(ctx, "theirs", metav1.DeleteOptions{}),
		"is not of node "+own)
	forbidden(t, "delete another driver's", mine.Delete(ctx, "foreign", metav1.DeleteOptions{}),
		"not of the driver")
	patch := []byte(`{"spec":{"capacity":{"storage":"2Gi"}}}`)
	if _, err := mine.Patch(ctx, "theirs", types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Errorf("resize another's: %v", err)
	}

	_, err = mine.Patch(ctx, "foreign", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	forbidden(t, "resize another driver's", err, "not of the driver")
	const gone = `[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"00000000-0000-4000-8000-000000000000"}]`

	for what, text := range map[string]string{
		"the provisioner's finalizer": `{"metadata":{"finalizers":["external-provisioner.volume.kubernetes.io/finalizer","kubernetes.io/pv-protection"]}}`,
		"the resizer's annotation":    `{"metadata":{"annotations":{"volume.alpha.kubernetes.io/pre-resize-capacity":"1Gi"}}}`,
	} {
		if _, err := mine.Patch(ctx, "theirs", types.MergePatchType, []byte(text),
			metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	// Each of these would have another node delete its volume, or end its pods.
	for what, text := range map[string]string{
		"another claim":          `{"spec":{"claimRef":{"uid":"00000000-0000-4000-8000-000000000000"}}}`,
		"no claim":               `{"spec":{"claimRef":null}}`,
		"reclaim policy":         `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`,
		"mount options":          `{"spec":{"mountOptions":["errors=panic"]}}`,
		"class":                  `{"spec":{"storageClassName":"other"}}`,
		"access modes":           `{"spec":{"accessModes":["ReadWriteOncePod"]}}`,
		"secret of an expansion": `{"spec":{"csi":{"controllerExpandSecretRef":{"name":"a","namespace":"b"}}}}`,
		"an owner that is gone":  `{"metadata":{"ownerReferences":` + gone + `}}`,
		"protection":             `{"metadata":{"finalizers":null}}`,
		"whose it is":            `{"metadata":{"annotations":{"pv.kubernetes.io/provisioned-by":"csi.example.com"}}}`,
		"whose it was":           `{"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":null}}}`,
	} {
		for _, name := range []string{"theirs", made.Name} {
			_, err := mine.Patch(ctx, name, types.MergePatchType, []byte(text),
				metav1.PatchOptions{})
			forbidden(t, what+" of "+name, err, "a side-car of csi.kubeveil.io changes")
		}
	}

	if err := mine.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete its own: %v", err)
	}
}

// keysAreKept tries to delete a wrapped key by accident, and then on purpose.
func keysAreKept(ctx context.Context, t *testing.T, l *lab.Lab, admin *kubestore.Store,
	node string) {
	errtest.Must(t, admin.Create(ctx, newState("pvc-kept", node)))
	_, r, err := admin.Get(ctx, "pvc-kept")
	errtest.Must(t, err)
	if r, err = admin.Update(ctx, readyState("pvc-kept", node), r); err != nil {
		t.Fatal(err)
	}

	forbidden(t, "delete with the key", admin.Remove(ctx, "pvc-kept", r),
		"csi.kubeveil.io/destroy=pvc-kept")
	crds := l.Control.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io",
		Version: "v1", Resource: "customresourcedefinitions"})
	forbidden(t, "delete the definition", crds.Delete(ctx, "veilvolumes.csi.kubeveil.io",
		metav1.DeleteOptions{}), "holds the wrapped key")
	dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	if err := crds.Delete(ctx, "veilnodes.kubeveil.io", dry); err != nil {
		t.Errorf("delete another definition: %v", err)
	}

	ask(ctx, t, l, "pvc-kept",
		`{"metadata":{"annotations":{"csi.kubeveil.io/destroy":"pvc-kept"}}}`)
	if _, r, err = admin.Get(ctx, "pvc-kept"); err != nil {
		t.Fatal(err)
	}
	if err := admin.Remove(ctx, "pvc-kept", r); err != nil {
		t.Errorf("delete on purpose: %v", err)
	}

	// One whose creation was cut short has no status, and no key.
	half := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "csi.kubeveil.io/v1alpha1", "kind": "VeilVolume",
			"metadata": map[string]any{"name": "pvc-half"}, "spec": map[string]any{"cluster": "c"}}}
	volumes := l.Control.Dynamic.Resource(kubestore.VeilVolumes)
	if _, err := volumes.Create(ctx, half, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := volumes.Delete(ctx, "pvc-half", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete without status: %v", err)
	}
}

func dynamicAs(ctx context.Context, t *testing.T, l *lab.Lab,
	node string) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(csiToken(ctx, t, l, node))
	errtest.Must(t, err)
	return c.Resource(kubestore.VeilVolumes)
}

// persistentVolume is one as the provisioner of a node makes it.
func persistentVolume(name, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Finalizers: []string{"kubernetes.io/pv-protection"}, Annotations: map[string]string{
				"pv.kubernetes.io/provisioned-by":      "csi.kubeveil.io",
				"pv.kubernetes.io/bound-by-controller": "yes"}},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim",
				APIVersion: "v1", Namespace: "default", Name: name, UID: types.UID(name)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{
				corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.kubeveil.io",
					VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "topology.csi.kubeveil.io/node", Operator: corev1.NodeSelectorOpIn,
							Values: []string{node}}},
				}}}},
		},
	}
}
