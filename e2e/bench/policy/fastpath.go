package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/policy/fastpath"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/lane"
	"github.com/kubeveil/kubeveil/e2e/bench/policy/world"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// caseFastPath is the time until a policy is in force that moves pods with open connections from
// the fast path to the slow path.
const caseFastPath = "change_fastpath"

// fastPaths measures the time until a policy is in force that moves pods from the fast path to the
// slow path. conntrack must then track exactly those of their open connections that the policy
// allows.
func (s *run) fastPaths(ctx context.Context, v suite.Values) (err error) {
	if err := room(s.scales.opened); err != nil {
		return err
	}
	alone := s.scales.node
	alone.Policies = 0
	n, f, err := newFastNode(world.Cluster{Scale: alone})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	n.Put(n, n.Nodes)
	if err := n.listed(ctx); err != nil {
		return err
	}

	few := (s.scales.opened + connectionShare - 1) / connectionShare
	for range s.Rounds {
		if err := wantFast(ctx, f, n.Pods); err != nil {
			return err
		}
		if err := f.Add(s.scales.opened, portOf); err != nil {
			return err
		}
		took, err := n.change(ctx, func() { n.PutPolicy(access(portRest)) })
		if err != nil {
			return err
		}
		v.Add(caseFastPath, bench.Millis(took))
		err = errors.Join(wantFast(ctx, f, n.Pods-n.Pods/world.Namespaces),
			n.tracks(s.scales.opened-few))
		if err != nil {
			return err
		}

		name := policy.Name{Namespace: world.NamespaceName(0), Name: access().Name.Name}
		if _, err := n.change(ctx, func() { n.DeletePolicy(name) }); err != nil {
			return err
		}
		if err := n.Do(lane.ForgetConnections); err != nil {
			return err
		}
		s.Progress("%.1f ms until a policy took the fast path from pods with %d connections",
			v.Last(caseFastPath), s.scales.opened)
	}
	return nil
}

// wantFast waits until exactly want pods have the fast path.
func wantFast(ctx context.Context, f *fastpath.FastPath, want int) error {
	return await(ctx, time.Millisecond, func() error {
		if got := len(f.Fast()); got != want {
			return fmt.Errorf("%d pods have the fast path, want %d", got, want)
		}
		return nil
	})
}
