package planner_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/compile"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

var webKey, web = policytest.Web, policytest.Web.Name

var shop, from, labelled = policytest.Shop, policytest.From, policytest.Labelled

func expect(t *testing.T, p *planner.Planner, f policy.Flow, want policy.Verdict) {
	t.Helper()
	if got := p.Plan().Judge(f); got != want {
		t.Errorf("%+v: %s, want %s", f, got, want)
	}
}

func TestPodWithoutPoliciesIsOpen(t *testing.T) {
	expect(t, shop(), from(2, 8080), policy.Allow)
}

func TestPodThatIsNotKnownIsMute(t *testing.T) {
	p := shop()
	p.DeletePod(web)
	expect(t, p, from(2, 8080), policy.DenyPending)
	p.PutPod(policy.Pod{Name: web, UID: "another", Node: "here"})
	expect(t, p, from(2, 8080), policy.DenyPending)
}

// A tenant who may write pods writes a pod with the UID of another tenant's pod.
func TestPodOfAnotherNamespaceCannotSpeakForAnother(t *testing.T) {
	p := shop()
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
		Isolates: [2]bool{true, true}})
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "evil", Name: "web"}, UID: "1", Node: "here",
		Mirror: true})
	expect(t, p, from(2, 8080), policy.DenyIngress)
}

func TestNamedPortIsResolvedForEachPod(t *testing.T) {
	p := shop()
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "http"},
		Isolates: [2]bool{true},
		Rules: [2][]policy.Rule{{{Peers: []policy.Peer{{Pods: labelled("app", "client")}},
			Ports: []policy.Port{{Proto: policy.TCP, Name: "http"}}}}}})
	expect(t, p, from(2, 8080), policy.Allow)
	expect(t, p, from(2, 80), policy.DenyIngress)
	expect(t, p, from(3, 8080), policy.DenyIngress)
}

func TestPolicyBeyondABoundDeniesAll(t *testing.T) {
	var many []policy.Port
	for i := range compile.MaxLines + 1 {
		many = append(many, policy.Port{Proto: policy.TCP, First: uint16(1 + 2*i),
			Last: uint16(1 + 2*i)})
	}

	var values []string
	var except []netip.Prefix
	for i := range compile.MaxRanges + 1 {
		values = append(values, fmt.Sprint(i))
		a := netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0})
		except = append(except, netip.PrefixFrom(a, 25))
	}

	everything := policy.Rule{}
	for name, tt := range map[string]struct {
		rules    []policy.Rule
		subjects policy.Selector
		problem  string
	}{
		"ports": {[]policy.Rule{everything, {Ports: many}}, nil, "more than 4096 lines"},
		"selector": {[]policy.Rule{everything, {Peers: []policy.Peer{{Pods: &policy.Selector{
			{Key: "a", Op: policy.NotIn, Values: values}}}}}}, nil, "more than 1024"},
		"exceptions": {[]policy.Rule{everything, {Peers: []policy.Peer{{Block: &policy.Block{
			CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: except}}}}}, nil,
			"more than 4096 ranges"},
		"exception outside": {[]policy.Rule{everything, {Peers: []policy.Peer{{Block: &policy.Block{
			CIDR:   netip.MustParsePrefix("10.0.0.0/8"),
			Except: []netip.Prefix{netip.MustParsePrefix("11.0.0.0/9")},
		}}}}}, nil, "does not contain"},
		"ports upside down": {[]policy.Rule{everything,
			{Ports: []policy.Port{{Proto: policy.TCP, First: 2, Last: 1}}}},
			nil, "endPort 1 is below port 2"},
		"subjects": {[]policy.Rule{everything},
			policy.Selector{{Key: "a", Op: policy.In, Values: values}},
			"all pods of the namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			p := shop()
			np := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "large"},
				Subjects: tt.subjects,
				Isolates: [2]bool{true}, Rules: [2][]policy.Rule{tt.rules}}
			p.PutPolicy(np)
			expect(t, p, from(2, 8080), policy.DenyIngress)
			if got := p.Plan().Problems[np.Name]; !strings.Contains(got, tt.problem) {
				t.Errorf("problem %q, want %q in it", got, tt.problem)
			}
			p.DeletePolicy(np.Name)
			expect(t, p, from(2, 8080), policy.Allow)
			if len(p.Plan().Problems) > 0 {
				t.Error("the problem outlives the policy")
			}
		})
	}
}

