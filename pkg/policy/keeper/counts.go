package keeper

import (
	"slices"
	"strings"
	"sync"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/revocation"
)

// Bounds of the rules whose denials are counted.
const (
	maxRules = 4096
	// maxRulesOf bounds the rules of the policies of one namespace, or of the cluster.
	maxRulesOf = 256
)

// denials counts samples of denied packets by rule. Samples of a rule beyond a bound are counted in
// leftOut only.
type denials struct {
	mu      sync.Mutex
	counts  map[policy.RuleName]uint64
	rules   map[string]int // by namespace
	leftOut uint64
}

func namespaceOf(name string) string {
	namespace, _, namespaced := strings.Cut(name, "/")
	if !namespaced {
		return ""
	}
	return namespace
}

// add counts a sample for each policy that denied it.
func (d *denials) add(by denier) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts == nil {
		d.counts, d.rules = map[policy.RuleName]uint64{}, map[string]int{}
	}
	for _, name := range by.policies {
		r := policy.RuleName{Policy: name, Direction: by.direction, Rule: by.rule}
		namespace := namespaceOf(name)
		if _, has := d.counts[r]; !has {
			if len(d.counts) >= maxRules || d.rules[namespace] >= maxRulesOf {
				d.leftOut++
				continue
			}
			d.rules[namespace]++
		}
		d.counts[r]++
	}
}

// retain forgets the rules of all policies except these, and returns the counts.
func (d *denials) retain(policies map[string]bool) (counts map[policy.RuleName]uint64,
	leftOut uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts = map[policy.RuleName]uint64{}
	for r, n := range d.counts {
		if policies[r.Policy] {
			counts[r] = n
			continue
		}
		delete(d.counts, r)
		d.rules[namespaceOf(r.Policy)]--
	}
	return counts, d.leftOut
}

// ListCounted returns List with the counts of rules. It must run on a thread of the node's network
// namespace.
func (k *Keeper) ListCounted() List {
	l := k.List()
	if len(l.Policies) == 0 {
		return l
	}
	views := map[string]*policy.PolicyView{}
	policies := map[string]bool{}
	for i := range l.Policies {
		v := &l.Policies[i]
		views[v.Policy], policies[v.Policy] = v, true
	}

	counts := map[policy.RuleName]*policy.RuleCount{}
	of := func(r policy.RuleName) *policy.RuleCount {
		if counts[r] == nil {
			counts[r] = &policy.RuleCount{RuleName: r}
		}
		return counts[r]
	}
	denied, leftOut := k.denied.retain(policies)
	for r, n := range denied {
		of(r).Denied = n
	}
	l.DeniedLeftOut = leftOut
	allowed, leftOut, err := k.allowed()
	if err != nil {
		l.Problems = append(l.Problems, "known connections are not counted: "+err.Error())
	}
	l.AllowedLeftOut = leftOut
	for r, n := range allowed {
		of(r).Allowed = n
	}

	for r, c := range counts {
		if v := views[r.Policy]; v != nil {
			v.Rules = append(v.Rules, *c)
		}
	}
	for _, v := range views {
		slices.SortFunc(v.Rules, func(a, b policy.RuleCount) int {
			return strings.Compare(a.Direction+" "+a.Rule, b.Direction+" "+b.Rule)
		})
	}
	return l
}

// maxSidesCounted bounds the different sides of flows whose rules are looked up. A pod may have as
// many connections as conntrack has room for.
const maxSidesCounted = 1 << 14

// judged is one side of a flow. Connections with equal sides are allowed by the same rules.
type judged struct {
	egress bool
	flow   policy.Flow
}

// allowed counts the known connections that each rule allows. A connection counts for each rule
// that allows it. leftOut counts the sides of connections beyond maxSidesCounted.
func (k *Keeper) allowed() (counts map[policy.RuleName]int, leftOut uint64, err error) {
	if !k.trying.TryLock() {
		return nil, 0, errBusy
	}
	defer k.trying.Unlock()
	own, err := revocation.OwnAddrs()
	if err != nil {
		return nil, 0, err
	}
	p, _, err := k.copyPlanner()
	if err != nil {
		return nil, 0, err
	}

	plan := p.Plan()
	judge := plan.JudgesKnown(own)
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
	err = k.eachKnown(plan, begin, func(c policy.Known) {
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
	for j, n := range flows {
		d, f := policy.Ingress, j.flow
		if j.egress {
			d = policy.Egress
		}
		f.FromPod, f.ToPod = j.egress, !j.egress
		for _, r := range p.Allowing(plan, d, f) {
			counts[r] += n
		}
	}
	return counts, leftOut, err
}
