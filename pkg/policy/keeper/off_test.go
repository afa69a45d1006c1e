package keeper

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/feature"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// handedSource is a Source that reads the same objects from everything that is handed over.
type handedSource struct {
	Source
	objects policy.Objects
}

func (s handedSource) ReadHanded(policy.Handed, string) (policy.Objects, error) {
	return s.objects, nil
}

func (handedSource) ReadPolicies(policy.Written) (all policy.Policies, err error) { return all, nil }

// postOff posts what is handed over to a page of a Feature without policies.
func postOff[T any](n *node, f *Feature, page, query string, body any) (answer T, err error) {
	n.t.Helper()
	text, err := json.Marshal(body)
	errtest.Must(n.t, err)
	n.must(func() error {
		var v any
		if v, err = f.Pages()[page](httptest.NewRequest(http.MethodPost, "/"+query,
			strings.NewReader(string(text)))); err == nil {
			answer = v.(T)
		}
		return nil
	})
	return answer, err
}

// A node without policies answers from the objects that are handed over: which connections policies
// of the API server would end, and which policies allow the connections that it knows.
func TestNodeWithoutPoliciesAnswersFromWhatIsHandedOver(t *testing.T) {
	n := newNode(t)
	n.put("client", map[string]string{"app": "client"})
	n.put("server", map[string]string{"app": "server"})
	n.attach("client", 1)
	n.attach("server", 2)
	n.attach("other", 3)
	n.listed()
	n.wantTalk("client", 2, true)
	n.connect("client", "server", addrsOf(2)[0], 1001)

	pod := func(name string, i int) policy.Pod {
		return policy.Pod{Name: policy.Name{Namespace: "shop", Name: name}, UID: "uid-" + name,
			Node: "here", Labels: map[string]string{"app": name}, Addrs: addrsOf(i)}
	}
	stranger := pod("stranger", 1) // claims the address of a pod of another node
	stranger.Node, stranger.UID = "there", "uid"
	objects := policy.Objects{Namespaces: []policy.Namespace{{Name: "shop"}},
		Pods:     []policy.Pod{pod("client", 1), pod("server", 2), stranger},
		Policies: policy.Policies{Namespaced: []policy.Policy{denyAll}}}
	f := NewFeature(FeatureOptions{Paths: n.paths, Source: handedSource{objects: objects},
		Config: config.Config{Node: "here", Policy: config.PolicyNone}})
	handed := policy.Handed{Protobuf: [][]byte{{0}}}
	w := policy.Written{Handed: &handed}
	_, err := postOff[*known.Tried](n, f, telemetry.PolicyTryPage, "", w)
	if err == nil || !strings.Contains(err.Error(), "has not read the nodes' pod prefixes") {
		t.Errorf("before the node table: %v", err)
	}
	errtest.Must(t, f.Turn(feature.Turn{Complete: true, Table: cluster.Table{
		Self: &cluster.Node{Name: "here", PodPrefixes: prefixes["here"],
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
		Peers: []cluster.Node{{Name: "there", PodPrefixes: prefixes["there"]}}}}))

	got, err := postOff[*known.Tried](n, f, telemetry.PolicyTryPage, "", w)
	errtest.Must(t, err)
	found := false
	for _, r := range got.Ends {
		found = found || r.Pod == "shop/server" && r.Peer == "shop/client" && r.Port == 1001 &&
			r.Connections == 1 && len(r.Policies) == 1 && r.Policies[0] == "shop/deny"
	}
	notes := strings.Join(got.Notes, "\n")
	if !found || len(got.Passes) > 0 || got.Node != "here" ||
		!strings.Contains(notes, "if it enforced the 1 policies of the API server") ||
		!strings.Contains(notes, "1 pods of this node are not among the pods that veilctl read") {
		t.Errorf("%+v", got)
	}
	w.Delete = []policy.Ref{{Kind: policy.KindNetworkPolicy, Namespace: "shop", Name: "deny"}}
	if got, err = postOff[*known.Tried](n, f, telemetry.PolicyTryPage, "", w); err != nil ||
		len(got.Ends) > 0 || got.Connections == 0 {
		t.Errorf("without the policy: %+v, %v", got, err)
	}

	seen, err := postOff[*suggest.Seen](n, f, telemetry.PolicySeenPage, "?namespace=shop", handed)
	errtest.Must(t, err)
	both := 0
	for _, r := range seen.Rows {
		if r.Port == 1001 && r.Peer.Pods != nil {
			both++
		}
	}
	if both != 2 {
		t.Errorf("the connection has %d ends: %+v", both, seen)
	}
	_, err = postOff[*suggest.Seen](n, f, telemetry.PolicySeenPage, "?namespace=shp", handed)
	if err == nil || !strings.Contains(err.Error(), "the cluster has shop") {
		t.Errorf("an unknown namespace: %v", err)
	}
	_, err = postOff[*suggest.Seen](n, f, telemetry.PolicySeenPage, "?namespace=shop", policy.Handed{})
	if !errors.Is(err, errNothingHanded) {
		t.Errorf("nothing is handed over: %v", err)
	}
}
