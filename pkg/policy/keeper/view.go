package keeper

import (
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
)

// view returns the state from which package known answers questions.
func (k *Keeper) view() (*known.View, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if problem := k.notKnownLocked(); problem != "" {
		return nil, errors.New(problem)
	}
	now := k.shown.Load()
	if now.plan == nil {
		return nil, errors.New("no policies are in force yet: see veilctl status")
	}

	v := &known.View{Node: k.node, Planner: k.planner.Copy(), Drops: k.drops,
		Nodes: known.NodeNames(k.nodeAddrs, k.prefixes)}
	if now.enforced != k.told {
		v.Notes = append(v.Notes,
			"a change from the API server is not in force yet, but the result includes it")
	}
	if n := now.status.Pending; n > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%d pods of this node are mute, because veild does "+
			"not know their policies yet, so the result lacks their connections", n))
	}
	if k.fast != nil {
		v.Opened = k.fast.Opened
	}
	return v, nil
}
