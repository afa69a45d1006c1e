package keeper

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// object names a service, or a slice of it if slice is not empty.
type object struct {
	service service.Name
	slice   string
}

// changes is a queue with the last change of each object. So it never has more changes than there
// are objects. The order of objects does not matter.
type changes struct {
	all []func()
	at  map[object]int
}

func (c *changes) put(o object, f func()) {
	if i, had := c.at[o]; had {
		c.all[i] = f
		return
	}
	if c.at == nil {
		c.at = make(map[object]int)
	}
	c.at[o] = len(c.all)
	c.all = append(c.all, f)
}

// add queues a change of an object.
func (k *Keeper) add(o object, f func()) {
	now := time.Now()
	k.mu.Lock()
	if len(k.queue.all) == 0 {
		k.since = now
	}
	k.queue.put(o, f)
	listed := k.listed
	k.mu.Unlock()
	if listed {
		k.loop.Poke()
	}
}

// PutService adds or replaces a service. With the next four methods it makes a Keeper the sink of a
// feed.
func (k *Keeper) PutService(s service.Service) {
	k.add(object{service: s.Name}, func() {
		k.planner.PutService(s)
		k.health.putService(s)
		k.api.putService(s)
	})
}

// DeleteService removes a service.
func (k *Keeper) DeleteService(n service.Name) {
	k.add(object{service: n}, func() { k.planner.DeleteService(n); k.health.deleteService(n) })
}

// PutSlice adds or replaces a slice of endpoints.
func (k *Keeper) PutSlice(s service.Slice) {
	k.add(object{s.Service, s.Name}, func() {
		k.planner.PutSlice(s)
		k.health.putSlice(s)
		k.api.putSlice(s)
	})
}

// DeleteSlice removes a slice of endpoints.
func (k *Keeper) DeleteSlice(owner service.Name, slice string) {
	k.add(object{owner, slice}, func() {
		k.planner.DeleteSlice(owner, slice)
		k.health.deleteSlice(owner, slice)
		k.api.deleteSlice(owner, slice)
	})
}

// Listed records that all existing services and slices have been put.
func (k *Keeper) Listed() {
	k.mu.Lock()
	k.listed, k.status.Listed = true, true
	k.mu.Unlock()
	k.loop.Poke()
}

// SetNodeAddrs sets the addresses of this node that serve NodePorts.
func (k *Keeper) SetNodeAddrs(addrs []netip.Addr) {
	k.mu.Lock()
	same := k.nodesSeen && slices.Equal(k.nodes, addrs)
	if !same {
		k.nodes, k.nodesSeen, k.nodesNew = slices.Clone(addrs), true, true
	}
	k.mu.Unlock()
	if !same {
		k.loop.Poke()
	}
}

// SetTunnels reserves the UDP endpoints of the nodes' tunnels, which no service may claim.
func (k *Keeper) SetTunnels(endpoints []netip.AddrPort) {
	k.mu.Lock()
	same := slices.Equal(k.tunnels, endpoints)
	if !same {
		k.tunnels, k.tunnelsNew = slices.Clone(endpoints), true
	}
	k.mu.Unlock()
	if !same {
		k.loop.Poke()
	}
}
