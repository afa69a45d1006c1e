package keeper

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Progress reports whether this node enforces the policies of a list, or of a revision, for all
// pods or for the pods of one namespace.
type Progress struct {
	Node string `json:"node"`
	// Enforced reports whether the node enforces all of them.
	Enforced bool `json:"enforced"`
	// Policies counts the policies of the list that were compared or, for a revision, the policies
	// that this node has received.
	Policies int `json:"policies"`
	// Revision is the revision of the policies in force; empty unless Enforced.
	Revision string `json:"revision,omitempty"`
	// Missing has at most ten sentences about what is not in force.
	Missing []string `json:"missing,omitempty"`
}

// maxMissing bounds the sentences of a Progress.
const maxMissing = 10

// Progress compares the revisions of all policies, as the API server has them now, with what is in
// force. If namespace is not empty, it compares only what judges the pods of that namespace: its
// NetworkPolicies, and the ClusterNetworkPolicies.
func (k *Keeper) Progress(listed policy.Revisions, namespace string) Progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := Progress{Node: k.node}
	for ref := range listed {
		if namespace == "" || ref.Namespace == "" || ref.Namespace == namespace {
			p.Policies++
		}
	}
	if problem := k.notKnownLocked(); problem != "" {
		p.Missing = []string{problem}
		return p
	}

	differ := k.planner.Compare(listed, namespace)
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
	return k.inForceLocked(p, namespace)
}

// ProgressTo compares a revision of all policies with what is in force, as Progress does. A list is
// not needed.
func (k *Keeper) ProgressTo(revision, namespace string) Progress {
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
	return k.inForceLocked(p, namespace)
}

// inForceLocked completes p for a node that knows the right policies. A large change of one
// namespace that is not in force yet does not matter to another one.
func (k *Keeper) inForceLocked(p Progress, namespace string) Progress {
	now := k.shown.Load()
	held := now.held
	if namespace != "" {
		held = slices.DeleteFunc(slices.Clone(held), func(n string) bool { return n != namespace })
	}
	switch {
	case now.failed != nil:
		p.Missing = []string{fmt.Sprintf("the kernel refused the last change: %v", now.failed)}
	case len(held) > 0:
		some := held[:min(len(held), maxMissing)]
		text := "veild is putting large changes in force, of the namespaces " +
			strings.Join(some, ", ")
		if more := len(held) - len(some); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		p.Missing = []string{text}
	case now.plan == nil || now.reached < k.policyTold:
		p.Missing = []string{"veild is putting the last change of policies in force"}
	default:
		p.Enforced, p.Revision = true, k.revisionLocked()
	}
	return p
}
