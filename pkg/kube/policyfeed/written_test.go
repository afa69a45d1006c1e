package policyfeed

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

const guests = `{"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
	"metadata": {"name": "guests"}, "spec": {"tier": "Admin", "subject": {"namespaces": {}},
	"ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]}}`

func TestPoliciesToTryAreReadWholeOrRefused(t *testing.T) {
	all, err := Read(policy.Written{JSON: []json.RawMessage{json.RawMessage(guests)}})
	if err != nil || len(all.Cluster) != 1 || all.Cluster[0].Name != "guests" ||
		len(all.Cluster[0].Rules[policy.Ingress]) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}

	for name, c := range map[string]struct{ old, with, want string }{
		"an older version": {"v1alpha2", "v1alpha1", "not a ClusterNetworkPolicy of"},
		"another kind":     {"ClusterNetworkPolicy", "AdminNetworkPolicy", "is a AdminNetworkPolicy"},
		"an unknown field": {`"subject"`, `"more": 1, "subject"`, `guests: spec: json: unknown field`},
	} {
		text := json.RawMessage(strings.Replace(guests, c.old, c.with, 1))
		if _, err := Read(policy.Written{JSON: []json.RawMessage{text}}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Read(policy.Written{Protobuf: [][]byte{[]byte("k8s")}}); err == nil {
		t.Error("what is no protobuf is read")
	}
}

// Read returns an error or one policy per object, for all bytes that veilctl may send.
func FuzzRead(f *testing.F) {
	f.Add([]byte("k8s\x00"), []byte(guests))
	f.Fuzz(func(t *testing.T, message, text []byte) {
		for _, w := range []policy.Written{{Protobuf: [][]byte{message}},
			{JSON: []json.RawMessage{text}}} {
			all, err := Read(w)
			if n := len(all.Namespaced) + len(all.Cluster); err == nil && n != 1 {
				t.Errorf("%d policies of one object", n)
			}
		}
	})
}
