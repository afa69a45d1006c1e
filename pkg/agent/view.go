package agent

import (
	"maps"
	"time"

	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
)

// view is the knowledge of the agent at one moment. A published view, and all that it points to,
// never changes. So any goroutine reads it without a lock.
type view struct {
	news
	outcome
}

// news holds what other goroutines pass to the loop: the source, the watch of the configuration and
// the path MTU prober. They publish it themselves, so that status shows it even while a turn hangs.
type news struct {
	cfg     config.Config
	state   cluster.State
	changed time.Time // when the source last sent a state
	waiting time.Time // since when state is not applied; zero if it is
	unread  time.Time // since when a state waits for a turn; zero if none waits
	pathMTU map[string]int
	// configProblem is a sentence about a configuration file that is not in force, or empty.
	configProblem string
}

// outcome holds the results of the last turn. The loop changes its own copy, and publishes it at
// the end of each turn.
type outcome struct {
	lastGood *cluster.Table
	applied  uint64
	last     plan.Decision
	underlay underlay.Link
	refusals []cluster.Refusal
	problems []string
	// flowtable is the text for Flowtable in telemetry.Status.
	flowtable string
}

// change publishes a view with the changes that f makes. Any goroutine may call it. f may run
// several times if views change at the same time, so it must only set fields.
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

// yield accepts a state from the source and causes a turn.
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

// foundMTU accepts a result of the prober and causes a turn. The full MTU of the device is not kept:
// if the device's MTU grows later, a route with the former one would remain for a moment, and
// WireGuard pads a packet that exceeds its route's MTU beyond what the path carries.
func (a *Agent) foundMTU(peer pathmtu.Peer, mtu int) {
	a.change(func(v *view) {
		v.pathMTU = maps.Clone(v.pathMTU)
		if v.pathMTU[peer.Name] = mtu; mtu >= peer.DeviceMTU {
			delete(v.pathMTU, peer.Name)
		}
	})
	a.log.Info("path MTU found", "peer", peer.Name, "mtu", mtu, "device", peer.DeviceMTU)
	a.poke()
}
