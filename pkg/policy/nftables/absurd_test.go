package nftables_test

import (
	"slices"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// crowded returns a lab of four pods: a server with a policy and a client, and in the namespace of
// absurd policies a victim and a bystander with a policy.
func crowded(t *testing.T) (*lab, *planner.Planner) {
	l := newLab(t, 1, 2, 3, 4)
	w := policytest.NewWorld()
	p := planner.New(w.Node)
	attach(w, p, 1, map[string]string{"app": "server"})
	attach(w, p, 2, map[string]string{"app": "client"})
	p.PutPolicy(serverPolicy())

	for i, app := range map[int]string{3: "victim", 4: "bystander"} {
		pod := policy.Pod{Name: policy.Name{Namespace: policytest.AbsurdNamespace, Name: app},
			UID: app, Node: w.Node, Labels: map[string]string{"app": app}}
		p.PutPod(pod)
		p.SetAttached(policy.Key{Name: pod.Name, UID: pod.UID}, policytest.PodAddrs(i))
	}
	p.PutPolicy(policy.Policy{
		Name:     policy.Name{Namespace: policytest.AbsurdNamespace, Name: "bystander"},
		Isolates: [2]bool{true},
		Subjects: policy.Selector{{Key: "app", Values: []string{"bystander"}}},
		Rules: [2][]policy.Rule{{{Ports: []policy.Port{
			{Proto: policy.TCP, First: 53, Last: 80}}}}}})
	return l, p
}

// about reports whether a flow is from pod i or to it.
func about(f policy.Flow, i int) bool {
	own := policytest.PodAddrs(i)
	return slices.Contains(own, f.Src) || slices.Contains(own, f.Dst)
}

func TestKernelJudgesOtherPodsAsWithoutAnAbsurdPolicy(t *testing.T) {
	l, p := crowded(t)
	var flows []policy.Flow
	for i, f := range l.flows() {
		if i%3 == 0 && !f.Midstream {
			flows = append(flows, f)
		}
	}
	send := func() []bool {
		t.Helper()
		plan := p.Plan()
		l.apply(plan)
		allowed := func(f policy.Flow) bool { return plan.Judge(f) == policy.Allow }
		arrived := l.send(flows, allowed)
		for i, f := range flows {
			if arrived[i] != allowed(f) {
				t.Errorf("%+v: arrived %t, the plan says %s", f, arrived[i], plan.Judge(f))
			}
		}
		return arrived
	}
	without := send()

	for name, absurd := range policytest.Absurd() {
		t.Run(name, func(t *testing.T) {
			p.PutPolicy(absurd)
			reached := 0
			for i, arrived := range send() {
				switch f := flows[i]; {
				case about(f, 3) && arrived:
					t.Errorf("%+v arrived", f)
				case about(f, 3):
					if without[i] {
						reached++
					}
				case name == "subjects" && about(f, 4):
					// The policy selects this pod too. The pod's own policy still allows its flows;
					// send checked that.
				case arrived != without[i]:
					t.Errorf("%+v: arrived %t, without the policy %t", f, arrived, without[i])
				}
			}
			if reached == 0 { // the control
				t.Error("without the policy no packet from or to the victim passes")
			}

			p.DeletePolicy(absurd.Name)
			if again := send(); !slices.Equal(again, without) {
				t.Error("verdicts differ after the policy was deleted")
			}
		})
	}
}
