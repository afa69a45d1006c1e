package agent

import (
	"context"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/hostnet"
)

const (
	// resync is how often all of the kernel is compared without a reason.
	resync = 30 * time.Second
	// retry is how soon after a turn that did not succeed.
	retry = time.Second
	// quiet is for how long changes of the kernel are gathered.
	quiet = 50 * time.Millisecond
	// calm is the least time between two turns that only the kernel asks for.
	calm = 500 * time.Millisecond
	// lossy is the least time between two readings of everything because messages were lost.
	lossy = 5 * time.Second
	// loopLimit is when a loop that has not gone round counts as stuck.
	loopLimit = 2*time.Minute + resync
)

// part is a part of the kernel's state that a turn need not look at before something changed it.
type part int

// The parts. At the resync one is read at a time, so that no turn reads all.
const (
	partUnderlay part = iota
	partRouting
	partGuard
	partTunnels
	parts
)

// pace says when the loop makes a turn without being asked for one by the source.
type pace struct {
	// part is the next to be compared without a reason, due is when.
	part part
	due  time.Time
	// asked is when the kernel last asked for a turn.
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

// wait returns how long a turn that the kernel asks for now has to wait.
func (p *pace) wait(now time.Time) time.Duration { return p.asked.Add(calm).Sub(now) }

// loop makes turns until ctx ends: at once when the source or the configuration changed, soon
// after one that did not succeed, when the kernel differs from what the last left, and now and
// then without a reason.
func (a *Agent) loop(ctx context.Context) error {
	a.pace.due = time.Now().Add(resync)
	for {
		a.takeKernel()
		if part, due := a.pace.next(time.Now()); due {
			a.forget(part)
		}
		began := time.Now()
		err := a.turn(ctx)
		a.metrics.ObserveApply(time.Since(began), err)
		a.health.Beat()
		if !a.rest(ctx, err != nil) {
			return nil
		}
	}
}

// rest waits for the next turn; false is that there is none, since ctx ended.
func (a *Agent) rest(ctx context.Context, failed bool) bool {
	pause := time.Until(a.pace.due)
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
		case <-a.wake:
			return true
		case <-next.C:
			if failed {
				a.forget(partRouting)
				a.forget(partGuard)
				a.forget(partTunnels)
			}
			return true
		case <-a.kernel.told:
			if wait := a.pace.wait(time.Now()); wait > 0 {
				calmed = time.After(wait)
				continue
			}
		case <-calmed:
			calmed = nil
		}

		if a.takeKernel() {
			a.pace.asked = time.Now()
			return true
		}
	}
}

// forget makes the next turn look at a part of the kernel.
func (a *Agent) forget(p part) {
	switch p {
	case partUnderlay:
		a.seen.underlay = false
	case partRouting:
		a.host.Forget()
	case partGuard:
		a.seen.guard = nil
	case partTunnels:
		a.tunnels.Forget()
	}
}

// takeKernel forgets what the kernel's messages concern, and reports whether a turn is needed:
// this process's own writes need none.
func (a *Agent) takeKernel() bool {
	c := a.kernel.take()
	needed := false
	for p, concerned := range map[part]bool{
		partUnderlay: c.Underlay,
		partRouting:  c.Routing || a.host.Differs(c),
		partGuard:    c.Guard,
		partTunnels:  c.Tunnels,
	} {
		if concerned {
			a.forget(p)
			needed = true
		}
	}
	if c.PodLinks && a.last.host.Flowtable && a.host.ForgetPodLinks() {
		needed = true
	}
	return needed
}

// poke wakes the loop; many pokes before it looks are one.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// kernelChanges gathers what the kernel told until the loop takes it.
type kernelChanges struct {
	told chan struct{}

	mu sync.Mutex // guards what follows
	c  hostnet.Change
}

func (k *kernelChanges) add(c hostnet.Change) {
	k.mu.Lock()
	k.c.Add(c)
	k.mu.Unlock()
	select {
	case k.told <- struct{}{}:
	default:
	}
}

func (k *kernelChanges) take() hostnet.Change {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.c
	k.c = hostnet.Change{}
	return c
}

// Pauses before the kernel is watched again. One that lasted for watchSteady is at fault no more.
const (
	watchPauseMin = 100 * time.Millisecond
	watchPauseMax = 10 * time.Second
	watchSteady   = time.Minute
)

// watchPause is the pause after a watch that broke.
func watchPause(last, lasted time.Duration) time.Duration {
	if last == 0 || lasted >= watchSteady {
		return watchPauseMin
	}
	return min(2*last, watchPauseMax)
}

// watchKernel tells the loop and the keeper of pods what somebody changed that may concern them.
func (a *Agent) watchKernel(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		began := time.Now()
		changes, err := hostnet.Watch(ctx, quiet, lossy)
		if err != nil && pause == 0 {
			return err
		}
		if err != nil {
			a.log.Warn("the kernel's changes cannot be watched, and are found by comparing alone",
				"every", resync, "error", err)
		} else {
			for c := range changes {
				a.changedKernel(c)
			}
		}
		pause = watchPause(pause, time.Since(began))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		// The subscription broke: whatever it missed is read anew.
		a.changedKernel(hostnet.All())
	}
}

func (a *Agent) changedKernel(c hostnet.Change) {
	a.pods.changed(c)
	a.changedPolicies(c)
	a.kernel.add(c)
}
