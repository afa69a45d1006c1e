package keeper

import (
	"slices"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// FastPath forwards packets from link to link, past netfilter. Pods are named by their links.
type FastPath interface {
	// Move takes the fast path from all pods but these, calls apply and, if it succeeds, gives it to
	// these. Conntrack gets the open TCP connections of pods that lose it, and their UDP flows with
	// clients outside, if allows returns true.
	Move(links map[string]bool, allows func(nl.Opened) bool, apply func() error) error
	// Opened returns the TCP connections that were opened on the fast path and are not closed.
	Opened() ([]nl.Opened, error)
	// Fast returns the links that have the fast path now. Nil means that the fast path is off, or
	// that the links are not known yet.
	Fast() map[string]bool
}

// fastLinks returns the links that have the fast path, or nil if no link can have it. It may wait
// for a change of the links, so the caller must not hold mu.
func (k *Keeper) fastLinks() map[string]bool {
	if k.fast == nil {
		return nil
	}
	return k.fast.Fast()
}

// hasFast reports whether all links of a pod have the fast path.
func (f *inForce) hasFast(key policy.Key, fast map[string]bool) bool {
	links := f.links[key]
	return len(links) > 0 &&
		!slices.ContainsFunc(links, func(name string) bool { return !fast[name] })
}

// showFast returns whether a pod has the fast path, and if not, the reason.
func (f *inForce) showFast(key policy.Key, fast map[string]bool) *policy.FastPathView {
	if f.hasFast(key, fast) {
		return &policy.FastPathView{Has: true}
	}
	v := &policy.FastPathView{}
	var m *policy.Member
	if f.plan != nil {
		m = f.plan.Members[key]
	}
	switch {
	case len(f.links[key]) == 0:
		v.Why = "it is not attached yet"
	case m == nil:
		v.Why = "the plan in force does not know it yet"
	case !f.plan.Unjudged(m):
		v.Why = "policies apply to it"
	default:
		v.Why = "it is new, its bandwidth is limited, or another program is attached to its link"
	}
	return v
}
