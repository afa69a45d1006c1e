package engine

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// The kernel chooses the route of each datagram. The source address of an endpoint is kept while
// that route leaves by the link on which the peer came in, as the kernel's WireGuard keeps it. Else
// the kernel chooses the source as well, and an empty packet informs the peer at once.

// judgementsPerWalk bounds the look-ups of routes per walk; one takes some 10 µs.
const judgementsPerWalk = 1000

// maxChanges bounds the changes between two walks; more of them stand for a change of everything.
const maxChanges = 64

// changes are the changes of paths since the last walk.
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

// take returns the changes and forgets them.
func (c *changes) take() []sock.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

// followPaths gathers changes until the device closes.
func (d *Device) followPaths() {
	var list []sock.Change
	for ok := true; ok; {
		list, ok = d.paths.Wait(list[:0])
		d.changes.add(list...)
	}
}

// noteChanges makes the walk judge the changed paths again.
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

// judge forgets the source address of a peer if the route to it leaves by another link than the
// link on which the peer came in.
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

// isRefusal reports whether the kernel has no such route, see sock.Paths.Link.
func isRefusal(err error) bool {
	for _, e := range []unix.Errno{unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
