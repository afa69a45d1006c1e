package volume

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// lost is a cluster with a volume and a snapshot on node-1. Both have objects of a user: a claim
// and a VolumeSnapshot.
type lost struct {
	destroyer
	client *fake.FakeDynamicClient
}

// lostObject returns an object of Kubernetes for a volume. It has the finalizer of b's side-car and
// one more.
func lostObject(apiVersion, kind, namespace, name string, b belonging,
	fields map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	o.SetName(name)
	o.SetNamespace(namespace)
	o.SetUID(types.UID(name + "-uid"))
	if namespace == "" {
		o.SetFinalizers([]string{"others/protection", b.finalizer})
	}
	for field, value := range fields {
		o.Object[field] = value
	}
	return o
}

func newLost(t *testing.T, change func(*volume.State), nodes ...runtime.Object) *lost {
	t.Helper()
	st, snap := aVolume("pvc-1"), aVolume("snap-1")
	change(&st)
	ref := func(name string) map[string]any {
		return map[string]any{"namespace": "default", "name": name, "uid": name + "-uid"}
	}
	group := "snapshot.storage.k8s.io/v1"
	objects := []runtime.Object{
		veilVolume(t, st), veilVolume(t, snap),
		lostObject("v1", "PersistentVolume", "", "pvc-1", belongings[0],
			map[string]any{"spec": map[string]any{
				"csi":      map[string]any{"driver": Driver, "volumeHandle": "pvc-1"},
				"claimRef": ref("data")}}),
		lostObject("v1", "PersistentVolume", "", "others", belongings[0],
			map[string]any{"spec": map[string]any{
				"csi":      map[string]any{"driver": "csi.example.com", "volumeHandle": "pvc-1"},
				"claimRef": ref("others")}}),
		lostObject("v1", "PersistentVolumeClaim", "default", "data", belonging{}, nil),
		lostObject(group, "VolumeSnapshotContent", "", "content-1", belongings[1], map[string]any{
			"spec":   map[string]any{"driver": Driver, "volumeSnapshotRef": ref("snap")},
			"status": map[string]any{"snapshotHandle": "snap-1"}}),
		lostObject(group, "VolumeSnapshot", "default", "snap", belonging{}, nil),
	}

	kinds := map[schema.GroupVersionResource]string{kubestore.VeilVolumes: "VeilVolumeList"}
	for i, kind := range []string{"PersistentVolume", "VolumeSnapshotContent"} {
		kinds[belongings[i].resource] = kind + "List"
	}

	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	// Like the API server, only mark an object with finalizers as deleted.
	client.PrependReactor("delete", "*",
		func(a clienttesting.Action) (bool, runtime.Object, error) {
			resource, name := a.GetResource(), a.(clienttesting.DeleteAction).GetName()
			o, err := client.Tracker().Get(resource, "", name)
			if err != nil {
				return true, nil, err
			}
			u := o.(*unstructured.Unstructured)
			if len(u.GetFinalizers()) == 0 {
				return false, nil, nil
			}
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
			return true, nil, client.Tracker().Update(resource, u, "")
		})

	l := &lost{client: client}
	l.cluster = &remote.Cluster{Client: kubefake.NewClientset(nodes...), Dynamic: client}
	l.store = kubestore.NewForClient(client, "")
	return l
}

func aNode(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
}

// writes returns the changes, in order.
func (l *lost) writes() []string {
	var out []string
	for _, a := range l.client.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) {
			out = append(out, strings.TrimSuffix(a.GetVerb()+" "+a.GetResource().Resource+"/"+
				a.GetSubresource(), "/"))
		}
	}
	return out
}

func TestVolumesOfANodeThatIsGoneAreDestroyedKeysFirst(t *testing.T) {
	l := newLost(t, func(*volume.State) {})
	for _, c := range []struct {
		name, released, left string
		writes               []string
		object               string
		of                   belonging
	}{
		{
			"pvc-1", "persistentvolume/pvc-1", "kubectl delete -n default pvc data",
			[]string{"update veilvolumes/status", "delete persistentvolumes",
				"update persistentvolumes", "delete veilvolumes"}, "pvc-1", belongings[0],
		},
		{
			"snap-1", "volumesnapshotcontent/content-1",
			"kubectl delete -n default volumesnapshot snap",
			[]string{"update veilvolumes/status", "delete volumesnapshotcontents",
				"update volumesnapshotcontents", "delete veilvolumes"}, "content-1", belongings[1],
		},
	} {
		l.client.ClearActions()
		r := l.destroy(t.Context(), c.name)
		if r.Error != "" || !r.KeyDestroyed || !slices.Equal(r.Released, []string{c.released}) ||
			!slices.Equal(r.Left, []string{c.left}) {
			t.Errorf("%s: %+v", c.name, r)
		}
		if got := l.writes(); !slices.Equal(got, c.writes) {
			t.Errorf("%s: changed in this order: %q, want %q", c.name, got, c.writes)
		}
		o, err := l.client.Resource(c.of.resource).Get(t.Context(), c.object, metav1.GetOptions{})
		errtest.Must(t, err)
		if f := o.GetFinalizers(); o.GetDeletionTimestamp() == nil ||
			!slices.Equal(f, []string{"others/protection"}) {
			t.Errorf("%s: deleted at %v, held by %q", c.object, o.GetDeletionTimestamp(), f)
		}
		if r := l.destroy(t.Context(), c.name); !strings.Contains(r.Error, "no such volume") {
			t.Errorf("%s, once more: %+v", c.name, r)
		}
	}

	if o, err := l.client.Resource(belongings[0].resource).Get(t.Context(), "others",
		metav1.GetOptions{}); err != nil || o.GetDeletionTimestamp() != nil {
		t.Errorf("another driver's volume of that handle: %v, %v", o, err)
	}
}

