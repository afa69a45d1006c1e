package planner

import (
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// turn is an amount of work: endpoints to decide about, and frontends to write.
type turn struct{ endpoints, frontends int }

// normalTurn bounds a Plan. A turn of this size takes some milliseconds, in which a change of an
// API server waits.
var normalTurn = turn{endpoints: 20_000, frontends: 4096}

func (t turn) plus(o turn) turn {
	return turn{t.endpoints + o.endpoints, t.frontends + o.frontends}
}

func (t turn) within(o turn) bool {
	return t.endpoints <= o.endpoints && t.frontends <= o.frontends
}

// size returns about how much work it is to decide about e.
func (e *entry) size(h here) (t turn) {
	for _, s := range e.slices {
		t.endpoints += s.Endpoints.Len() * max(1, len(s.Ports))
	}
	if s := e.service; s != nil {
		t.frontends = len(s.Ports) * (len(s.ClusterIPs) + 2*(len(s.ExternalIPs)+
			len(s.LoadBalancerIPs)))
		if s.HasNodePort() {
			t.frontends += 2 * len(s.Ports) * len(h.addrs)
		}
	}
	t.frontends = max(t.frontends, len(e.now.claims))
	return t
}

// queue holds services, each once, in the order in which they were noted last. The zero value is
// empty. Its memory and the time of its methods follow the number of its services.
type queue struct {
	last  uint64
	noted map[service.Name]uint64 // the number of the last note
	order []note                  // by number; those that noted does not have are void
}

type note struct {
	name   service.Name
	number uint64
}

// note adds a service, or moves it to the end.
func (q *queue) note(n service.Name) {
	if q.noted == nil {
		q.noted = make(map[service.Name]uint64)
	}
	q.last++
	q.noted[n] = q.last
	q.order = append(q.order, note{n, q.last})
	if len(q.order) > 2*len(q.noted)+64 {
		q.order = slices.DeleteFunc(q.order, q.void)
	}
}

func (q *queue) void(n note) bool { return q.noted[n.name] != n.number }

func (q *queue) has(n service.Name) bool { return q.noted[n] > 0 }

func (q *queue) len() int { return len(q.noted) }

func (q *queue) names() []service.Name { return slices.Collect(maps.Keys(q.noted)) }

func (q *queue) remove(n service.Name) {
	delete(q.noted, n)
	if len(q.noted) == 0 { // a map does not shrink
		*q = queue{last: q.last}
	}
}

// some returns entry 0, if it is noted, and about as many services as most allows: half of them
// from the end of the queue, and half from its beginning. So a new change does not wait for a list
// that was noted before it, and no service waits for ever. It returns at least one service.
func (q *queue) some(most turn, size func(service.Name) turn) (names []service.Name) {
	taken := make(map[service.Name]bool)
	if q.has(apiName) {
		taken[apiName] = true
	}
	half := turn{most.endpoints / 2, most.frontends / 2}
	var sum turn
	take := func(n note, bound turn) (more bool) {
		if q.void(n) || taken[n.name] {
			return true
		}
		taken[n.name] = true
		sum = sum.plus(size(n.name))
		return sum.within(bound)
	}

	for len(q.order) > 0 && q.void(q.order[0]) {
		q.order = q.order[1:]
	}
	for last := len(q.order) - 1; last >= 0 && q.void(q.order[last]); last-- {
		q.order = q.order[:last]
	}
	for _, n := range slices.Backward(q.order) {
		if !take(n, half) {
			break
		}
	}
	for _, n := range q.order {
		if !take(n, most) {
			break
		}
	}
	return slices.Collect(maps.Keys(taken))
}
