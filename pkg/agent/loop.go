package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

const (
	// resync is the interval of full comparisons with the kernel without a reason.
	resync = 30 * time.Second
	// retry is the delay after a failed turn.
	retry = time.Second
	// quiet is how long changes of the kernel are collected.
	quiet = 50 * time.Millisecond
	// calm is the shortest time between two turns that only the kernel causes.
	calm = 500 * time.Millisecond
	// lossy is the shortest time between two full readings after lost notifications.
	lossy = 5 * time.Second
	// loopLimit is when a loop without a turn counts as stuck.
	loopLimit = 2*time.Minute + resync
)

// part is a part of the kernel's state that a turn skips until it changes.
type part int

// The parts. The resync reads one at a time, so that no turn reads all.
const (
	partUnderlay part = iota
	partRouting
	partGuard
	partTunnels
	parts
)

// pace decides when the loop makes a turn without news from the source.
type pace struct {
	// part is the next part to compare without a reason, and due the time for it.
	part part
	due  time.Time
	// asked is the time of the last turn that a change in the kernel caused.
	asked time.Time
}

// next returns the part that is to be compared now, if one is.
func (p *pace) next(now time.Time) (part, bool) {
	if now.Before(p.due) {
		return 0, false
	}
	p.due = now.Add(resync / time.Duration(parts))
	next := p.part
	p.part = (p.part + 1) % parts
	return next, true
}

// wait returns how long a turn that the kernel causes now has to wait.
func (p *pace) wait(now time.Time) time.Duration { return p.asked.Add(calm).Sub(now) }

// loop has what only the goroutine that changes the kernel knows, so its fields need no lock. Run
// fills it before that goroutine starts.
type loop struct {
	*Agent
	outcome
	// key is the key of the node now. clock may have replaced it since the start.
	key    wgkey.Private
	clock  clock
	pace   pace
	flap   flap
	probes probes
	seen   seen
	// based reports whether the base routes were checked by this process.
	based bool
	// passage reports whether pods' packets pass the filters of other programs.
	passage passageProof
	// recalled reports whether the path MTU of an earlier veild was looked up.
	recalled bool
}

// seen is what the loop need not read again until the kernel changes.
type seen struct {
	// underlay reports whether the underlay was read for the addresses in asked.
	underlay bool
	asked    []netip.Addr
	// guard is the settings in force.
	guard *guard.Settings
	// families has the families of the tunnels' underlay, changed the time of their last change.
	families cluster.Families
	changed  time.Time
}

// run makes turns until ctx ends. It makes one at once when the source or the configuration
// changed, and soon after a failed one. It also makes one when the kernel differs from what the
// last turn left, and at intervals without a reason.
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

// rest waits for the next turn; it returns false once ctx has ended.
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
// is needed: this process's own writes need none.
func (l *loop) takeKernel() bool {
	c := l.kernel.take()
	l.passage.filtersChanged = l.passage.filtersChanged || c.Filters
	needed := false
	for p, concerned := range map[part]bool{
		partUnderlay: c.Underlay,
		partRouting:  c.Routing || l.host.Differs(c),
		partGuard:    c.Guard,
		// Before Watch next looks, endpoints of peers may have moved back to the old family.
		partTunnels: c.Tunnels || c.Underlay && time.Since(l.seen.changed) < 2*tunnel.WatchEvery,
	} {
		if concerned {
			l.forget(p)
			needed = true
		}
	}
	if c.PodLinks && l.last.host.Flowtable && l.host.ForgetPodLinks() {
		needed = true
	}
	return needed
}
