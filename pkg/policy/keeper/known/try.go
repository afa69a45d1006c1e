package known

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/droplog"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
)

// Tried is what would change on this node if policies came in force.
type Tried struct {
	// Node is the node that answers.
	Node string `json:"node"`
	trial.Result
	// Problems are sentences about policies that would deny more than is written.
	Problems []string `json:"problems,omitempty"`
	// Notes are sentences about what the answer does not contain.
	Notes []string `json:"notes,omitempty"`
}

// Try judges the known connections of this node's pods, and the last packets that policies denied,
// first by the policies in force, then by the known policies with changed and without deleted. It
// changes nothing: it plans with a copy of the planner, and reads conntrack once. Try must run on a
// thread of the node's network namespace.
func (j *Judge) Try(changed policy.Policies, deleted []policy.Ref) (*Tried, error) {
	v, done, err := j.look()
	if err != nil {
		return nil, err
	}
	defer done()

	p := v.Planner
	before := p.Plan()
	for _, c := range []policy.Policies{v.Policies, changed} {
		if err := put(p, c); err != nil {
			return nil, err
		}
	}
	if err := remove(p, deleted); err != nil {
		return nil, err
	}
	after := p.Plan()
	o := trial.Config{Before: before, After: after, Own: v.own, Name: v.namer(after),
		Denying: func(plan *policy.Plan, d policy.Direction, f policy.Flow) ([]string, int) {
			if plan != after {
				return nil, 0 // The copy has the changed policies.
			}
			return denying(p, plan, d, f)
		}}
	var t *trial.Trial
	err = v.each(func() { t = trial.New(o) }, func(c policy.Known) { t.Known(c) })
	if err != nil {
		return nil, err
	}
	v.judgeDrops(t, o)
	return &Tried{Node: v.Node, Result: t.Result(), Notes: v.Notes,
		Problems: newProblems(before, after)}, nil
}

// put puts policies. It returns an error for a policy that the API server would refuse.
func put(p *planner.Planner, policies policy.Policies) error {
	for _, c := range policies.Namespaced {
		if !p.HasNamespace(c.Namespace) {
			return fmt.Errorf("NetworkPolicy %s: namespace %s does not exist: the cluster has %s",
				c.Name, c.Namespace, planner.Some(p.Namespaces()))
		}
		p.PutPolicy(c)
	}
	for _, c := range policies.Cluster {
		p.PutClusterPolicy(c)
	}
	return nil
}

// remove deletes policies. It returns an error for a policy that does not exist.
func remove(p *planner.Planner, deleted []policy.Ref) error {
	for _, r := range deleted {
		exist := p.Refs(r.Namespace)
		if !slices.Contains(exist, r) {
			var names []string
			for _, e := range exist {
				names = append(names, e.String())
			}
			return fmt.Errorf("there is no %s to delete; these exist: %s", r, planner.Some(names))
		}
		if r.Kind == policy.KindNetworkPolicy {
			p.DeletePolicy(policy.Name{Namespace: r.Namespace, Name: r.Name})
		} else {
			p.DeleteClusterPolicy(r.Name)
		}
	}
	return nil
}

// denying returns the policies that deny a flow by a plan of p, and how many it does not name.
func denying(p *planner.Planner, plan *policy.Plan, d policy.Direction, f policy.Flow) (
	names []string, more int) {
	if name, _ := explain.Decider(p, plan, d, f); name != "" {
		return []string{name}, 0
	}
	own := f.Dst
	if d == policy.Egress {
		own = f.Src
	}
	isolating := explain.Isolating(p, plan, d, own)
	return isolating.Some, isolating.More
}

// judgeDrops passes to t the last packets that policies denied.
func (v *look) judgeDrops(t *trial.Trial, o trial.Config) {
	if v.Drops == nil {
		return
	}
	attached := o.Before.Attached()
	for _, d := range v.Drops() {
		proto, known := policy.ProtoOf(d.Protocol)
		if !known || !slices.Contains(droplog.Reasons, d.Reason) {
			continue
		}
		t.Dropped(policy.Flow{Src: d.Src, Dst: d.Dst, Proto: proto, Port: d.DstPort,
			FromPod: attached[d.Src], ToPod: attached[d.Dst], ToNode: o.Own[d.Dst]})
	}
}

// maxProblems bounds the policies that a Tried names as problems.
const maxProblems = policy.MaxWritten

// newProblems returns why policies would deny more than is written, without those that do already.
func newProblems(before, after *policy.Plan) []string {
	text := func(d policy.Denial) string {
		kind := policy.KindNetworkPolicy + " " + d.Name.String()
		if d.Namespace == "" {
			kind = policy.KindClusterNetworkPolicy + " " + d.Name.Name
		}
		return kind + ": " + d.Problem
	}
	problems := map[string]bool{}
	for _, d := range after.Denials {
		problems[text(d)] = true
	}
	for _, d := range before.Denials {
		delete(problems, text(d))
	}
	all := slices.Sorted(maps.Keys(problems))
	if more := len(all) - maxProblems; more > 0 {
		all = append(all[:maxProblems], fmt.Sprintf("%d more policies would deny more than is "+
			"written", more))
	}
	return all
}
