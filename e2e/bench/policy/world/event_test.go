package world

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// told records the object that an event carries.
type told struct {
	pod    policy.Pod
	policy policy.Policy
}

func (t *told) PutPod(p policy.Pod) { t.pod = p }

func (t *told) PutPolicy(p policy.Policy) { t.policy = p }

// The object of an event is equal to the object from which the event was made.
func TestEventsTellTheirObjects(t *testing.T) {
	c := Cluster{Scale{Nodes: 100, Pods: 100, Policies: 1000, Rules: 100}}
	pod, want := PodOf(3, 5, 7), c.PolicyOf(11, 4)
	var got told
	for _, o := range []runtime.Object{PodObject(pod), PolicyObject(want)} {
		event, err := EventOf(o)
		errtest.Must(t, err)
		errtest.Must(t, policyfeed.PutEvent(event, Here, &got))
		t.Logf("%T is an event of %d bytes", o, len(event))
	}
	options := []cmp.Option{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})}
	if diff := cmp.Diff(pod, got.pod, options...); diff != "" {
		t.Errorf("pod:\n%s", diff)
	}
	if diff := cmp.Diff(want, got.policy, options...); diff != "" {
		t.Errorf("policy:\n%s", diff)
	}
	if err := policyfeed.PutEvent([]byte("nonsense"), Here, &got); err == nil {
		t.Error("bytes that are not an event are accepted")
	}
}
