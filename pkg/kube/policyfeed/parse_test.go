package policyfeed

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

func TestMirrorPodHasTheUIDOfItsStaticPod(t *testing.T) {
	o := &object.Object{Content: &wire.Pod{}, ObjectMeta: metav1.ObjectMeta{Name: "a",
		Namespace: "b", UID: "of the API server",
		Annotations: map[string]string{object.MirrorAnnotation: "of the kubelet"}}}
	got := parsePod(o, "node-1").Value
	if got == nil || !got.Mirror || got.UID != "of the kubelet" {
		t.Errorf("%+v", got)
	}
}

// The rules of a NetworkPolicy with a part that is not understood allow nothing.
func TestNetworkPolicyThatIsNotUnderstoodDenies(t *testing.T) {
	text := func(s string) *string { return &s }
	end := func(n int32) *int32 { return &n }
	number := func(n int32) *wire.IntOrString { return &wire.IntOrString{IntVal: n} }
	rule := func(r wire.PolicyRule) []wire.PolicyRule { return []wire.PolicyRule{{}, r} }
	block := func(cidr string, except ...string) []wire.PolicyRule {
		return rule(wire.PolicyRule{Peers: []wire.PolicyPeer{{IPBlock: &wire.IPBlock{CIDR: cidr,
			Except: except}}}})
	}

	port := func(p wire.PolicyPort) []wire.PolicyRule {
		return rule(wire.PolicyRule{Ports: []wire.PolicyPort{p}})
	}
	for name, w := range map[string]wire.NetworkPolicy{
		"unknown field": {Unknown: true, Ingress: rule(wire.PolicyRule{})},
		"empty peer":    {Ingress: rule(wire.PolicyRule{Peers: []wire.PolicyPeer{{}}})},
		"no prefix":     {Ingress: block("10.0.0.0")},
		"no exception":  {Ingress: block("10.0.0.0/8", "x")},
		"protocol":      {Ingress: port(wire.PolicyPort{Protocol: text("ICMP")})},
		"port 0":        {Ingress: port(wire.PolicyPort{Port: number(0)})},
		"port 65536":    {Ingress: port(wire.PolicyPort{Port: number(65536)})},
		"no name":       {Ingress: port(wire.PolicyPort{Port: &wire.IntOrString{Type: 1}})},
		"type 2": {Ingress: port(
			wire.PolicyPort{Port: &wire.IntOrString{Type: 2, IntVal: 1}})},
		"endPort alone":  {Ingress: port(wire.PolicyPort{EndPort: end(1)})},
		"endPort before": {Ingress: port(wire.PolicyPort{Port: number(2), EndPort: end(1)})},
		"operator": {PodSelector: wire.LabelSelector{MatchExpressions: []wire.Expression{{Key: "a",
			Operator: "Gt"}}}},
		"In without values": {PodSelector: wire.LabelSelector{MatchExpressions: []wire.Expression{{
			Key: "a", Operator: "In"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parseNetworkPolicy(&object.Object{Content: &w})
			if p.Problem == "" || p.Value == nil || p.Value.Invalid == "" ||
				len(p.Value.Rules[0])+len(p.Value.Rules[1]) > 0 ||
				!p.Value.Isolates[policy.Ingress] {
				t.Errorf("%+v", p)
			}
		})
	}

	for types, want := range map[string][2]bool{"": {true, false}, "Ingress": {true, false},
		"Egress": {false, true}, "Ingress Egress": {true, true}, "Other": {true, true}} {
		w := wire.NetworkPolicy{PolicyTypes: slices.DeleteFunc(strings.Split(types, " "),
			func(s string) bool { return s == "" })}
		if got := policyTypes(&w); got != want {
			t.Errorf("types %q isolate %v, want %v", types, got, want)
		}
	}

	if got := policyTypes(&wire.NetworkPolicy{HasEgress: true}); !got[policy.Egress] {
		t.Error("rules of egress do not isolate egress")
	}
}
