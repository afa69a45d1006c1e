package nodes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
)

// DaemonRolled restarts every veild under load, as kubectl rollout restart does. No flow may be
// lost. The pods of veil-wg, which carries packets if the kernel has no WireGuard, must not be
// replaced.
func DaemonRolled(ctx context.Context, s *session.Session) error {
	all, err := s.Load(ctx)
	if err != nil {
		return err
	}
	wg, err := s.PodsOf(ctx, session.WorkerSet)
	if err != nil {
		return err
	}
	old, err := s.PodsOf(ctx, session.VeildSet)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := s.Restart(ctx, session.VeildSet); err != nil {
		return err
	}

	s.Note("%d pods of veild replaced in %s", len(old), time.Since(began).Round(time.Second))
	errs := []error{s.Held(ctx, all, session.GapUndisturbed)}
	after, err := s.PodsOf(ctx, session.VeildSet)

	errs = append(errs, err, session.Replaced(session.VeildSet, old, after))

	after, err = s.PodsOf(ctx, session.WorkerSet)
	errs = append(errs, err)
	for node, uid := range after {
		if wg[node] != uid {
			errs = append(errs, fmt.Errorf("veil-wg of %s was replaced", node))
		}
	}

	return errors.Join(errs...)
}
