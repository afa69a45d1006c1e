package storage_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/manifesttest"
)

const (
	csiManifests = "manifests/csi"
	csiAccount   = "veil-csi"
)

// apply applies an object as kubectl does, trying again while its kind is not served yet.
func apply(ctx context.Context, l *lab.Lab, o *unstructured.Unstructured) error {
	return lab.Until(ctx, 20*time.Second, func() error { return nodetest.Apply(ctx, l, o) })
}

// installCSI applies the driver's manifests in their order.
func installCSI(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, m := range manifesttest.Kustomized(t, filepath.Join(nodetest.Root(t), csiManifests)) {
		if err := apply(ctx, l, m.Object); err != nil {
			t.Fatalf("%s: %v", m.Path, err)
		}
	}
}

// newState is the state of a new volume on a node.
func newState(name, node string) volume.State {
	return volume.State{
		Volume: name, Cluster: "c", Request: volume.Request{Node: node, Backend: "file",
			Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		Phase: volume.New, Payload: 8192, Content: volume.Unmade,
	}
}

// readyState is one that was formatted.
func readyState(name, node string) volume.State {
	s := newState(name, node)
	s.Phase, s.Epoch, s.Device, s.UUID, s.Writer, s.Content = volume.Ready, 1<<53+1, "serial:S",
		crypt.UUID{1}, node, volume.Made
	s.Key = keyring.Wrapped{Provider: "kms", KeyID: "k", Blob: []byte{1, 2, 255},
		Annotations: map[string][]byte{"a.example": {3}}}
	return s
}

// volumeStore: the store of volumes on a real API server, which is away at the end.
func volumeStore(ctx context.Context, t *testing.T, l *lab.Lab) {
	s, err := kubestore.NewForConfig(l.Control.Config, "n")
	errtest.Must(t, err)
	if _, _, err := s.Get(ctx, "pvc-1"); err == nil || errors.Is(err, volume.ErrNotFound) ||
		!strings.Contains(err.Error(), "not installed") {
		t.Errorf("without the custom resource: %v", err)
	}

	installCSI(ctx, t, l)
	t.Run("cluster", func(t *testing.T) {
		ns, err := l.Control.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem,
			metav1.GetOptions{})
		errtest.Must(t, err)
		if id, err := s.Cluster(ctx); err != nil || id != string(ns.UID) {
			t.Errorf("%q, %v; want %q", id, err, ns.UID)
		}
	})

	t.Run("life", func(t *testing.T) { storeLife(ctx, t, s, "n") })
	t.Run("of many that change it one does", func(t *testing.T) { storeRace(ctx, t, s) })
	t.Run("creation that was cut short", func(t *testing.T) { storeCutShort(ctx, t, l, s) })
	t.Run("what is not in the schema is refused", func(t *testing.T) { storeStrict(ctx, t, l, s) })
	t.Run("states only go on", func(t *testing.T) { storeGoesOn(ctx, t, l, s) })
	t.Run("requests", func(t *testing.T) { storeRequests(ctx, t, l, s) })
	t.Run("events at the claim", func(t *testing.T) { eventsAtTheClaim(ctx, t, l) })
	t.Run("veilctl volume destroy", func(t *testing.T) { volumeDestroyed(ctx, t, l, s) })
	t.Run("snapshots", func(t *testing.T) {
		// Definitions first: what uses them is refused before.
		dir := filepath.Join(nodetest.Root(t), "manifests/components/snapshots")
		for _, m := range append(manifesttest.Kustomized(t, filepath.Join(dir, "crd")),
			manifesttest.Kustomized(t, dir)...) {
			if err := apply(ctx, l, m.Object); err != nil {
				t.Errorf("%s: %v", m.Path, err)
			}
		}
	})

	t.Run("API server away", func(t *testing.T) {
		errtest.Must(t, l.Control.StopAPIServer(ctx))
		if _, _, err := s.Get(ctx, "pvc-1"); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("get: %v", err)
		}
		if err := s.Create(ctx, newState("pvc-away", "n")); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("create: %v", err)
		}
	})
}

