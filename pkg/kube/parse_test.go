package kube

import (
	"encoding/json"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// FuzzObject decodes whole objects, as a watch does, of all three kinds.
func FuzzObject(f *testing.F) {
	for _, o := range []m{node("a", 1), veilNode("a", 1), kubernetesSlice("198.19.0.1", "x")} {
		raw, err := json.Marshal(o)
		errtest.Must(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var o object.Object
		if json.Unmarshal(data, &o) != nil {
			return
		}
		n := parseNode(&o)
		if len(n.node.PodPrefixes) > maxFamilies || len(n.node.Addresses) > maxNodeAddrs ||
			!sameNode(n, n) {
			t.Fatalf("node %+v", n)
		}
		if v := parseVeilNode(&o); (v.claim == nil) != (v.problem != "") {
			t.Fatalf("VeilNode %+v", v)
		}
		if s := parseSlice(&o); len(s.addrs) > maxAPIAddrs {
			t.Fatalf("slice %+v", s)
		}
	})
}
