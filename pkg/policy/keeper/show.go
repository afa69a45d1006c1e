package keeper

import (
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Status is what is shown of a Keeper.
type Status struct {
	// Listed reports whether every kind was listed.
	Listed bool `json:"listed"`
	// Told is the revision of all policies of the cluster that the source told of, Revision that of
	// those in force. Either is empty while it is not known since the daemon began.
	Told     string `json:"told,omitempty"`
	Revision string `json:"revision,omitempty"`
	Policies int    `json:"policies"`
	Groups   int    `json:"groups"`
	Chains   int    `json:"chains"`
	Sets     int    `json:"sets"`
	// NotEnforced counts those of Policies that deny more than is written, by kind.
	NotEnforced map[string]int `json:"notEnforced,omitempty"`
	// Elements are the elements of the sets of peers.
	Elements int `json:"elements"`
	// Members are attached pods that are in a group, Pending those that are mute.
	Members int `json:"members"`
	Pending int `json:"pending"`
	// FastPath are the pods that have the fast path; nil where no pod can have it.
	FastPath *int `json:"fastPath,omitempty"`
	// Ignored are addresses that identify no pod.
	Ignored *telemetry.IgnoredAddrs `json:"ignored,omitempty"`
	// Revoked are connections that were deleted because they are no longer allowed.
	Revoked  uint64   `json:"revoked"`
	Problems []string `json:"problems,omitempty"`
}

// Status returns what is to be shown.
func (k *Keeper) Status() Status {
	fast := k.fastLinks()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	s.Listed, s.Revoked = k.listed, k.revoker.revoked.Load()
	s.Ignored = k.ignoredLocked()
	if k.listed {
		s.Told = k.revisionLocked()
	}
	if k.plan != nil {
		s.Revision = k.plan.Revision
	}

	if fast != nil {
		n := 0
		for key := range k.links {
			if k.hasFastLocked(key, fast) {
				n++
			}
		}
		s.FastPath = &n
	}
	return s
}

// show publishes what is in force, and logs what is wrong and was not before.
func (k *Keeper) show(plan *policy.Plan, pending int, err error) {
	s := Status{Groups: len(plan.Groups), Chains: len(plan.Chains), Sets: len(plan.Sets),
		Pending: pending, NotEnforced: notEnforced(plan.Denials)}
	selecting := map[policy.Name]bool{}
	for key, m := range plan.Members {
		if len(m.Addrs) > 0 {
			s.Members++
		}
		for _, name := range m.Policies {
			selecting[name] = true
		}
		if m.Problem != "" {
			s.Problems = append(s.Problems, fmt.Sprintf("policies of pod %s: %s", key.Name, m.Problem))
		}
	}
	s.Policies = len(selecting)
	for _, set := range plan.Sets {
		s.Elements += len(set.Addrs) + len(set.Ranges) + len(set.Named)
	}
	for name, problem := range plan.Problems {
		s.Problems = append(s.Problems,
			fmt.Sprintf("NetworkPolicy %s denies everything that it isolates: %s", name, problem))
	}
	for name, problem := range plan.ClusterProblems {
		s.Problems = append(s.Problems,
			fmt.Sprintf("ClusterNetworkPolicy %s denies more than is written: %s", name, problem))
	}
	slices.Sort(s.Problems)
	if err != nil {
		s.Problems = append(s.Problems, fmt.Sprintf("NetworkPolicy: %v", err))
	}

	k.mu.Lock()
	old := k.status.Problems
	k.status, k.failed = s, err
	k.mu.Unlock()
	for _, p := range s.Problems {
		if !slices.Contains(old, p) {
			k.log.Warn("not as it should be", "problem", p)
		}
	}
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

// List is what is shown of all policies that select a pod of this node.
type List struct {
	Node string `json:"node"`
	// Listed reports whether policies were listed since the daemon began. Before, those of before
	// stay in force and none is known here.
	Listed   bool                `json:"listed"`
	Policies []policy.PolicyView `json:"policies"`
	// Problems say what is not as it should be, beside those of Policies.
	Problems []string `json:"problems,omitempty"`
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

	l.Policies = k.planner.List(k.plan)
	if n := k.status.Pending; n > 0 {
		l.Problems = append(l.Problems, fmt.Sprintf("%d pods of this node are mute: the daemon does "+
			"not know yet how to judge them; veilctl policy show says whether one is", n))
	}
	if k.failed != nil {
		l.Problems = append(l.Problems, fmt.Sprintf("the kernel did not take the last change: %v",
			k.failed))
	}
	return l
}

// ShowPod returns what judges a pod of this node.
func (k *Keeper) ShowPod(name policy.Name) (*policy.PodView, error) {
	fast := k.fastLinks()
	k.mu.Lock()
	defer k.mu.Unlock()
	if problem := k.notKnownLocked(); problem != "" {
		return nil, fmt.Errorf("%s", problem)
	}
	v, err := k.planner.ShowPod(name, k.plan)
	if p := k.pods[name]; err == nil && fast != nil && !p.HostNetwork {
		v.FastPath = k.showFastLocked(policy.Key{Name: name, UID: p.UID}, fast)
	}
	return v, err
}

// notKnownLocked says why policies cannot be shown; empty where they can be.
func (k *Keeper) notKnownLocked() string {
	switch {
	case !k.listed:
		return "pods, namespaces and policies were not listed since veild started: what was in " +
			"force before stays so, see veilctl status"
	case k.prefixes == nil:
		return "the nodes' pod prefixes are not known since veild started: what was in force " +
			"before stays so, see veilctl status"
	}
	return ""
}
