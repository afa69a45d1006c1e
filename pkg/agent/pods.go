package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// podWait is how long a turn waits for plugins, all pods together: one that hangs must not
// hold up the loop, and with it every other pod.
const podWait = time.Second

// keepPods repairs what was flushed of the pods on this node, and gives them the MTU
// that is in force; 0 leaves it. A pod that is on its way out is no error. One that a
// plugin is at work on for longer than podWait is an error, and left to the next turn.
func (a *Agent) keepPods(ctx context.Context, mtu int) error {
	ctx, cancel := context.WithTimeout(ctx, podWait)
	defer cancel()
	records, err := a.pods.List()
	errs := []error{err, a.pruneAddrs()}
	timed := map[string]bool{}
	for _, r := range records {
		if r.Took > 0 {
			timed[r.HostLink] = true
			// What was there before this process was observed by the last.
			if a.podTimed != nil && !a.podTimed[r.HostLink] {
				a.metrics.ObserveAdd(r.Took)
			}
		}
	}
	repaired, err := a.pods.RepairAll(ctx, records)
	errs = append(errs, err)
	for _, r := range repaired {
		for _, c := range r.Changed {
			a.log.Warn("repaired a pod's link; something flushed it", "pod", r.Record.ContainerID, "link", r.Record.HostLink, "what", c)
		}
		errs = append(errs, ofPod(r.Record, r.Err))
	}
	for _, r := range records {
		errs = append(errs, ofPod(r, a.keepMTU(ctx, r, mtu)))
	}
	a.mu.Lock()
	a.podCount, a.podTimed = len(records), timed
	a.mu.Unlock()
	return errors.Join(errs...)
}

// ofPod names the pod of an error; one that is being removed has none.
func ofPod(r pod.Record, err error) error {
	if err == nil || errors.Is(err, pod.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("pod %s: %w", r.ContainerID, err)
}

// keepMTU gives a pod the MTU that is in force.
func (a *Agent) keepMTU(ctx context.Context, r pod.Record, mtu int) error {
	if mtu == 0 || r.MTU == mtu {
		return nil
	}
	if _, err := a.pods.SetMTU(ctx, r, mtu); err != nil {
		return err
	}
	a.log.Info("changed a pod's MTU", "pod", r.ContainerID, "from", r.MTU, "to", mtu)
	return nil
}

// peerChanges counts the peers that c touches.
func peerChanges(c tunnel.Changes) int {
	n := 0
	for _, d := range c.Configure {
		n += len(d.Peers)
	}
	return n
}

// pruneAddrs forgets addresses of links that are gone without a DEL.
func (a *Agent) pruneAddrs() error {
	_, err := a.pods.PruneAddrs()
	if errors.Is(err, pod.ErrNotFound) {
		return nil
	}
	return err
}
