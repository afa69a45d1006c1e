package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// idlePods is the number of idle pods on each of two nodes. They are idle for idleFor.
	idlePods = 10
	idleFor  = 10 * time.Minute
)

// PodsIdle runs idle pods on two nodes. The packets that their kernels send by themselves, such as
// router solicitations, must be counted as harmless: no source counts as spoofed, no packet as
// blocked, and no node has a new problem. The pods have the families of the cluster, which the case
// notes. For pods with only IPv4, see e2e/node/network.TestIdlePodsAreNotSpoofers.
func PodsIdle(ctx context.Context, s *session.Session) error {
	workers, err := s.Workers(ctx)
	if err != nil {
		return err
	}
	own, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	workers = workers[:2]
	before := map[string]telemetry.Status{}
	for _, w := range workers {
		if before[w.Name], err = s.NodeStatus(ctx, w.Name); err != nil {
			return err
		}
	}

	var pods []*remote.Pod
	for i, w := range workers {
		for j := range idlePods {
			// A pod with Args has no probe, so it is idle.
			pods = append(pods, &remote.Pod{Name: fmt.Sprintf("idle-%d-%d", i, j), Node: w.Name,
				Args: []string{"echo-serve"}})
		}
	}
	if err := own.RunAll(ctx, pods...); err != nil {
		return err
	}
	s.Note("%d pods with addresses of IPv%s", len(pods),
		strings.Join(familiesOf(pods[0].Addrs), " and IPv"))
	if err := poll.Pause(ctx, idleFor); err != nil {
		return err
	}

	var errs []error
	for _, w := range workers {
		after, err := s.NodeStatus(ctx, w.Name)
		if err == nil {
			err = quiet(before[w.Name], after, idlePods)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", w.Name, err))
			continue
		}
		s.Note("%s: %d packets of the pods' kernels counted apart", w.Name,
			harmless(after)-harmless(before[w.Name]))
	}
	return errors.Join(errs...)
}

// quiet compares the states of a node before and after pods were added. It returns an error if the
// node has too few pods, has dropped packets that are not harmless, or has a new problem. before
// may count pods of the last case, which end meanwhile.
func quiet(before, after telemetry.Status, pods int) error {
	var errs []error
	if after.Pods < pods {
		errs = append(errs, fmt.Errorf("%d pods, want %d", after.Pods, pods))
	}

	had := map[string]uint64{}
	for _, d := range before.Guard.Drops {
		had[d.Name] = d.Packets
	}
	for _, d := range after.Guard.Drops {
		// Datagrams of other hosts on the underlay do not come from pods.
		if d.Harmless || d.Name == chains.TunnelUnknownSource {
			continue
		}
		if d.Packets != had[d.Name] {
			errs = append(errs, fmt.Errorf("%s: %d packets, before %d", d.Name, d.Packets,
				had[d.Name]))
		}
	}

	for _, p := range after.Problems {
		if !slices.Contains(before.Problems, p) {
			errs = append(errs, fmt.Errorf("problem %q", p))
		}
	}
	return errors.Join(errs...)
}

// harmless returns the number of dropped packets of kinds that every pod sends.
func harmless(s telemetry.Status) (packets uint64) {
	for _, d := range s.Guard.Drops {
		if d.Harmless {
			packets += d.Packets
		}
	}
	return packets
}
