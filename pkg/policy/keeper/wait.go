package keeper

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Progress reports whether this node enforces the policies of a list.
type Progress struct {
	Node string `json:"node"`
	// Enforced reports whether it does.
	Enforced bool `json:"enforced"`
	// Policies counts those of the list.
	Policies int `json:"policies"`
	// Missing says what is not in force, one sentence each, at most ten.
	Missing []string `json:"missing,omitempty"`
}

// maxMissing bounds the sentences of a Progress.
const maxMissing = 10

// Progress compares a list of all policies, as the API server has it now, with what is in force.
func (k *Keeper) Progress(listed policy.Policies) Progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := Progress{Node: k.node, Policies: listed.Len()}
	if problem := k.notKnownLocked(); problem != "" {
		p.Missing = []string{problem}
		return p
	}

	differ := k.planner.Compare(listed)
	for i, text := range differ {
		if i == maxMissing {
			p.Missing = append(p.Missing, fmt.Sprintf("and %d more", len(differ)-i))
			break
		}
		p.Missing = append(p.Missing, text)
	}
	switch {
	case len(differ) > 0:
	case k.failed != nil:
		p.Missing = []string{fmt.Sprintf("the kernel did not take the last change: %v", k.failed)}
	case k.plan == nil || k.enforced < k.policyTold:
		p.Missing = []string{"the last change of policies is being put in force"}
	default:
		p.Enforced = true
	}
	return p
}
