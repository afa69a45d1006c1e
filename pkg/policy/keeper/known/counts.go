package known

import (
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/droplog"
)

// maxSidesCounted bounds the different sides of flows whose rules are looked up, and countFor the
// time of these look-ups. A pod may have as many connections as conntrack has room for, and
// thousands of rules for each.
const (
	maxSidesCounted = 1 << 14
	countFor        = 3 * time.Second
)

// judged is one side of a flow. Connections with equal sides are allowed by the same rules.
type judged struct {
	egress bool
	flow   policy.Flow
}

// Allowed counts the known connections that each rule allows. A connection counts for each rule
// that allows it. leftOut counts the sides of connections that are not counted or have a rule that
// is not, because of a bound.
func (j *Judge) Allowed() (counts map[policy.RuleName]int, leftOut uint64, err error) {
	v, done, err := j.look()
	if err != nil {
		return nil, 0, err
	}
	defer done()

	plan := v.Planner.Plan()
	judge := plan.JudgesKnown(v.own)
	flows := map[judged]int{}
	add := func(egress bool, f policy.Flow) {
		side := judged{egress, f}
		if flows[side] == 0 && len(flows) >= maxSidesCounted {
			leftOut++
			return
		}
		flows[side]++
	}
	begin := func() { clear(flows); leftOut = 0 }
	err = v.each(begin, func(c policy.Known) {
		v, f, ofPods := judge(c)
		if !ofPods || v != policy.Allow {
			return
		}
		if f.FromPod {
			add(true, f)
		}
		if f.ToPod {
			add(false, f)
		}
	})

	counts = map[policy.RuleName]int{}
	rules, end := map[string]int{}, time.Now().Add(countFor)
	for side, n := range flows {
		if time.Now().After(end) {
			leftOut++
			continue
		}
		d, f := policy.Ingress, side.flow
		if side.egress {
			d = policy.Egress
		}
		f.FromPod, f.ToPod = side.egress, !side.egress
		beyond := false
		for _, r := range explain.Allowing(v.Planner, plan, d, f) {
			if namespace := droplog.NamespaceOf(r.Policy); counts[r] == 0 {
				if beyond = beyond || len(counts) >= droplog.MaxRules ||
					rules[namespace] >= droplog.MaxRulesOf; beyond {
					continue
				}
				rules[namespace]++
			}
			counts[r] += n
		}
		if beyond {
			leftOut++
		}
	}
	return counts, leftOut, err
}
