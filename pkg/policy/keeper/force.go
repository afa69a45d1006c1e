package keeper

import (
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/table"
)

// planLocked returns the planner's plan with its revision.
func (k *Keeper) planLocked() *policy.Plan {
	plan := k.planner.Plan()
	plan.Revision = k.revisionLocked()
	return plan
}

// revisionLocked returns the revision of the policies that the source told of.
func (k *Keeper) revisionLocked() string {
	if k.revision == "" || k.revisionTold != k.policyTold {
		k.revision, k.revisionTold = k.planner.Revision(), k.policyTold
	}
	return k.revision
}

// force brings a plan in force, which has at least the first told changes of the source.
func (k *Keeper) force(plan *policy.Plan, told uint64) (table.Result, error) {
	k.mu.Lock()
	k.writes++
	k.mu.Unlock()
	var result table.Result
	err := k.revoker.force(plan, func() (err error) {
		result, err = k.table.Apply(plan)
		return err
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	if err == nil {
		k.plan, k.enforced = plan, told
	}
	return result, err
}

// unchangedSince reports whether the Keeper wrote nothing since then, and writes nothing now.
func (k *Keeper) unchangedSince(writes uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return writes == k.writes && writes%2 == 0
}
