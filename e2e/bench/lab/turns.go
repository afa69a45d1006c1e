package lab

import (
	"context"
	"errors"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/tunnellog"
	"github.com/kubeveil/kubeveil/e2e/lab"
)

// waitConfigured waits until veild has logged more changes of the tunnels than before, and returns
// the additional changes.
func (s *scaled) waitConfigured(ctx context.Context,
	before int) (since []tunnellog.Change, err error) {
	err = lab.Until(ctx, 30*time.Second, func() error {
		all, err := s.configured()
		if err != nil {
			return lab.Stop(err)
		}
		if since = all[before:]; len(since) == 0 {
			return errors.New("veild has not changed the tunnels")
		}
		return nil
	})
	return since, err
}

// configured returns all changes of the tunnels that veild has logged, in order.
func (s *scaled) configured() ([]tunnellog.Change, error) { return tunnellog.Read(s.node) }
