package keeper

import (
	"fmt"
	"reflect"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// turn plans queued changes and writes them. If broken is true, it reads the maps first. It makes
// one plan, which is bounded. If more is left, the next turn begins at once, after entry 0.
func (k *Keeper) turn(broken bool) error {
	if broken {
		state, err := k.table.State()
		if err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		k.own.planner.Adopt(state)
	}

	if k.setAPIServer() || broken {
		// Entry 0 is written on its own, so a failed write of another service cannot hold it back.
		if err := k.apply(k.own.planner.PlanAPIServer()); err != nil {
			return err
		}
		k.api.Written(k.own.entry)
	}

	if since := k.take(); k.own.pending.IsZero() {
		k.own.pending = since
	}

	changed := k.setAPIServer()
	again, err := k.write()
	if changed && err == nil {
		k.api.Written(k.own.entry)
	}
	done := err == nil && !again
	if done && k.own.late && k.own.taken {
		err = k.attach(0)
		done = err == nil
	}

	k.health.Update()
	if done && k.own.taken && !k.own.looked {
		k.own.looked = true
		k.findStale() // the last process may have ended before its own search
	}

	if done && !k.own.pending.IsZero() {
		k.observe(time.Since(k.own.pending))
		k.own.pending = time.Time{}
	}

	return err
}

// setAPIServer passes the current entry 0 to the planner, and reports whether it changed.
func (k *Keeper) setAPIServer() bool {
	e := k.api.Entry()
	if reflect.DeepEqual(e, k.own.entry) {
		return false
	}
	k.own.planner.SetAPIServer(e)
	k.own.entry = e
	k.log.Info("API servers of entry 0", "frontends", e.Frontends, "backends", e.Backends,
		"host", e.Host)
	return true
}

// take passes the queued changes to the planner and returns the arrival of the oldest change. Until
// all services are listed and the node's addresses are known, the planner only prepares decisions.
func (k *Keeper) take() (since time.Time) {
	d, ok := k.inbox.take()
	if !ok {
		for _, plan := range k.inbox.takeEarly() {
			plan()
		}
		k.own.planner.Prepare()
		return time.Time{}
	}
	k.own.planner.Hold(false)
	k.own.taken = true
	k.own.planner.SetNodeAddrs(d.nodes)
	k.own.planner.SetZone(d.zone)
	k.own.planner.SetOwnAddrs(d.own)
	k.own.planner.SetTunnels(d.tunnels)
	for _, c := range d.queue.all {
		if c.plan != nil {
			c.plan()
		}
		c.rest()
	}
	return d.since
}

// write plans and writes. It reports whether another turn is needed, which then begins at once.
func (k *Keeper) write() (again bool, err error) {
	changes := k.own.planner.Plan()
	if err := k.apply(changes); err != nil {
		return false, err
	}
	if changes.Again {
		k.loop.Poke()
	}
	return changes.Again, nil
}

// apply writes changes to the table, unless they are empty.
func (k *Keeper) apply(changes service.Changes) error {
	if changes.Empty() {
		return nil
	}
	err := k.table.Apply(changes)
	if tookDatagrams(changes) {
		k.findStale() // after an error too, because changes that were written are not planned again
	}
	if err == nil {
		k.log.Debug("table of services changed", "writes", changes.Writes())
	}
	return err
}

// failed records and logs the error of a write. A nil err records that writes succeed again.
func (k *Keeper) failed(err error) {
	was := k.shown.Load().Failed
	k.show(func(s *Status) {
		s.Failed = ""
		if err != nil {
			s.Failed = err.Error()
			s.Failures++
		}
	})
	k.health.Follows(err == nil)
	switch {
	case err != nil && was == "":
		k.log.Warn("the table of services cannot be written, so its last content stays in force; "+
			"trying again", "error", err)
	case err == nil:
		k.log.Info("the table of services could be written again")
	}
}