// eventsAtTheClaim: a driver's token may make an event at the claim of a volume.
func eventsAtTheClaim(ctx context.Context, t *testing.T, l *lab.Lab) {
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	core := l.Control.Client.CoreV1()
	claim, err := core.PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx,
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-event",
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: size}}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	if _, err := core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-event"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: claim.Spec.AccessModes,
			ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver.Name,
					VolumeHandle: "pvc-event"}},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	errtest.Must(t, storeAs(ctx, t, l, "n").Warn(ctx, "pvc-event", "Fenced",
		strings.Repeat("x", 5000)))
	list, err := core.Events(claim.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=Fenced,involvedObject.uid=" + string(claim.UID)})
	if err != nil || len(list.Items) != 1 || list.Items[0].Source.Host != "n" {
		t.Errorf("%v, %v", list, err)
	}
}

func storeLife(ctx context.Context, t *testing.T, s *kubestore.Store, node string) {
	if _, _, err := s.Get(ctx, "pvc-1"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("get what is not there: %v", err)
	}
	want := newState("pvc-1", node)
	errtest.Must(t, s.Create(ctx, want))
	if err := s.Create(ctx, want); !errors.Is(err, volume.ErrExists) {
		t.Errorf("create again: %v", err)
	}
	got, first, err := s.Get(ctx, "pvc-1")
	if err != nil || !cmp.Equal(got, want) {
		t.Fatalf("%v %s", err, cmp.Diff(want, got))
	}

	want = readyState("pvc-1", node)
	second, err := s.Update(ctx, want, first)
	errtest.Must(t, err)
	if _, err := s.Update(ctx, want, first); !errors.Is(err, volume.ErrConflict) {
		t.Errorf("update at a former revision: %v", err)
	}
	if err := s.Remove(ctx, "pvc-1", first); !errors.Is(err, volume.ErrConflict) {
		t.Errorf("remove at a former revision: %v", err)
	}
	got, r, err := s.Get(ctx, "pvc-1")
	if err != nil || r != second || !cmp.Equal(got, want) {
		t.Fatalf("%v %s", err, cmp.Diff(want, got))
	}

	if all, err := s.List(ctx); err != nil ||
		!slices.ContainsFunc(all, func(s volume.State) bool { return cmp.Equal(s, want) }) {
		t.Errorf("list: %+v, %v", all, err)
	}

	want.Phase, want.Key, want.Writer = volume.Deleted, keyring.Wrapped{}, ""
	third, err := s.Update(ctx, want, second)
	errtest.Must(t, err)
	errtest.Check(t, s.Remove(ctx, "pvc-1", third))
	if err := s.Remove(ctx, "pvc-1", third); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("remove again: %v", err)
	}
	if _, err := s.Update(ctx, want, third); !errors.Is(err, volume.ErrNotFound) &&
		!errors.Is(err, volume.ErrConflict) {
		t.Errorf("update what is gone: %v", err)
	}
}

func storeRace(ctx context.Context, t *testing.T, s *kubestore.Store) {
	errtest.Must(t, s.Create(ctx, newState("pvc-race", "n")))
	_, r, err := s.Get(ctx, "pvc-race")
	errtest.Must(t, err)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			st := newState("pvc-race", "n")
			st.PendingPayload = int64(4096 * (3 + i))
			_, errs[i] = s.Update(ctx, st, r)
		})
	}
	wg.Wait()
	won := slices.DeleteFunc(slices.Clone(errs),
		func(err error) bool { return errors.Is(err, volume.ErrConflict) })
	if len(won) != 1 || won[0] != nil {
		t.Errorf("results %v: want one success, conflicts else", errs)
	}
}

