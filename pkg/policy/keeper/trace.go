package keeper

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy/keeper/revocation"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/trace"
)

const (
	// traceTries bounds how often Trace compares again after a difference, since a plugin or this
	// Keeper may have been writing.
	traceTries = 4
	traceAgain = 50 * time.Millisecond
)

// Trace judges a connection by the plan in force and by the kernel's table, and compares both. It
// must run on a thread of the node's network namespace.
func (k *Keeper) Trace(ctx context.Context, q trace.Question) (*trace.Trace, error) {
	node, err := revocation.OwnAddrs()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		t, writes, err := k.planned(q, node)
		if err != nil {
			return nil, err
		}
		if err := t.AskKernel(); err != nil {
			return nil, err
		}

		still := k.unchangedSince(writes)
		if still && (!t.Differs || try >= traceTries) {
			return t, nil
		}
		if try >= 10*traceTries {
			return nil, errors.New("policies change faster than they can be compared: try again")
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(traceAgain):
		}
	}
}

// planned answers by the plan in force. writes is for unchangedSince.
func (k *Keeper) planned(q trace.Question, own map[netip.Addr]bool) (t *trace.Trace, writes uint64,
	err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if problem := k.notKnownLocked(); problem != "" {
		return nil, 0, errors.New(problem)
	}
	// This is read before the plan: if a plan is written meanwhile, unchangedSince returns false.
	writes = k.writes.Load()
	now := k.shown.Load()
	if now.plan == nil {
		return nil, 0, errors.New("no policies are in force yet: see veilctl status")
	}
	t, err = trace.Judge{Planner: k.planner, Plan: now.plan, Node: k.node, Own: own}.Trace(q)
	if err == nil && now.enforced != k.told {
		t.Note = "a change is not in force yet"
	}
	return t, writes, err
}
