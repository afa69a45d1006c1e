package known

import "github.com/kubeveil/kubeveil/pkg/policy"

// maxSidesCounted bounds the different sides of flows whose rules are looked up. A pod may have as
// many connections as conntrack has room for.
const maxSidesCounted = 1 << 14

// judged is one side of a flow. Connections with equal sides are allowed by the same rules.
type judged struct {
	egress bool
	flow   policy.Flow
}

// Allowed counts the known connections that each rule allows. A connection counts for each rule
// that allows it. leftOut counts the sides of connections beyond maxSidesCounted.
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
	for side, n := range flows {
		d, f := policy.Ingress, side.flow
		if side.egress {
			d = policy.Egress
		}
		f.FromPod, f.ToPod = side.egress, !side.egress
		for _, r := range v.Planner.Allowing(plan, d, f) {
			counts[r] += n
		}
	}
	return counts, leftOut, err
}