func storeCutShort(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	half := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "csi.kubeveil.io/v1alpha1", "kind": "VeilVolume",
		"metadata": map[string]any{"name": "pvc-half"},
		"spec": map[string]any{"cluster": "c", "node": "n", "backend": "file",
			"created": "2025-01-02T03:04:05Z"},
	}}
	if _, err := l.Control.Dynamic.Resource(kubestore.VeilVolumes).Create(ctx, half,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(ctx, "pvc-half"); !errors.Is(err, volume.ErrState) {
		t.Errorf("get: %v", err)
	}
	other := newState("pvc-half", "n")
	other.Request.Parameters = "others"
	if err := s.Create(ctx, other); !errors.Is(err, volume.ErrExists) {
		t.Errorf("create with another request: %v", err)
	}
	errtest.Check(t, s.Create(ctx, newState("pvc-half", "n")))
	if st, _, err := s.Get(ctx, "pvc-half"); err != nil || st.Request.Created.Year() != 2025 {
		t.Errorf("completed: %+v, %v", st, err)
	}
}

func storeStrict(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	errtest.Must(t, s.Create(ctx, newState("pvc-strict", "n")))
	st, r, err := s.Get(ctx, "pvc-strict")
	errtest.Must(t, err)

	st.Request.Node = "elsewhere"
	if _, err := s.Update(ctx, st, r); !errors.Is(err, volume.ErrState) {
		t.Errorf("update of what was asked for: %v", err)
	}

	c := l.Control.Dynamic.Resource(kubestore.VeilVolumes)
	for what, patch := range map[string]string{
		"another cluster": `{"spec":{"cluster":"d"}}`, "another node": `{"spec":{"node":"m"}}`,
		"a node by its own takeover": `{"spec":{"node":"m","takeOver":{"from":"n","to":"m"}}}`,
		"a source":                   `{"spec":{"source":"x"}}`,
	} {
		if _, err := c.Patch(ctx, "pvc-strict", types.MergePatchType, []byte(patch),
			metav1.PatchOptions{}); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}

	_, err = c.Patch(ctx, "pvc-strict", types.MergePatchType,
		[]byte(`{"status":{"integrity":"hmac"}}`),
		metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}, "status")
	if err == nil {
		t.Error("a field that the schema does not have was accepted")
	}
}

func storeRequests(ctx context.Context, t *testing.T, l *lab.Lab, s *kubestore.Store) {
	for name, node := range map[string]string{"pvc-mine": "n", "pvc-other": "m"} {
		errtest.Must(t, s.Create(ctx, newState(name, node)))
		ask(ctx, t, l, name, `{"spec":{"rewrap":"first","takeOver":{"from":"gone","to":"n"}}}`)
	}

	watching, stop := context.WithCancel(ctx)
	defer stop()
	cache := s.NewCache(nil)
	go cache.Run(watching)
	if got, err := cache.Rewraps(ctx); err != nil ||
		!cmp.Equal(got, map[string]string{"pvc-mine": "first"}) {
		t.Errorf("%v, %v", got, err)
	}
	if from, err := s.TakeOver(ctx, "pvc-other"); err != nil || from != "gone" {
		t.Errorf("takeover from %q, %v", from, err)
	}

	ask(ctx, t, l, "pvc-mine",
		`{"spec":{"rewrap":"second","takeOver":{"from":"gone","to":"other"}}}`)
	if from, err := s.TakeOver(ctx, "pvc-mine"); err != nil || from != "" {
		t.Errorf("takeover by another node, from %q, %v", from, err)
	}

	for _, c := range []struct {
		request string
		left    int
	}{{"first", 1}, {"second", 0}, {"second", 0}} {
		errtest.Must(t, s.RewrapDone(ctx, "pvc-mine", c.request))
		// The watch follows within moments.
		if err := lab.Until(ctx, waitForPolicy, func() error {
			if got, err := cache.Rewraps(ctx); err != nil || len(got) != c.left {
				return fmt.Errorf("%v, want %d, %w", got, c.left, err)
			}
			return nil
		}); err != nil {
			t.Errorf("after %s is done: %v", c.request, err)
		}
	}

	if st, _, err := s.Get(ctx, "pvc-mine"); err != nil ||
		!cmp.Equal(st, newState("pvc-mine", "n")) {
		t.Errorf("%+v, %v", st, err)
	}
}

func ask(ctx context.Context, t *testing.T, l *lab.Lab, name, patch string) {
	t.Helper()
	_, err := l.Control.Dynamic.Resource(kubestore.VeilVolumes).Patch(ctx, name,
		types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	errtest.Must(t, err)
}