// A chain that allows everything and a chain that allows nothing have different names.
func TestRuleThatAllowsEverythingIsNotNoRule(t *testing.T) {
	p := shop()
	np := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "all"}, Isolates: [2]bool{true}}
	p.PutPolicy(np)
	expect(t, p, from(2, 8080), policy.DenyIngress)
	np.Rules[policy.Ingress] = []policy.Rule{{}}
	p.PutPolicy(np)
	expect(t, p, from(2, 8080), policy.Allow)
}

func TestEqualPodsShareAGroup(t *testing.T) {
	p := shop()
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "deny"},
		Isolates: [2]bool{true}})
	for i := 3; i < 100; i++ {
		p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: fmt.Sprint(i)},
			UID: fmt.Sprint(i), Node: "here"})
	}
	if plan := p.Plan(); len(plan.Groups) != 1 || len(plan.Chains) != 1 || len(plan.Members) != 98 {
		t.Errorf("%d groups, %d chains, %d members", len(plan.Groups), len(plan.Chains),
			len(plan.Members))
	}
}

func TestChangeOfAPodKeepsOtherSetsAndAllChains(t *testing.T) {
	p := shop()
	p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "shop", Name: "two"},
		Isolates: [2]bool{true},
		Rules: [2][]policy.Rule{{
			{Peers: []policy.Peer{{Pods: labelled("app", "client")}}},
			{Peers: []policy.Peer{{Pods: labelled("app", "other")}}},
		}}})
	before := p.Plan()
	p.PutPod(policy.Pod{Name: policy.Name{Namespace: "shop", Name: "new"}, UID: "9", Node: "there",
		Labels: map[string]string{"app": "other"}, Addrs: policytest.PodAddrs(5)})
	after := p.Plan()
	changed := 0
	for name, s := range after.Sets.All() {
		if before.Sets.Get(name) != s {
			changed++
		}
	}
	if after.Sets.Len() != 2 || changed != 1 {
		t.Errorf("%d of %d sets changed, want 1 of 2", changed, after.Sets.Len())
	}
	for name, c := range after.Chains {
		if before.Chains[name] != c {
			t.Errorf("chain %s was made again", name)
		}
	}
}

func TestPlanJudgesAsTheAPISays(t *testing.T) {
	all := append(policytest.Flows(), policytest.Errors()...)
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			w.Change(t, p)
			if rapid.IntRange(0, 3).Draw(t, "look") > 0 {
				continue
			}
			plan := p.Plan()
			for i := rapid.IntRange(0, 6).Draw(t, "from"); i < len(all); i += 7 {
				if got, want := plan.Judge(all[i]), w.Judge(all[i]); got != want {
					t.Fatalf("%+v: %s, want %s", all[i], got, want)
				}
			}
		}
		plan := p.Plan()
		judge := plan.Judges()
		for _, f := range all {
			if got, want := judge(f), w.Judge(f); got != want || plan.Judge(f) != want {
				t.Fatalf("%+v: %s and %s, want %s", f, got, plan.Judge(f), want)
			}
		}

		fresh := w.TellAll().Plan()
		if diff := cmp.Diff(fresh, plan, policytest.CompareAddrs); diff != "" {
			t.Fatalf("a planner that received the same at once plans otherwise (-fresh +kept):\n%s",
				diff)
		}
	})
}

// TestUnjudgedPodsAreAllowedEverything checks that the plan allows all packets between unjudged
// pods, and between such a pod and another host. So these packets may take the fast path.
func TestUnjudgedPodsAreAllowedEverything(t *testing.T) {
	all := policytest.Flows()
	rapid.Check(t, func(t *rapid.T) {
		w := policytest.DrawWorld(t)
		p := w.NewPlanner()
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			w.Change(t, p)
		}
		plan := p.Plan()
		unjudged := map[netip.Addr]bool{}
		for _, m := range plan.Members {
			for _, a := range m.Addrs {
				unjudged[a] = plan.Unjudged(m)
			}
		}
		for _, f := range all {
			if f.FromPod && !unjudged[f.Src] || f.ToPod && !unjudged[f.Dst] {
				continue
			}
			for _, f.Midstream = range []bool{false, true} {
				if got := w.Judge(f); got != policy.Allow {
					t.Fatalf("%+v between unjudged pods: %s", f, got)
				}
			}
		}
	})
}

