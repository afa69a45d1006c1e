package agent

import (
	"maps"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

// view is what the agent knows at one moment. A published view never changes, and neither does what
// it points to, so any goroutine reads it without a lock.
type view struct {
	news
	outcome
}

// news is what other goroutines pass to the loop: the source, the watch of the configuration and
// the path MTU prober. A turn that hangs must not hide news, so they publish it themselves.
type news struct {
	cfg     config.Config
	state   cluster.State
	changed time.Time // when the source last yielded
	waiting time.Time // since when state is not applied
	unread  time.Time // since when a state waits for a turn
	pathMTU map[string]int
	// configProblem is what is wrong with the configuration file while an earlier one is in force;
	// else empty.
	configProblem string
}

// outcome is what the last turn left. The loop changes its own copy, and publishes it at the end of
// each turn.
type outcome struct {
	lastGood *cluster.Table
	applied  uint64
	last     decision
	underlay underlay.Link
	refusals []cluster.Refusal
	problems []string
	// flowtable is its text in telemetry.Status.
	flowtable string
}

// change publishes a view with the changes that f makes. Any goroutine may call it. f may run again
// when another change comes first, so it only sets fields.
func (a *Agent) change(f func(*view)) {
	for {
		old := a.view.Load()
		next := *old
		f(&next)
		if a.view.CompareAndSwap(old, &next) {
			return
		}
	}
}

// config returns the configuration in force.
func (a *Agent) config() config.Config { return a.view.Load().cfg }

// yield accepts a state from the source.
func (a *Agent) yield(s cluster.State) {
	now := time.Now()
	a.change(func(v *view) {
		v.state, v.changed = s, now
		if v.waiting.IsZero() {
			v.waiting = now
		}
		if v.unread.IsZero() {
			v.unread = now
		}
	})
	a.poke()
}

// foundMTU accepts a result of the probe.
func (a *Agent) foundMTU(peer pathmtu.Peer, mtu int) {
	a.change(func(v *view) {
		v.pathMTU = maps.Clone(v.pathMTU)
		v.pathMTU[peer.Name] = mtu
	})
	a.log.Info("path MTU found", "peer", peer.Name, "mtu", mtu, "device", peer.DeviceMTU)
	a.poke()
}
