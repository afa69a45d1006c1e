package kube

import (
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// answering returns a client of a server that answers every request with body.
func answering(t *testing.T, contentType string, body []byte) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body) // the client sees what is missing
	}))
	t.Cleanup(s.Close)
	c, err := newClient(Options{Node: "node-1"}, &rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// largePolicies is a list of n policies of the size that etcd takes.
func largePolicies(t *testing.T, n int) []byte {
	t.Helper()
	var list networkingv1.NetworkPolicyList
	for range n {
		list.Items = append(list.Items, networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: "large"},
			Spec: networkingv1.NetworkPolicySpec{
				Ingress: make([]networkingv1.NetworkPolicyIngressRule, 700_000)}})
	}
	raw, err := list.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envelope := runtime.Unknown{Raw: raw}
	b, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), b...)
}

// A list costs the memory of the kept parts and of one item, regardless of its length.
func TestListIsReadItemByItem(t *testing.T) {
	const policies = 20
	body := largePolicies(t, policies)
	c := answering(t, protobufType, body)
	sink := newFeed(c, "NetworkPolicy ", parseNetworkPolicy, nil, nil, nil, nil)

	reduce := sink.Transformer()
	before, most := memory().HeapAlloc, uint64(0)
	list := networkPolicyKind.newList()
	err := c.get(t.Context(), networkPolicyKind, metav1.ListOptions{}, list,
		func(v any) (any, error) {
			v, err := reduce(v)
			most = max(most, memory().HeapAlloc)
			return v, err
		})
	if err != nil || len(list.(*wiredList[networkPolicyWire]).Items) != policies {
		t.Fatalf("%+v, %v", list, err)
	}
	t.Logf("%d kB of answer, at most %d kB held", len(body)>>10, (most-before)>>10)
	if most > before+4<<20 {
		t.Errorf("%d bytes held for an answer of %d", most-before, len(body))
	}
	goruntime.KeepAlive(body)
}

func TestAnswerThatIsNotAListIsAnError(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":          "",
		"no object":        `[]`,
		"items of a word":  `{"items": "all"}`,
		"item of a number": `{"items": [7]}`,
		"cut short":        `{"items": [{"metadata": {"name": "a"}}`,
		"no end":           `{"metadata": {"resourceVersion": "1"}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := answering(t, "application/json", []byte(body))
			list, err := c.lister(veilNodeKind, nil)(t.Context(), metav1.ListOptions{})
			if err == nil {
				t.Errorf("%+v", list)
			}
		})
	}

	c := answering(t, "application/json", []byte(`{"kind": "VeilNodeList", "other": [1, {}],
		"items": null, "metadata": {"resourceVersion": "5", "continue": "c"}}`))
	list, err := c.lister(veilNodeKind, nil)(t.Context(), metav1.ListOptions{})
	if l := list.(*objectList); err != nil || len(l.Items) != 0 || l.ResourceVersion != "5" ||
		l.Continue != "c" {
		t.Errorf("%+v, %v", list, err)
	}
}