// large returns a planner with 10,000 pods in 100 namespaces and 1,000 policies with 100 rules
// each. Of the pods, 1 % are on this node.
func large(b *testing.B) *planner.Planner {
	b.Helper()
	p := planner.New("node-0")
	for n := range 100 {
		ns := fmt.Sprint("ns-", n)
		p.PutNamespace(policy.Namespace{Name: ns,
			Labels: map[string]string{"team": fmt.Sprint(n % 10)}})
		for i := range 100 {
			p.PutPod(largePod(n, i, fmt.Sprint("app-", i%10)))
		}
		for k := range 10 {
			np := policy.Policy{Name: policy.Name{Namespace: ns, Name: fmt.Sprint(k)},
				Subjects: *labelled("app", fmt.Sprint("app-", k)), Isolates: [2]bool{true, true}}
			for r := range 100 {
				np.Rules[r%2] = append(np.Rules[r%2], policy.Rule{
					Peers: []policy.Peer{{Namespaces: labelled("team", fmt.Sprint(r%10)),
						Pods: labelled("app", fmt.Sprint("app-", r/10))}},
					Ports: []policy.Port{{Proto: policy.TCP, First: uint16(1000 + r),
						Last: uint16(1000 + r)}}})
			}
			p.PutPolicy(np)
		}
	}
	return p
}

func largePod(n, i int, app string) policy.Pod {
	addr := netip.AddrFrom4([4]byte{10, byte(i), byte(n), byte(i)})
	return policy.Pod{Name: policy.Name{Namespace: fmt.Sprint("ns-", n), Name: fmt.Sprint(i)},
		UID: fmt.Sprint(n, "-", i), Node: fmt.Sprint("node-", i), Addrs: []netip.Addr{addr},
		Labels: map[string]string{"app": app, "pod-template-hash": fmt.Sprint(i)}}
}

func BenchmarkFirstPlanOf10kPods1kPolicies100kRules(b *testing.B) {
	for range b.N {
		b.StopTimer()
		p := large(b)
		b.StartTimer()
		p.Plan()
	}
}

func BenchmarkPlanAfterRelabelling(b *testing.B) {
	p := large(b)
	p.Plan()
	for i := 0; b.Loop(); i++ {
		p.PutPod(largePod(1, 50, fmt.Sprint("app-", i%10)))
		p.Plan()
	}
}

func BenchmarkPlanAfterEditingAPolicy(b *testing.B) {
	p := large(b)
	p.Plan()
	for i := 0; b.Loop(); i++ {
		p.PutPolicy(policy.Policy{Name: policy.Name{Namespace: "ns-1", Name: "0"},
			Isolates: [2]bool{i%2 == 0, true}})
		p.Plan()
	}
}

func FuzzCompiledPolicyIsBounded(f *testing.F) {
	f.Add("198.18.0.0/16", "198.18.3.0/24", uint16(1), uint16(0), "k", byte(0))
	f.Fuzz(func(t *testing.T, cidr, except string, first, last uint16, text string, op byte) {
		c, _ := netip.ParsePrefix(cidr)
		e, _ := netip.ParsePrefix(except)
		s := policy.Selector{{Key: text, Op: policy.Operator(op), Values: []string{text}}}
		np := policy.Policy{Name: policy.Name{Namespace: "shop", Name: "fuzzed"},
			Isolates: [2]bool{true, true}}
		np.Rules[op&1] = []policy.Rule{{
			Peers: []policy.Peer{{Block: &policy.Block{CIDR: c, Except: []netip.Prefix{e, c}}},
				{Pods: &s, Namespaces: &s}},
			Ports: []policy.Port{{Proto: policy.Proto(op), First: first, Last: last},
				{Proto: policy.TCP, Name: text}},
		}}
		p := shop()
		p.PutPolicy(np)
		plan := p.Plan()
		plan.Judge(from(2, first))
		for _, c := range plan.Chains {
			if len(c.Lines) > compile.MaxLines {
				t.Errorf("%d lines", len(c.Lines))
			}
		}
	})
}
