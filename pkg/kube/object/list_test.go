package object

import (
	"bytes"
	goruntime "runtime"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
)

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
	errtest.Must(t, err)
	envelope := runtime.Unknown{Raw: raw}
	b, err := envelope.Marshal()
	errtest.Must(t, err)
	return append([]byte("k8s\x00"), b...)
}

// A list costs the memory of the kept parts and of one item, regardless of its length.
func TestListIsReadItemByItem(t *testing.T) {
	const policies = 20
	body := largePolicies(t, policies)
	before, most := kubetest.Memory().HeapAlloc, uint64(0)
	list, err := Read(bytes.NewReader(body), NetworkPolicies, func(o *Object) bool {
		Parse(o, func(o *Object) string { return o.Name })
		most = max(most, kubetest.Memory().HeapAlloc)
		return true
	})
	if err != nil || meta.LenList(list) != policies {
		t.Fatalf("%+v, %v", list, err)
	}
	t.Logf("%d kB of answer, at most %d kB held", len(body)>>10, (most-before)>>10)
	if most > before+4<<20 {
		t.Errorf("%d bytes held for an answer of %d", most-before, len(body))
	}
	goruntime.KeepAlive(body)
}

func TestAnswerThatIsNotAListIsAnError(t *testing.T) {
	read := func(body string) (List, error) {
		return Read(strings.NewReader(body), VeilNodes, func(*Object) bool { return true })
	}
	for name, body := range map[string]string{
		"nothing":          "",
		"no object":        `[]`,
		"items of a word":  `{"items": "all"}`,
		"item of a number": `{"items": [7]}`,
		"cut short":        `{"items": [{"metadata": {"name": "a"}}`,
		"no end":           `{"metadata": {"resourceVersion": "1"}`,
		"protobuf":         "k8s\x00",
	} {
		t.Run(name, func(t *testing.T) {
			if list, err := read(body); err == nil {
				t.Errorf("%+v", list)
			}
		})
	}

	list, err := read(`{"kind": "VeilNodeList", "other": [1, {}],
		"items": null, "metadata": {"resourceVersion": "5", "continue": "c"}}`)
	errtest.Must(t, err)
	l, err := meta.ListAccessor(list)
	if err != nil || meta.LenList(list) != 0 || l.GetResourceVersion() != "5" ||
		l.GetContinue() != "c" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestServiceListIsChosenByLabels(t *testing.T) {
	for _, k := range []Kind{Services, EndpointSlices} {
		if got := k.Select(metav1.ListOptions{}).LabelSelector; got !=
			"!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless" {
			t.Errorf("%s: selector %q", k.What, got)
		}
	}
	if got := Nodes.Select(metav1.ListOptions{}).LabelSelector; got != "" {
		t.Errorf("nodes: selector %q", got)
	}
}
