package explain_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
)

// shown returns a policy of namespace shop with every kind of peers and ports.
func shown() policy.Policy {
	prefix := netip.MustParsePrefix
	return policy.Policy{Name: policy.Name{Namespace: "shop", Name: "web"},
		Isolates: [2]bool{true, true},
		Rules: [2][]policy.Rule{{
			{Peers: []policy.Peer{{Pods: labelled("app", "client")}},
				Ports: []policy.Port{{Proto: policy.TCP, Name: "http"},
					{Proto: policy.UDP, First: 53, Last: 53}}},
			{Peers: []policy.Peer{{Namespaces: &policy.Selector{}}},
				Ports: []policy.Port{{Proto: policy.TCP, First: 8000, Last: 8100}}},
			{Peers: []policy.Peer{{Block: &policy.Block{CIDR: prefix("10.0.0.0/8"),
				Except: []netip.Prefix{prefix("10.2.0.0/16"), prefix("10.1.0.0/16")}}}}},
			{Ports: []policy.Port{{Proto: policy.SCTP}}},
		}, {
			{Peers: []policy.Peer{{Namespaces: &policy.Selector{
				{Key: "team", Values: []string{"a", "b"}},
				{Key: "old", Op: policy.DoesNotExist}},
				Pods: &policy.Selector{{Key: "app", Op: policy.NotIn, Values: []string{"x"}},
					{Key: "web", Op: policy.Exists}}}},
				Ports: []policy.Port{{Proto: policy.TCP, Name: "http"}}},
		}}}
}

func TestPodIsShownInWords(t *testing.T) {
	p := shop()
	p.PutPolicy(shown())
	v, err := explain.Pod(p, web, p.Plan())
	errtest.Must(t, err)
	want := []policy.LineView{
		{Policy: "shop/web", Peers: "10.0.0.0/8 except 10.1.0.0/16, 10.2.0.0/16", Ports: "all",
			Members: -1},
		{Policy: "shop/web", Peers: "all pods in all namespaces", Ports: "tcp 8000-8100",
			Members: 4},
		{Policy: "shop/web", Peers: "anywhere", Ports: "sctp", Members: -1},
		{Policy: "shop/web", Peers: "pods with app=client in namespace shop",
			Ports: "tcp 8080, udp 53", Members: 2},
	}
	if d := cmp.Diff(want, v.Ingress.Lines); d != "" {
		t.Errorf("ingress:\n%s", d)
	}
	want = []policy.LineView{{Policy: "shop/web", Ports: "tcp http",
		Peers: "pods with app not in (x) and web set in namespaces with team in (a,b) and old unset"}}
	if d := cmp.Diff(want, v.Egress.Lines); d != "" {
		t.Errorf("egress:\n%s", d)
	}
	if !v.Enforced || v.Mute || v.Group == "" || !v.Ingress.Isolated ||
		!cmp.Equal(v.Policies, []string{"shop/web"}) {
		t.Errorf("view of the pod: %+v", v)
	}
}

func TestWhatIsNotInForceIsShownSo(t *testing.T) {
	p := shop()
	old := p.Plan()
	p.PutPolicy(shown())

	one := func(inForce *policy.Plan) policy.PolicyView {
		t.Helper()
		list, _ := explain.List(p, inForce)
		if len(list) != 1 || list[0].Policy != "shop/web" ||
			!cmp.Equal(list[0].Pods, []string{"shop/web"}) ||
			!cmp.Equal(list[0].Directions, []string{"ingress", "egress"}) {
			t.Fatalf("list %+v, want policy shop/web only", list)
		}
		return list[0]
	}
	for name, plan := range map[string]*policy.Plan{"no plan": nil, "the plan of before": old} {
		if v := one(plan); v.Enforced || !strings.Contains(v.Problem, "not in force yet") {
			t.Errorf("%s: policy %+v, want not in force yet", name, v)
		}
	}
	if v := one(p.Plan()); !v.Enforced || v.Problem != "" {
		t.Errorf("in force: %+v", v)
	}

	// A new peer changes a set but no group.
	before := p.Plan()
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "late"}, Node: "there",
		UID: "9", Labels: map[string]string{"app": "client"},
		Addrs: []netip.Addr{netip.MustParseAddr("198.18.2.99")}})
	if v := one(before); v.Enforced {
		t.Errorf("without a peer: %+v", v)
	}

	bad := shown()
	bad.Invalid = "spec has a field that this version does not know"
	p.PutPolicy(bad)
	if v := one(p.Plan()); v.Enforced || !strings.Contains(v.Problem, "denies everything") ||
		!strings.Contains(v.Problem, bad.Invalid) {
		t.Errorf("invalid: %+v", v)
	}
	if v, err := explain.Pod(p, web, p.Plan()); err != nil || len(v.Problems) != 1 ||
		!v.Ingress.Isolated || len(v.Ingress.Lines) > 0 {
		t.Errorf("the pod of an invalid policy: %+v, %v", v, err)
	}
}

func TestPodsThatCannotBeShown(t *testing.T) {
	p := shop()
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "unbound"}, UID: "3"})
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "host"}, UID: "4",
		Node: "here", HostNetwork: true})
	show := func(name string) (*policy.PodView, error) {
		return explain.Pod(p, policy.Name{Namespace: "shop", Name: name}, p.Plan())
	}

	for name, want := range map[string]error{"none": planner.ErrNoPod,
		"client": planner.ErrElsewhere, "unbound": planner.ErrElsewhere} {
		if _, err := show(name); !errors.Is(err, want) {
			t.Errorf("pod %s: error %v, want %v", name, err, want)
		}
	}
	if _, err := show("client"); !strings.Contains(err.Error(), "node there") {
		t.Errorf("the error does not name the node: %v", err)
	}
	if v, err := show("host"); err != nil || v.Group != "" || v.Mute || v.Why == "" {
		t.Errorf("host network: %+v, %v", v, err)
	}

	// A pod that is newer than the plan in force is mute.
	before := p.Plan()
	late := policy.Pod{Name: policy.Name{Namespace: "shop", Name: "late"}, UID: "5", Node: "here"}
	p.PutPod(late)
	if v, err := explain.Pod(p, late.Name, before); err != nil || !v.Mute || v.Enforced ||
		v.Group == "" {
		t.Errorf("late: %+v, %v", v, err)
	}
	if v, err := explain.Pod(p, late.Name, p.Plan()); err != nil || v.Mute || !v.Enforced ||
		!strings.Contains(v.Why, "not attached") {
		t.Errorf("late, in force: %+v, %v", v, err)
	}
}
