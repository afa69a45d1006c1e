package keeper

import (
	"fmt"
	"reflect"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// rounds bounds the plans of one turn. The next turn begins at once.
const rounds = 8

// turn plans the queued changes and writes them. If broken is true, it reads the maps first.
func (k *Keeper) turn(broken bool) error {
	if broken {
		state, err := k.table.State()
		if err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		k.planner.Adopt(state)
	}

	if k.setAPIServer() || broken {
		// Entry 0 is written on its own, so a failed write of another service cannot hold it back.
		if err := k.apply(k.planner.PlanAPIServer()); err != nil {
			return err
		}
		k.api.written(k.entry)
	}

	if since := k.take(); k.pending.IsZero() {
		k.pending = since
	}

	changed := k.setAPIServer()
	err := k.write()
	if changed && err == nil {
		k.api.written(k.entry)
	}
	if err == nil && k.late && k.taken {
		err = k.attach(0)
	}

	k.health.update()
	if err == nil && k.taken && !k.looked {
		k.looked = true
		k.findStale() // the last process may have ended before its own search
	}

	if err == nil && !k.pending.IsZero() {
		k.observe(time.Since(k.pending))
		k.pending = time.Time{}
	}

	return err
}

// setAPIServer hands the planner the current entry 0, and reports whether it changed.
func (k *Keeper) setAPIServer() bool {
	e := k.api.entry()
	if reflect.DeepEqual(e, k.entry) {
		return false
	}
	k.planner.SetAPIServer(e)
	k.entry = e
	k.log.Info("API servers of entry 0", "frontends", e.Frontends, "backends", e.Backends,
		"host", e.Host)
	return true
}

// take hands the queued changes to the planner and returns the arrival of the oldest one. It does
// nothing until all services are listed and the node's addresses are known.
func (k *Keeper) take() (since time.Time) {
	k.mu.Lock()
	if !k.listed || !k.nodesSeen {
		k.mu.Unlock()
		return time.Time{}
	}
	queue, since := k.queue, k.since
	k.queue, k.since = changes{}, time.Time{}
	nodes, tell := k.nodes, k.nodesNew
	tunnels, reserve := k.tunnels, k.tunnelsNew
	k.nodesNew, k.tunnelsNew = false, false
	k.mu.Unlock()
	k.planner.Hold(false)
	k.taken = true
	if tell {
		k.planner.SetNodeAddrs(nodes)
	}
	if reserve {
		k.planner.SetTunnels(tunnels)
	}
	for _, f := range queue.all {
		f()
	}
	return since
}

// write plans and writes until no service waits for room that the last plan freed.
func (k *Keeper) write() error {
	for range rounds {
		changes := k.planner.Plan()
		if err := k.apply(changes); err != nil {
			return err
		}
		if !changes.Again {
			return nil
		}
	}
	k.loop.Poke()
	return nil
}

// apply writes changes to the table, unless they are empty.
func (k *Keeper) apply(changes service.Changes) error {
	if changes.Empty() {
		return nil
	}
	err := k.table.Apply(changes)
	if tookDatagrams(changes) {
		k.findStale() // after an error too: changes that were written are not planned again
	}
	if err == nil {
		k.log.Debug("table of services changed", "writes", changes.Writes())
	}
	return err
}

// failed records and logs the error of a write. A nil err records that writes succeed again.
func (k *Keeper) failed(err error) {
	k.mu.Lock()
	was := k.status.Failed
	k.status.Failed = ""
	if err != nil {
		k.status.Failed = err.Error()
		k.status.Failures++
	}
	k.mu.Unlock()
	k.health.follows(err == nil)
	switch {
	case err != nil && was == "":
		k.log.Warn("the table of services cannot be written; it stays as it is and is tried again",
			"error", err)
	case err == nil:
		k.log.Info("the table of services could be written again")
	}
}
