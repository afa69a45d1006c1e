package keeper

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Progress reports whether this node enforces the policies of a list, or of a revision.
type Progress struct {
	Node string `json:"node"`
	// Enforced reports whether the node enforces all of them.
	Enforced bool `json:"enforced"`
	// Policies counts the policies of the list or, for a revision, the policies that this node has
	// received.
	Policies int `json:"policies"`
	// Revision is the revision of the policies in force; empty unless Enforced.
	Revision string `json:"revision,omitempty"`
	// Missing has at most ten sentences about what is not in force.
	Missing []string `json:"missing,omitempty"`
}

// maxMissing bounds the sentences of a Progress.
const maxMissing = 10

// Progress compares the revisions of all policies, as the API server has them now, with what is in
// force.
func (k *Keeper) Progress(listed policy.Revisions) Progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := Progress{Node: k.node, Policies: len(listed)}
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
	if len(differ) > 0 {
		return p
	}
	return k.inForceLocked(p)
}

// ProgressTo compares a revision of all policies with what is in force. A list is not needed.
func (k *Keeper) ProgressTo(revision string) Progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := Progress{Node: k.node, Policies: k.planner.Count()}
	if problem := k.notKnownLocked(); problem != "" {
		p.Missing = []string{problem}
		return p
	}
	if told := k.revisionLocked(); told != revision {
		p.Missing = []string{fmt.Sprintf("revision %s of the policies was not received; the newest is %s",
			revision, told)}
		return p
	}
	return k.inForceLocked(p)
}

// inForceLocked completes p for a node that knows the right policies.
func (k *Keeper) inForceLocked(p Progress) Progress {
	switch now := k.shown.Load(); {
	case now.failed != nil:
		p.Missing = []string{fmt.Sprintf("the kernel refused the last change: %v", now.failed)}
	case now.plan == nil || now.enforced < k.policyTold:
		p.Missing = []string{"veild is putting the last change of policies in force"}
	default:
		p.Enforced, p.Revision = true, k.revisionLocked()
	}
	return p
}
