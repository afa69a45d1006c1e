package engine

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// The kernel chooses the route of each datagram. The device keeps the source address of an endpoint
// while that route leaves through the link on which the peer's packets arrive, as the kernel's
// WireGuard does. Otherwise the device forgets the source, so that the kernel chooses it too, and
// sends an empty packet, from which the peer learns the new address.

// judgementsPerWalk bounds the route look-ups per walk. A look-up takes some 10 µs.
const judgementsPerWalk = 1000

// maxChanges bounds the list of changes between two walks. If there are more, a single zero Change,
// which affects all endpoints, replaces them.
const maxChanges = 64

// changes holds the changes of routes, links and addresses since the last walk.
type changes struct {
	mu   sync.Mutex
	list []sock.Change
}

func (c *changes) add(more ...sock.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list)+len(more) > maxChanges {
		c.list = append(c.list[:0], sock.Change{})
		return
	}
	c.list = append(c.list, more...)
}

// take returns the changes and empties the list.
func (c *changes) take() []sock.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

// followPaths adds changes that the kernel reports, until the device closes.
func (d *Device) followPaths() {
	var list []sock.Change
	for ok := true; ok; {
		list, ok = d.paths.Wait(list[:0])
		d.changes.add(list...)
	}
}

// noteChanges makes the walk judge the endpoints again that the changes may affect.
func (d *Device) noteChanges() {
	list := d.changes.take()
	if len(list) == 0 {
		return
	}
	for _, p := range d.mu.order {
		at, refused := p.endpoint.Load(), p.refused.Load()
		for _, c := range list {
			if at != nil && c.Affects(at) || refused != nil && c.Affects(refused) {
				p.refused.Store(nil)
				p.unjudged.Store(true)
				break
			}
		}
	}
}

// judge looks up the route to a peer if that is due. It forgets the peer's source address if the
// route leaves through another link than the one on which the peer's packets arrive.
func (d *Device) judge(p *peer, now time.Duration) {
	if d.mu.route == nil || !p.unjudged.Load() || d.mu.judgements == judgementsPerWalk {
		return
	}
	p.unjudged.Store(false)
	at := p.endpoint.Load()
	if at == nil || !at.Source.IsValid() || at.Scope != 0 {
		return
	}

	d.mu.judgements++
	link, err := d.mu.route(at, d.mu.mark)
	if err == nil && link == at.Interface || err != nil && !isRefusal(err) {
		return
	}
	p.refused.Store(at)
	if p.endpoint.CompareAndSwap(at, &sock.Endpoint{Addr: at.Addr}) {
		if s := p.current; s != nil && !s.expired(now) {
			d.sendEmpty(p, now)
		}
	}
}

// isRefusal reports whether err of sock.Paths.Link means that the kernel has no such route.
func isRefusal(err error) bool {
	for _, e := range []unix.Errno{unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
