package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/passage"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

const (
	// resync is the interval in which the whole kernel state is compared, even without a change.
	resync = 30 * time.Second
	// retry is the delay after a failed turn.
	retry = time.Second
	// quiet is the time for which notifications of the kernel are collected before they are passed
	// on.
	quiet = 50 * time.Millisecond
	// calm is the shortest time between two turns that only changes of the kernel cause.
	calm = 500 * time.Millisecond
	// lossy is the shortest time between two full readings of the kernel after lost notifications.
	lossy = 5 * time.Second
	// loopLimit is the time without a completed turn after which the loop counts as stuck.
	loopLimit = 2*time.Minute + resync
)

// part is a part of the kernel's state that turns do not read again until it may have changed.
type part int

// The parts. A resync makes each of several turns read one part, so that no turn reads all.
const (
	partUnderlay part = iota
	partRouting
	partGuard
	partTunnels
	parts
)

// pace decides when the loop runs a turn without news from the source.
type pace struct {
	// part is the part that the resync compares next, and due the time for it.
	part part
	due  time.Time
	// asked is the time of the last turn that only a change of the kernel caused.
	asked time.Time
}

// next returns the part that the resync compares now. It returns false if none is due.
func (p *pace) next(now time.Time) (part, bool) {
	if now.Before(p.due) {
		return 0, false
	}
	p.due = now.Add(resync / time.Duration(parts))
	next := p.part
	p.part = (p.part + 1) % parts
	return next, true
}

// wait returns the time until the next turn that only a change of the kernel causes.
func (p *pace) wait(now time.Time) time.Duration { return p.asked.Add(calm).Sub(now) }

// loop holds the state of the goroutine that changes the kernel. Only this goroutine uses it, so
// its fields need no lock. Run makes the loop before the goroutine starts.
type loop struct {
	*Agent
	outcome
	// key is the current key of the node. checkClock may have replaced the key of the start.
	key    wgkey.Private
	clock  clock
	pace   pace
	flap   plan.Flap
	probes probes
	// resolver and planner remember the last turn.
	resolver cluster.Resolver
	planner  plan.Planner
	// placed reports whether all features have accepted the places of nodes in the last turn.
	placed bool
	seen   seen
	// based reports whether this process has checked the base routes, see base.
	based bool
	// reaches proves the tunnels to nodes of other clusters.
	reaches reaches
	// passage holds the results of probes through the filters of other programs.
	passage passage.Proof
	// recalled reports whether recall has read the path MTUs of an earlier veild.
	recalled bool
}

// seen records what the loop need not read again until the kernel changes.
type seen struct {
	// underlay reports whether the underlay was read for the addresses in asked.
	underlay bool
	asked    []netip.Addr
	// guard holds the settings in force; nil means that they must be applied again.
	guard *guard.Settings
	// families are the families of the tunnels' underlay. changed is the time of their last change.
	families cluster.Families
	changed  time.Time
}

// run runs turns until ctx ends. A turn follows when the source or the configuration has changed,
// after a failed turn, when the kernel differs from the result of the last turn, and at the
// intervals of the resync.
func (l *loop) run(ctx context.Context) error {
	l.pace.due = time.Now().Add(resync)
	for {
		l.takeKernel()
		if part, due := l.pace.next(time.Now()); due {
			l.forget(part)
		}
		began := time.Now()
		err := l.turn(ctx)
		l.metrics.ObserveApply(time.Since(began), err)
		l.health.Beat()
		if !l.rest(ctx, err != nil) {
			return nil
		}
	}
}

// rest waits until the next turn is due. It returns false if ctx has ended. failed reports whether
// the last turn failed.
func (l *loop) rest(ctx context.Context, failed bool) bool {
	pause := time.Until(l.pace.due)
	if failed {
		pause = min(pause, retry)
	}

	next := time.NewTimer(pause)
	defer next.Stop()
	var calmed <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.wake:
			return true
		case <-next.C:
			if failed {
				l.forget(partRouting)
				l.forget(partGuard)
				l.forget(partTunnels)
			}
			return true
		case <-l.kernel.told:
			if wait := l.pace.wait(time.Now()); wait > 0 {
				calmed = time.After(wait)
				continue
			}
		case <-calmed:
			calmed = nil
		}

		if l.takeKernel() {
			l.pace.asked = time.Now()
			return true
		}
	}
}

// forget makes the next turn read a part of the kernel.
func (l *loop) forget(p part) {
	switch p {
	case partUnderlay:
		l.seen.underlay = false
	case partRouting:
		l.host.Forget()
	case partGuard:
		l.seen.guard = nil
	case partTunnels:
		l.tunnels.Forget()
	}
}

// takeKernel forgets the parts that the kernel's notifications concern, and reports whether a turn
// is needed. Notifications about this process's own writes need no turn.
func (l *loop) takeKernel() bool {
	c := l.kernel.take()
	if c.Filters {
		l.passage.FiltersChanged()
	}
	needed := false
	for p, concerned := range map[part]bool{
		partUnderlay: c.Underlay,
		partRouting:  c.Routing || l.host.Differs(c),
		partGuard:    c.Guard,
		// After a change of the underlay's family, endpoints of peers may move back to the old
		// family before the next tunnel.Manager.Watch.
		partTunnels: c.Tunnels || c.Underlay && time.Since(l.seen.changed) < 2*tunnel.WatchEvery,
	} {
		if concerned {
			l.forget(p)
			needed = true
		}
	}
	if c.PodLinks && l.last.Host.Flowtable && l.host.ForgetPodLinks() {
		needed = true
	}
	return needed
}
