package wire_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

var reader = wire.Reader{
	Labels:      []string{"node-role.kubernetes.io/control-plane", "a"},
	Annotations: []string{"k8s.io/initial-events-end"},
}

// busyNode is a Node as a kubelet with many images keeps it.
func busyNode(i int) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
			ResourceVersion: "123456", Generation: 3,
			CreationTimestamp: metav1.NewTime(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)),
			Labels: map[string]string{"a": "b", "kubernetes.io/hostname": "x",
				"node-role.kubernetes.io/control-plane": ""},
			Annotations: map[string]string{"k8s.io/initial-events-end": "true",
				"other": "annotation"},
			Finalizers: []string{"f"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet",
				FieldsV1: metav1.NewFieldsV1(string(make([]byte, 3000)))}},
		},
		Spec: corev1.NodeSpec{
			PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00::/64"},
			ProviderID: "x://y", Unschedulable: true,
			Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "198.18.0.11"},
				{Type: corev1.NodeInternalIP, Address: "fd42::b"},
				{Type: corev1.NodeHostName, Address: "node"}, {},
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
				Status: corev1.ConditionTrue, Message: "kubelet is posting ready status"}},
		},
	}

	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example/some/image-%d@sha256:%064d", j, j),
				fmt.Sprintf("registry.example/some/image-%d:v1", j)}, SizeBytes: 1 << 30,
		})
	}

	return n
}

// want is what a Reader returns for a Node that k8s.io/api has decoded.
func want(n *corev1.Node) wire.Node {
	w := wire.Node{
		Meta: wire.Meta{
			Name: n.Name, Namespace: n.Namespace, UID: string(n.UID),
			ResourceVersion: n.ResourceVersion, Generation: n.Generation,
			Labels:      kept(n.Labels, reader.Labels),
			Annotations: kept(n.Annotations, reader.Annotations),
		},
		PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs,
		Leaving: !n.DeletionTimestamp.IsZero(),
	}
	for _, taint := range n.Spec.Taints {
		w.Leaving = w.Leaving || taint.Key == wire.DeletedTaint
	}
	if !n.CreationTimestamp.IsZero() {
		w.Created = n.CreationTimestamp.UTC()
	}
	for _, a := range n.Status.Addresses {
		w.Addresses = append(w.Addresses, wire.NodeAddress{Type: string(a.Type),
			Address: a.Address})
	}
	return w
}

func kept(all map[string]string, keys []string) map[string]string {
	out := map[string]string{}
	for _, k := range keys {
		if v, has := all[k]; has {
			out[k] = v
		}
	}
	return out
}

func marshal(t testing.TB, m interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.Marshal()
	errtest.Must(t, err)
	return b
}

func diff(a, b wire.Node) string {
	return cmp.Diff(a, b, cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(0))
}

func TestNodeIsReadAsByKubernetes(t *testing.T) {
	secondsOnly := busyNode(2)
	secondsOnly.CreationTimestamp = metav1.NewTime(time.Unix(1, 999))
	deleted := metav1.Unix(1_800_000_000, 0)

	for name, n := range map[string]*corev1.Node{
		"deleted": {ObjectMeta: metav1.ObjectMeta{Name: "x", DeletionTimestamp: &deleted}},
		"about to be deleted": {Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k"},
			{Key: wire.DeletedTaint, Effect: corev1.TaintEffectNoSchedule}}}},
		"a busy node": busyNode(1), "nothing": {}, "nanoseconds": secondsOnly,
		"no addresses": {ObjectMeta: metav1.ObjectMeta{Name: "x"},
			Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := marshal(t, n)
			var decoded corev1.Node
			errtest.Must(t, decoded.Unmarshal(b))
			got, err := reader.Node(b)
			errtest.Must(t, err)
			clear(b) // nothing of the input may be referred to
			if d := diff(want(&decoded), got); d != "" {
				t.Errorf("k8s.io/api -, ours +:\n%s", d)
			}
		})
	}
}

// Wherever a Node is cut off inside a field, that is an error, and never a panic.
func TestTruncatedNodeIsAnError(t *testing.T) {
	whole := marshal(t, busyNode(1))
	refused := 0
	for i := range whole {
		if _, err := reader.Node(whole[:i]); err != nil {
			refused++
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("cut at %d: %v does not match ErrMalformed", i, err)
			}
		}
	}
	// A Node that is cut between two of its three fields is a complete message, so at most 3 cuts
	// are accepted.
	if refused < len(whole)-3 {
		t.Errorf("%d of %d cuts were refused", refused, len(whole))
	}
}

// FuzzNode compares the Reader with the decoder of k8s.io/api. The Reader must accept all bytes
// that this decoder accepts and encodes to the same bytes. For other bytes that both accept, the
// results must be equal.
func FuzzNode(f *testing.F) {
	small := busyNode(1)
	small.Status.Images, small.ManagedFields = small.Status.Images[:1], nil
	f.Add(marshal(f, small))
	f.Add(marshal(f, &corev1.Node{}))
	// a time, a group, an address
	f.Add([]byte("\x0a\x06\x42\x04\x08\x01\x10\x02\x13\x14\x1a\x02\x2a\x00"))
	f.Add(append(marshal(f, small), marshal(f,
		&corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"x"}}})...))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := reader.Node(data)
		if err != nil && !errors.Is(err, wire.ErrMalformed) {
			t.Fatalf("%v does not match ErrMalformed", err)
		}
		var theirs corev1.Node
		if theirs.Unmarshal(data) != nil {
			return
		}

		if err == nil {
			// The decoder of k8s.io does not check wire types in maps, and may read beyond the
			// entry.
			w := want(&theirs)
			w.Labels, w.Annotations, got.Labels, got.Annotations = nil, nil, nil, nil
			if d := diff(w, got); d != "" {
				t.Fatalf("k8s.io/api -, ours +:\n%s", d)
			}
		}

		got, err = reader.Node(marshal(t, &theirs))
		if err != nil {
			t.Fatalf("what k8s.io/api wrote: %v", err)
		}
		if d := diff(want(&theirs), got); d != "" {
			t.Fatalf("what k8s.io/api wrote, k8s.io/api -, ours +:\n%s", d)
		}
	})
}

func BenchmarkNode(b *testing.B) {
	data := marshal(b, busyNode(1))
	b.Run("wire", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := reader.Node(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("k8s.io", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var n corev1.Node
			if err := n.Unmarshal(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
