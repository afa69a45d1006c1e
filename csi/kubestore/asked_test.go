package kubestore

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// A request is for the node that has the volume now, not for the node for which it was made.
func TestRewrapsAreOfTheNodeThatHasTheVolume(t *testing.T) {
	const one, two, three = "node-1", "node-2", "node-3"
	var objects []runtime.Object
	want := map[string]map[string]string{one: {}, two: {}, three: {}}
	for name, c := range map[string]struct {
		node, writer string
		takeOver     *TakeOver
		want         string
	}{
		"closed":                    {one, "", nil, one},
		"open":                      {one, one, nil, one},
		"to-be-taken-closed":        {one, "", &TakeOver{one, two}, two},
		"to-be-taken-open":          {one, one, &TakeOver{one, two}, two},
		"taken-open":                {one, two, &TakeOver{one, two}, two},
		"taken-open-request-gone":   {one, two, nil, two},
		"taken-and-given-that-node": {two, "", &TakeOver{one, two}, two},
		"taken-twice":               {two, two, &TakeOver{two, three}, three},
		"asked-of-another-node":     {one, one, &TakeOver{three, two}, one},
	} {
		st := full()
		st.Volume, st.Request.Node, st.Writer = name, c.node, c.writer
		spec := specOf(st)
		spec.Asked = Asked{Rewrap: "now", TakeOver: c.takeOver}
		o, err := encode(name, "1", spec, must(statusOf(st)))
		errtest.Must(t, err)
		objects = append(objects, o)
		if c.node == c.want {
			want[c.want][name] = "now" // Another node does it once the volume names that node.
		}
	}
	quiet := full()
	quiet.Request.Node, quiet.Writer = one, one
	objects = append(objects, must(encode("not-asked", "1", specOf(quiet), must(statusOf(quiet)))))
	deleted := volume.State{Volume: "deleted", Cluster: "c", Request: volume.Request{Node: one},
		Phase: volume.Deleted, Payload: 4096, Content: volume.Unmade}
	spec := specOf(deleted)
	spec.Rewrap = "now"
	objects = append(objects, must(encode("deleted", "1", spec, must(statusOf(deleted)))))

	kinds := map[schema.GroupVersionResource]string{VeilVolumes: Kind + "List"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...)
	for _, node := range []string{one, two, three} {
		s := NewForClient(client, node)
		got := map[string]string{}
		for name, request := range must(watched(t, s).Rewraps(t.Context())) {
			got[name] = request
			if o, err := s.Object(t.Context(), name); err != nil || o.Holder != node {
				t.Errorf("the holder of %s is %q, %v; want %s", name, o.Holder, err, node)
			}
		}
		if !cmp.Equal(got, want[node]) {
			t.Errorf("%s: %s", node, cmp.Diff(want[node], got))
		}
	}
}

// A takeover is only visible to the node that may take the volume and to the node that was declared
// gone.
func TestTakeoverIsForTheNamedNodes(t *testing.T) {
	const one, two, three = "node-1", "node-2", "node-3"
	st := full()
	spec := specOf(st)
	spec.Asked = Asked{TakeOver: &TakeOver{one, two}}
	asked := must(encode(st.Volume, "1", spec, must(statusOf(st))))
	st.Volume = "pvc-2"
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{VeilVolumes: Kind + "List"},
		asked, must(encode(st.Volume, "1", specOf(st), must(statusOf(st)))))
	for node, want := range map[string]string{one: "", two: one, three: ""} {
		s := NewForClient(client, node)
		from, err := s.TakeOver(t.Context(), "pvc-1")
		var taken *volume.TakenError
		if from != want || errors.As(err, &taken) != (node == one) || err != nil && taken == nil ||
			taken != nil && *taken != (volume.TakenError{Volume: "pvc-1", From: one, To: two}) {
			t.Errorf("%s: from %q, %v", node, from, err)
		}
		if from, err := s.TakeOver(t.Context(), "pvc-2"); from != "" || err != nil {
			t.Errorf("%s, without a request: from %q, %v", node, from, err)
		}
	}
}
