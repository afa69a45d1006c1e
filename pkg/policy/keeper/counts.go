package keeper

import (
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

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
	denied, leftOut := k.denied.Retain(policies)
	for r, n := range denied {
		of(r).Denied = n
	}
	l.DeniedLeftOut = leftOut
	allowed, leftOut, err := k.known.Allowed()
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
