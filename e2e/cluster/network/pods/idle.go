package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const (
	// idlePods is how many pods idle on each of two nodes, for idleFor.
	idlePods = 10
	idleFor  = 10 * time.Minute
)

// PodsIdle runs pods that nothing talks to on two nodes. What their kernels send by themselves,
// such as router solicitations, is counted apart: no source is spoofed, no packet blocked, and no
// node has a problem that it did not have before. Pods have the families of the cluster, which the
// case notes. Pods with IPv4 alone are idle in e2e/node/network.TestIdlePodsAreNotSpoofers.
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
			// With arguments it is not probed.
			pods = append(pods, &remote.Pod{Name: fmt.Sprintf("idle-%d-%d", i, j), Node: w.Name,
				Args: []string{"echo-serve"}})
		}
	}
	if err := own.RunAll(ctx, pods...); err != nil {
		return err
	}
	s.Note("%d pods with addresses of IPv%s", len(pods),
		strings.Join(familiesOf(pods[0].Addrs), " and IPv"))
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		return context.Cause(ctx)
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

// quiet is an error if a node with so many more pods than before dropped a packet of a pod
// meanwhile, harmless ones aside, or has a problem now that it did not have before.
func quiet(before, after telemetry.Status, pods int) error {
	var errs []error
	if after.Pods < before.Pods+pods {
		errs = append(errs, fmt.Errorf("%d pods, before %d: want %d more", after.Pods, before.Pods,
			pods))
	}

	had := map[string]uint64{}
	for _, d := range before.Guard.Drops {
		had[d.Name] = d.Packets
	}
	for _, d := range after.Guard.Drops {
		// Datagrams of others on the underlay belong to no pod.
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

// harmless returns how many packets were dropped that every pod sends.
func harmless(s telemetry.Status) (packets uint64) {
	for _, d := range s.Guard.Drops {
		if d.Harmless {
			packets += d.Packets
		}
	}
	return packets
}
