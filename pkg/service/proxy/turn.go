package proxy

import (
	"fmt"
	"reflect"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// rounds bounds the plans of one turn. The next turn begins at once.
const rounds = 8

// turn plans the queued changes and writes them. If broken is true, it reads the maps first.
func (p *Proxy) turn(broken bool) error {
	if broken {
		state, err := p.table.State()
		if err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		p.planner.Adopt(state)
	}

	if p.setAPIServer() || broken {
		// Entry 0 is written on its own, so a failed write of another service cannot hold it back.
		if err := p.apply(p.planner.PlanAPIServer()); err != nil {
			return err
		}
		p.api.written(p.entry)
	}

	if since := p.take(); p.pending.IsZero() {
		p.pending = since
	}

	changed := p.setAPIServer()
	err := p.write()
	if changed && err == nil {
		p.api.written(p.entry)
	}
	if err == nil && p.late && p.taken {
		err = p.attach(0)
	}

	p.health.update()
	if err == nil && p.taken && !p.looked {
		p.looked = true
		p.findStale() // the last process may have ended before its own search
	}

	if err == nil && !p.pending.IsZero() {
		p.observe(time.Since(p.pending))
		p.pending = time.Time{}
	}

	return err
}

// setAPIServer hands the planner the current entry 0, and reports whether it changed.
func (p *Proxy) setAPIServer() bool {
	e := p.api.entry()
	if reflect.DeepEqual(e, p.entry) {
		return false
	}
	p.planner.SetAPIServer(e)
	p.entry = e
	p.log.Info("API servers of entry 0", "frontends", e.Frontends, "backends", e.Backends,
		"host", e.Host)
	return true
}

// take hands the queued changes to the planner and returns the arrival of the oldest one. It does
// nothing until all services are listed and the node's addresses are known.
func (p *Proxy) take() (since time.Time) {
	p.mu.Lock()
	if !p.listed || !p.nodesSeen {
		p.mu.Unlock()
		return time.Time{}
	}
	queue, since := p.queue, p.since
	p.queue, p.since = changes{}, time.Time{}
	nodes, tell := p.nodes, p.nodesNew
	tunnels, reserve := p.tunnels, p.tunnelsNew
	p.nodesNew, p.tunnelsNew = false, false
	p.mu.Unlock()
	p.planner.Hold(false)
	p.taken = true
	if tell {
		p.planner.SetNodeAddrs(nodes)
	}
	if reserve {
		p.planner.SetTunnels(tunnels)
	}
	for _, f := range queue.all {
		f()
	}
	return since
}

// write plans and writes until no service waits for room that the last plan freed.
func (p *Proxy) write() error {
	for range rounds {
		changes := p.planner.Plan()
		if err := p.apply(changes); err != nil {
			return err
		}
		if !changes.Again {
			return nil
		}
	}
	p.poke()
	return nil
}

// apply writes changes to the table, unless they are empty.
func (p *Proxy) apply(changes service.Changes) error {
	if changes.Empty() {
		return nil
	}
	err := p.table.Apply(changes)
	if tookDatagrams(changes) {
		p.findStale() // after an error too: changes that were written are not planned again
	}
	if err == nil {
		p.log.Debug("table of services changed", "writes", changes.Writes())
	}
	return err
}

// failed records and logs the error of a write. A nil err records that writes succeed again.
func (p *Proxy) failed(err error) {
	p.mu.Lock()
	was := p.status.Failed
	p.status.Failed = ""
	if err != nil {
		p.status.Failed = err.Error()
		p.status.Failures++
	}
	p.mu.Unlock()
	p.health.follows(err == nil)
	switch {
	case err != nil && was == "":
		p.log.Warn("the table of services cannot be written; it stays as it is and is tried again",
			"error", err)
	case err == nil:
		p.log.Info("the table of services could be written again")
	}
}