func TestVolumeOfANodeThatIsThereIsNotDestroyed(t *testing.T) {
	up, down := aNode("node-1", corev1.ConditionTrue), aNode("node-1", corev1.ConditionUnknown)
	as := func(*volume.State) {}
	taken := func(st *volume.State) { st.Writer = "node-2" }
	for situation, c := range map[string]struct {
		state func(*volume.State)
		nodes []runtime.Object
		gone  string
		want  string
	}{
		"alive": {as, []runtime.Object{up}, "",
			"node node-1 is Ready: delete the claim"},
		"alive, and said to be gone": {as, []runtime.Object{up}, "node-1",
			"node node-1 is Ready"},
		"silent": {as, []runtime.Object{down}, "", "add --gone node-1"},
		"another one is gone": {as, []runtime.Object{down}, "node-2",
			"it belongs to node node-1, not to node-2"},
		"open on a node that is alive": {taken,
			[]runtime.Object{aNode("node-2", corev1.ConditionTrue)}, "", "node node-2 is Ready"},
		"of no node": {func(st *volume.State) { st.Request.Node = "" }, nil, "",
			"names no node"},
		"silent, and said to be gone":  {as, []runtime.Object{down}, "node-1", ""},
		"taken by a node that is gone": {taken, nil, "", ""},
	} {
		l := newLost(t, c.state, c.nodes...)
		l.gone = c.gone
		r := l.destroy(t.Context(), "pvc-1")
		if (r.Error == "") != (c.want == "") || !strings.Contains(r.Error, c.want) {
			t.Errorf("%s: %+v, want %q", situation, r, c.want)
		}
		if done := l.writes(); c.want != "" && (len(done) > 0 || r.KeyDestroyed) {
			t.Errorf("%s: refused, and yet %q", situation, done)
		}
	}

	// A node that may take the volume over has the right to open it.
	l := newLost(t, as, aNode("node-3", corev1.ConditionTrue))
	o, err := l.client.Resource(kubestore.VeilVolumes).Get(t.Context(), "pvc-1",
		metav1.GetOptions{})
	if err == nil {
		err = unstructured.SetNestedStringMap(o.Object,
			map[string]string{"from": "node-1", "to": "node-3"}, "spec", "takeOver")
	}
	if err == nil {
		_, err = l.client.Resource(kubestore.VeilVolumes).Update(t.Context(), o,
			metav1.UpdateOptions{})
	}
	errtest.Must(t, err)

	if r := l.destroy(t.Context(), "pvc-1"); !strings.Contains(r.Error, "node node-3 is Ready") {
		t.Errorf("with a takeover under way: %+v", r)
	}
}

// If the first step fails, the second is not done. If the second fails, a repetition completes the
// destruction.
func TestDestructionThatFails(t *testing.T) {
	l := newLost(t, func(*volume.State) {})
	refuse := map[string]bool{"update veilvolumes": true, "delete persistentvolumes": true}
	l.client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if refuse[a.GetVerb()+" "+a.GetResource().Resource] {
			return true, nil, fmt.Errorf("test: %s is refused", a.GetVerb())
		}
		return false, nil, nil
	})
	if r := l.destroy(t.Context(), "pvc-1"); r.Error == "" || r.KeyDestroyed ||
		slices.Contains(l.writes(), "delete persistentvolumes") {
		t.Errorf("the key stays: %+v, changed %q", r, l.writes())
	}

	refuse["update veilvolumes"] = false
	r := l.destroy(t.Context(), "pvc-1")
	if st, _, err := l.store.Get(t.Context(), "pvc-1"); err != nil || st.Phase != volume.Deleted ||
		!st.Key.IsZero() || !r.KeyDestroyed || r.Error == "" {
		t.Errorf("the key goes and the PersistentVolume stays: %+v, %+v, %v", r, st, err)
	}
	var out bytes.Buffer
	shown := verb.Call{Ctx: t.Context(), Out: &out}
	if err := showDestroyed(shown, []destroyReport{r}, true); !errors.Is(err, verb.ErrWrong) ||
		!strings.Contains(out.String(), "repeat the command") {
		t.Errorf("%v:\n%s", err, &out)
	}

	refuse["delete persistentvolumes"] = false
	if r = l.destroy(t.Context(), "pvc-1"); r.Error != "" || len(r.Released) != 1 {
		t.Errorf("repeated: %+v", r)
	}

	out.Reset()
	if err := showDestroyed(shown, []destroyReport{r}, true); err != nil ||
		!strings.Contains(out.String(), "kubectl delete -n default pvc data") {
		t.Errorf("%v:\n%s", err, &out)
	}
}
