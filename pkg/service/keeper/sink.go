package keeper

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// object names a service, or a slice of it if slice is not empty.
type object struct {
	service service.Name
	slice   string
}

// change is a change of an object. plan passes it to the planner, which may happen before
// everything is listed; it is then nil. rest passes it on to the others.
type change struct{ plan, rest func() }

// changes is a queue with the last change of each object. So it never has more changes than there
// are objects. The order of objects does not matter.
type changes struct {
	all []change
	at  map[object]int
	// unplanned are the changes in all that have a plan, by index.
	unplanned []int
}

func (c *changes) put(o object, ch change) {
	i, had := c.at[o]
	if !had {
		if c.at == nil {
			c.at = make(map[object]int)
		}
		i = len(c.all)
		c.at[o], c.all = i, append(c.all, change{})
	}
	if c.all[i].plan == nil {
		c.unplanned = append(c.unplanned, i)
	}
	c.all[i] = ch
}

// early is the number of changes that a turn takes for the planner before everything is listed.
const early = 512

// inbox holds the changes that a Keeper has received and its planner lacks. Any goroutine adds to
// it, and the loop takes them.
type inbox struct {
	mu sync.Mutex // guards the fields below
	delivery
	// listed reports whether all existing services and slices have been put, nodesSeen whether
	// SetNodeAddrs was called. Until both are true, nothing is in force.
	listed, nodesSeen bool
}

// delivery holds the changes that one turn takes from the inbox.
type delivery struct {
	queue changes
	since time.Time // the arrival of the oldest change in queue
	// nodes are the addresses of the last SetNodeAddrs, tunnels the endpoints of the last SetTunnels.
	nodes   []netip.Addr
	tunnels []netip.AddrPort
	// zone is the zone of this node, own are all its addresses.
	zone string
	own  []netip.Addr
}

// add queues a change of an object, and reports whether a turn can take it, or can take many
// changes for the planner.
func (i *inbox) add(o object, c change) bool {
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue.all) == 0 {
		i.since = now
	}
	i.queue.put(o, c)
	return i.listed || len(i.queue.unplanned) >= early
}

// takeEarly returns the functions that pass the queued changes to the planner, before everything is
// listed. It returns each once.
func (i *inbox) takeEarly() []func() {
	i.mu.Lock()
	defer i.mu.Unlock()
	plans := make([]func(), len(i.queue.unplanned))
	for j, at := range i.queue.unplanned {
		plans[j], i.queue.all[at].plan = i.queue.all[at].plan, nil
	}
	i.queue.unplanned = nil
	return plans
}

// take returns the new changes and removes them. It returns false until everything is listed and
// the node's addresses are known.
func (i *inbox) take() (delivery, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.listed || !i.nodesSeen {
		return delivery{}, false
	}
	d := i.delivery
	i.queue, i.since = changes{}, time.Time{}
	return d, true
}

// add queues a change of an object.
func (k *Keeper) add(o object, c change) {
	if k.inbox.add(o, c) {
		k.loop.Poke()
	}
}

// PutService adds or replaces a service. With the next four methods it makes a Keeper the sink of a
// feed.
func (k *Keeper) PutService(s service.Service) {
	k.add(object{service: s.Name}, change{func() { k.own.planner.PutService(s) }, func() {
		k.health.PutService(s)
		k.api.PutService(s)
	}})
}

// DeleteService removes a service.
func (k *Keeper) DeleteService(n service.Name) {
	k.add(object{service: n}, change{func() { k.own.planner.DeleteService(n) },
		func() { k.health.DeleteService(n) }})
}

// PutSlice adds or replaces a slice of endpoints.
func (k *Keeper) PutSlice(s service.Slice) {
	k.add(object{s.Service, s.Name}, change{func() { k.own.planner.PutSlice(s) }, func() {
		k.health.PutSlice(s)
		k.api.PutSlice(s)
	}})
}

// DeleteSlice removes a slice of endpoints.
func (k *Keeper) DeleteSlice(owner service.Name, slice string) {
	k.add(object{owner, slice}, change{func() { k.own.planner.DeleteSlice(owner, slice) }, func() {
		k.health.DeleteSlice(owner, slice)
		k.api.DeleteSlice(owner, slice)
	}})
}

// Listed records that all existing services and slices have been put.
func (k *Keeper) Listed() {
	k.update(func(i *inbox) bool {
		i.listed = true
		return true
	})
}

// update changes the inbox by f, and begins a turn if f reports that something differs.
func (k *Keeper) update(f func(*inbox) bool) {
	k.inbox.mu.Lock()
	differs := f(&k.inbox)
	k.inbox.mu.Unlock()
	if differs {
		k.loop.Poke()
	}
}

// replaced sets to to a copy of list, and reports whether they differed.
func replaced[T comparable](to *[]T, list []T) bool {
	if slices.Equal(*to, list) {
		return false
	}
	*to = slices.Clone(list)
	return true
}

// SetNodeAddrs sets the addresses of this node that serve NodePorts.
func (k *Keeper) SetNodeAddrs(addrs []netip.Addr) {
	k.update(func(i *inbox) bool {
		first := !i.nodesSeen
		i.nodesSeen = true
		return replaced(&i.nodes, addrs) || first
	})
}

// SetZone sets the zone of this node, which hints of endpoints may name; "" means that it has none.
func (k *Keeper) SetZone(zone string) {
	k.update(func(i *inbox) (differs bool) {
		differs, i.zone = i.zone != zone, zone
		return differs
	})
}

// SetOwnAddrs sets all addresses of this node. If a DNS service has one of them, a process of the
// node answers there instead of the service: NodeLocal DNSCache.
func (k *Keeper) SetOwnAddrs(addrs []netip.Addr) {
	k.update(func(i *inbox) bool { return replaced(&i.own, addrs) })
}

// SetLeaving sets whether this node is about to be deleted. Load balancers then send nothing to it.
func (k *Keeper) SetLeaving(leaving bool) { k.health.SetLeaving(leaving) }

// SetTunnels reserves the UDP endpoints of the nodes' tunnels, which no service may claim.
func (k *Keeper) SetTunnels(endpoints []netip.AddrPort) {
	k.update(func(i *inbox) bool { return replaced(&i.tunnels, endpoints) })
}
