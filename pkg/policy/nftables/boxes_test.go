package nftables

import (
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/message"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/policytest"
)

// selected returns a planner with one attached pod of this node with the label app.
func selected(app string, policies []policy.Policy) *planner.Planner {
	p := planner.New("here")
	p.PutNamespace(policy.Namespace{Name: "a"})
	pod := policy.Pod{Name: policy.Name{Namespace: "a", Name: app}, UID: app, Node: "here",
		Labels: map[string]string{"app": app}}
	p.PutPod(pod)
	p.SetAttached(policy.Key{Name: pod.Name, UID: app}, policytest.PodAddrs(1))
	for _, np := range policies {
		p.PutPolicy(np)
	}
	return p
}

// size returns the number of sets and rules of the table for a plan, and the number of messages
// that make it.
func size(plan *policy.Plan) (sets, rules, messages int) {
	var p maker
	var cached chains.Fragments
	want := p.want(plan)
	for _, c := range want.chains {
		rules += len(c.Rules(&cached))
	}
	var tx message.Transaction
	diff(nil, want, &cached).write(&tx, want, &cached)
	return len(want.sets), rules, tx.Len()
}

// The kernel finds a set by walking a list, and a packet walks the rules. So their number must not
// grow with lines that each have a different peer and port.
func TestLinesWithPortsOfTheirOwnAreFewSetsAndRules(t *testing.T) {
	bare, bareRules, bareMessages := size(selected("app", nil).Plan())
	for _, lines := range []int{256, 4096, 16384} {
		for _, dual := range []bool{false, true} {
			t.Run(fmt.Sprint(lines, " dual ", dual), func(t *testing.T) {
				p := selected("app", policytest.OwnPorts("a", "app", lines, dual))
				plan := p.Plan()
				for _, m := range plan.Members {
					if m.Problem != "" || len(plan.Problems) > 0 {
						t.Fatalf("denied: %q, %v", m.Problem, plan.Problems)
					}
				}
				sets, rules, messages := size(plan)
				if sets -= bare; sets > 4 {
					t.Errorf("%d sets", sets)
				}
				if rules -= bareRules; rules > 16 {
					t.Errorf("%d rules", rules)
				}
				if messages -= bareMessages; messages > lines/message.Chunk+40 {
					t.Errorf("%d messages", messages)
				}
			})
		}
	}
}
