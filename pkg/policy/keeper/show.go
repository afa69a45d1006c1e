package keeper

import (
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/explain"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Status returns the status of policies without Drops.
func (k *Keeper) Status() telemetry.Policy {
	fast := k.fastLinks()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.shown.Load()
	s := now.status
	s.Listed, s.Revoked = k.listed, k.revoker.Revoked.Load()
	s.Ignored = k.ignoredLocked()
	n, oldest := k.queue.count(k.now())
	s.Drafts, s.OldestDraft = n, oldest.Seconds()
	if k.listed {
		s.Told = k.revisionLocked()
	}
	if now.plan != nil {
		s.Revision = now.plan.Revision
	}

	if fast != nil {
		n := 0
		for key := range now.links {
			if now.hasFast(key, fast) {
				n++
			}
		}
		s.FastPath = &n
	}
	return s
}

// Problems returns one sentence per problem.
func (k *Keeper) Problems() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	problems := slices.Clone(k.shown.Load().problems)
	if n := len(k.held); n > 0 {
		problems = append(problems, fmt.Sprintf("%d new pods are mute until policies and namespaces "+
			"can be read again", n))
	}
	return append(problems, k.reopenedLocked()...)
}

// reopenedLocked names the pods of which too many flows were revoked at once.
func (k *Keeper) reopenedLocked() (problems []string) {
	plan := k.shown.Load().plan
	if plan == nil {
		return nil
	}
	for _, a := range k.revoker.Beyond() {
		for key, m := range plan.Members {
			if slices.Contains(m.Addrs, a) {
				problems = append(problems, fmt.Sprintf("pod %s: so many of its flows of UDP and SCTP "+
					"were revoked at once that late answers may open some of them again", key.Name))
			}
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// show publishes the status of the plan in force, and logs new problems.
func (k *Keeper) show(plan *policy.Plan, pending int, err error) {
	s := telemetry.Policy{Groups: len(plan.Groups), Chains: len(plan.Chains), Sets: plan.Sets.Len(),
		Elements: plan.Elements, Pending: pending, NotEnforced: notEnforced(plan.Denials),
		Policies: plan.Selecting}
	for _, m := range plan.Members {
		if len(m.Addrs) > 0 {
			s.Members++
		}
	}
	problems := problemsOf(plan)
	if err != nil {
		problems = append(problems, fmt.Sprintf("NetworkPolicy: %v", err))
	}

	old := map[string]bool{}
	for _, p := range k.shown.Load().problems {
		old[p] = true
	}
	k.publish(func(f *inForce) { f.status, f.problems, f.failed = s, problems, err })
	for _, p := range problems {
		if !old[p] {
			k.log.Warn("new problem of the node", "problem", p)
		}
	}
}

// maxProblems bounds the problems about the policies of one namespace.
const maxProblems = 16

// problemsOf returns the problems of a plan, sorted. It names the first of each namespace.
func problemsOf(plan *policy.Plan) (problems []string) {
	by := map[string][]string{}
	for key, m := range plan.Members {
		if m.Problem != "" {
			by[key.Namespace] = append(by[key.Namespace],
				fmt.Sprintf("policies of pod %s: %s", key.Name, m.Problem))
		}
	}
	for name, problem := range plan.Problems {
		by[name.Namespace] = append(by[name.Namespace],
			fmt.Sprintf("NetworkPolicy %s denies everything that it isolates: %s", name, problem))
	}

	for namespace, of := range by {
		slices.Sort(of)
		if more := len(of) - maxProblems; more > 0 {
			of = append(of[:maxProblems], fmt.Sprintf("policies of namespace %s: %d more problems: "+
				"see veilctl policy list", namespace, more))
		}
		problems = append(problems, of...)
	}
	for name, problem := range plan.ClusterProblems {
		problems = append(problems,
			fmt.Sprintf("ClusterNetworkPolicy %s denies more than is written: %s", name, problem))
	}
	slices.Sort(problems)
	return problems
}

// notEnforced counts policies that deny more than is written, by kind.
func notEnforced(denials []policy.Denial) map[string]int {
	by := map[string]int{"NetworkPolicy": 0, "ClusterNetworkPolicy": 0}
	for _, d := range denials {
		if d.Namespace == "" {
			by["ClusterNetworkPolicy"]++
		} else {
			by["NetworkPolicy"]++
		}
	}
	return by
}

// List describes all policies that select a pod of this node.
type List struct {
	Node string `json:"node"`
	// Listed reports whether policies were listed since the daemon began. If not, the policies of
	// the earlier daemon are still in force, and Policies is empty.
	Listed   bool                `json:"listed"`
	Policies []policy.PolicyView `json:"policies"`
	// LeftOut counts policies that are beyond a bound of Policies.
	LeftOut int `json:"leftOut,omitempty"`
	// Problems has one sentence per problem that is not in Policies.
	Problems []string `json:"problems,omitempty"`
	// DeniedLeftOut counts samples of denied packets whose rules are beyond a bound.
	DeniedLeftOut uint64 `json:"deniedLeftOut,omitempty"`
	// AllowedLeftOut counts sides of known connections whose rules are beyond a bound.
	AllowedLeftOut uint64 `json:"allowedLeftOut,omitempty"`
}

// List returns the policies that select a pod of this node.
func (k *Keeper) List() List {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := List{Node: k.node, Listed: k.listed, Policies: []policy.PolicyView{}}
	if problem := k.notKnownLocked(); problem != "" {
		l.Problems = append(l.Problems, problem)
		return l
	}

	now := k.shown.Load()
	l.Policies, l.LeftOut = explain.List(k.planner, now.plan)
	if n := now.status.Pending; n > 0 {
		l.Problems = append(l.Problems, fmt.Sprintf("%d pods of this node are mute, because veild "+
			"does not know their policies yet; veilctl policy show NAMESPACE/NAME shows whether a "+
			"pod is mute", n))
	}
	if now.failed != nil {
		l.Problems = append(l.Problems, fmt.Sprintf("the kernel refused the last change: %v",
			now.failed))
	}
	return l
}

// ShowPod returns the policies and rules that judge a pod of this node.
func (k *Keeper) ShowPod(name policy.Name) (*policy.PodView, error) {
	fast := k.fastLinks()
	k.mu.Lock()
	defer k.mu.Unlock()
	if problem := k.notKnownLocked(); problem != "" {
		return nil, fmt.Errorf("%s", problem)
	}
	now := k.shown.Load()
	v, err := explain.Pod(k.planner, name, now.plan)
	if p := k.pods[name]; err == nil && fast != nil && !p.HostNetwork {
		v.FastPath = now.showFast(policy.Key{Name: name, UID: p.UID}, fast)
	}
	return v, err
}

// notKnownLocked returns the reason why policies cannot be shown, or "" if they can.
func (k *Keeper) notKnownLocked() string {
	switch {
	case !k.listed:
		return "veild has not listed pods, namespaces and policies since it started, so the " +
			"earlier policies stay in force: see the problems in veilctl status"
	case k.prefixes == nil:
		return "veild has not read the nodes' pod prefixes since it started, so the earlier " +
			"policies stay in force: see the problems in veilctl status"
	}
	return ""
}
