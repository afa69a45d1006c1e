package proxy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/service"
)

func (p *Proxy) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

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
func (p *Proxy) add(o object, f func()) {
	now := time.Now()
	p.mu.Lock()
	if len(p.queue.all) == 0 {
		p.since = now
	}
	p.queue.put(o, f)
	listed := p.listed
	p.mu.Unlock()
	if listed {
		p.poke()
	}
}

// PutService adds or replaces a service. With the next four methods it makes a Proxy the sink of a
// feed.
func (p *Proxy) PutService(s service.Service) {
	p.add(object{service: s.Name}, func() {
		p.planner.PutService(s)
		p.health.putService(s)
		p.api.putService(s)
	})
}

// DeleteService removes a service.
func (p *Proxy) DeleteService(n service.Name) {
	p.add(object{service: n}, func() { p.planner.DeleteService(n); p.health.deleteService(n) })
}

// PutSlice adds or replaces a slice of endpoints.
func (p *Proxy) PutSlice(s service.Slice) {
	p.add(object{s.Service, s.Name}, func() {
		p.planner.PutSlice(s)
		p.health.putSlice(s)
		p.api.putSlice(s)
	})
}

// DeleteSlice removes a slice of endpoints.
func (p *Proxy) DeleteSlice(owner service.Name, slice string) {
	p.add(object{owner, slice}, func() {
		p.planner.DeleteSlice(owner, slice)
		p.health.deleteSlice(owner, slice)
		p.api.deleteSlice(owner, slice)
	})
}

// Listed records that all existing services and slices have been put.
func (p *Proxy) Listed() {
	p.mu.Lock()
	p.listed, p.status.Listed = true, true
	p.mu.Unlock()
	p.poke()
}

// SetNodeAddrs sets the addresses of this node that serve NodePorts.
func (p *Proxy) SetNodeAddrs(addrs []netip.Addr) {
	p.mu.Lock()
	same := p.nodesSeen && slices.Equal(p.nodes, addrs)
	if !same {
		p.nodes, p.nodesSeen, p.nodesNew = slices.Clone(addrs), true, true
	}
	p.mu.Unlock()
	if !same {
		p.poke()
	}
}

// SetTunnels reserves the UDP endpoints of the nodes' tunnels, which no service may claim.
func (p *Proxy) SetTunnels(endpoints []netip.AddrPort) {
	p.mu.Lock()
	same := slices.Equal(p.tunnels, endpoints)
	if !same {
		p.tunnels, p.tunnelsNew = slices.Clone(endpoints), true
	}
	p.mu.Unlock()
	if !same {
		p.poke()
	}
}
