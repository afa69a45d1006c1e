package engine

import (
	"encoding/binary"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// The state of a device is passed to its successor in two images. The base holds all settings and
// peers, and is written while the device runs. The rest is written while the device is stopped. It
// holds the sockets, the peers that changed since the base, and the queued handshake messages.
// Budgets, load and counters of drops are not passed on. Keys are copied directly between the arena
// and an image, so no other memory holds them.
//
// Each visit function defines the layout of a part of the images: it counts, writes or reads the
// part, depending on the codec.

// Schema is the version of the images' layout. A handover needs two processes with the same schema.
const Schema = 4

// The magic numbers of a base and a rest.
const (
	baseMagic = 0x6b7665696c2f6261
	restMagic = 0x6b7665696c2f7265
)

// visitHead visits the head of an image: magic number, schema, and size in bytes.
func (c *codec) visitHead(magic uint64) {
	got, schema, size := magic, Schema, 0
	c.u64(&got)
	number(c, &schema, Schema, Schema)
	if c.way == reading && got != magic {
		c.fail("the magic number is wrong")
	}
	number(c, &size, 0, len(c.b))
	if c.way == reading && c.err == nil {
		c.b = c.b[:size]
	}
}

// finish writes the size into the head of an image, or checks that the whole image was read.
func (c *codec) finish() error {
	switch {
	case c.err != nil:
	case c.way == writing:
		binary.NativeEndian.PutUint64(c.b[headSize-8:], uint64(c.n))
	case c.way == reading && c.n != len(c.b):
		c.fail("there are bytes behind the end")
	}
	return c.err
}

// headSize is the size of the head, bytes.
const headSize = 3 * 8

// visitBase visits a base. While writing, it records in b where each peer's live part is. The
// caller holds mu; threads may run.
func (d *Device) visitBase(c *codec, b *Base) error {
	c.visitHead(baseMagic)
	d.visitIdentity(c)
	n := c.count(len(d.mu.order), len(noise.PublicKey{}))
	if n > maxPeers {
		c.fail("too many peers")
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.way == reading {
			p, err := d.newPeer(noise.PublicKey{})
			if err != nil {
				c.err = err
				break
			}
			d.mu.order = append(d.mu.order, p)
		}
		p := d.mu.order[i]
		p.visitFixed(c, d)
		from := c.n
		p.visitLive(c, d)
		if c.way == writing {
			b.live = append(b.live, span{from, c.n})
		}
	}
	return c.finish()
}

// visitRest visits a rest. sockets are used while reading, b while writing. The caller holds mu,
// and no thread runs.
func (d *Device) visitRest(c *codec, sockets []int, b *Base) error {
	c.visitHead(restMagic)
	number(c, &d.mu.port, 0, 1<<16-1)
	number(c, &d.mu.mark, 0, 1<<32-1)
	c.Flag(&d.udpOffload)
	d.visitSockets(c, sockets)
	d.mu.checker.Visit(c)
	c.Raw(d.mu.lastStamp[:])
	c.Raw(d.mu.stampsAfter[:])
	d.visitChanged(c, b)
	d.ring.visit(c)
	return c.finish()
}

// visitChanged visits the live parts of the peers that differ from the base. Each is preceded by
// the peer's index in order; indices increase. The number len(order) ends the list.
func (d *Device) visitChanged(c *codec, b *Base) {
	n := len(d.mu.order)
	if c.way == reading {
		for i := 0; c.err == nil; i++ {
			number(c, &i, i, n)
			if i == n || c.err != nil {
				return
			}
			d.forget(d.mu.order[i])
			d.mu.order[i].visitLive(c, d)
		}
		return
	}

	for i, p := range d.mu.order {
		start := c.n
		number(c, &i, 0, n)
		from := c.n
		p.visitLive(c, d)
		if c.way == writing && c.err == nil && b.has(i, c.b[from:c.n]) {
			clear(c.b[start:c.n])
			c.n = start
		}
	}
	number(c, &n, n, n)
}

// forget removes the live part of a peer that was read from the base, before the rest's version of
// it is read.
func (d *Device) forget(p *peer) {
	for _, s := range p.all() {
		if *s != nil {
			delete(d.state.sessions, (*s).local)
			secret.Free(d.arena, (*s).keys)
			*s = nil
		}
	}
	if p.index != 0 {
		d.waiting.remove(p.index)
	}
	d.unstage(p)
	p.endpoint.Store(nil)
	p.lastHandshake = time.Time{}
}

// visitSockets visits whether the device is up, and the offloads of its sockets. While reading, it
// adopts the sockets.
func (d *Device) visitSockets(c *codec, sockets []int) {
	c.Flag(&d.mu.up)
	shards := len(d.shards)
	number(c, &shards, len(d.shards), len(d.shards))
	if !d.mu.up || c.err != nil {
		if c.way == reading && len(sockets) > 0 {
			c.fail("there are sockets, but the device is down")
		}
		return
	}

	b := d.state.bound
	if c.way == reading {
		b = new(binding)
	}
	for _, u := range []**sock.UDP{&b.v4, &b.v6} {
		have := *u != nil
		c.Flag(&have)
		if !have {
			continue
		}
		var segment, gro bool
		if c.way != reading {
			segment, gro = (*u).Offloads()
		}
		c.Flag(&segment)
		c.Flag(&gro)
		if c.way != reading {
			continue
		}
		if len(sockets) == 0 {
			c.fail("a socket is missing")
			return
		}
		*u = sock.Adopt(sockets[0], u == &b.v6, segment, gro)
		sockets = sockets[1:]
	}
	if c.way != reading {
		return
	}
	if b.v4 == nil {
		c.fail("the device has no socket")
		return
	}
	if len(sockets) > 0 {
		c.fail("there are more sockets than the device has")
		return
	}
	d.state.bound = b
}

func (d *Device) visitIdentity(c *codec) {
	const size = 32
	if c.way != reading {
		c.Raw(d.mu.id.Private()[:])
	} else if key := c.take(size); key != nil {
		d.mu.id.SetPrivate((*[size]byte)(key))
		d.useKey()
	}
}

// visit visits the queued handshake messages.
func (r *ring) visit(c *codec) {
	n := c.count(r.n, noise.InitiationSize)
	if n > ringSize {
		c.fail("too many messages")
		return
	}
	for i := 0; i < n && c.err == nil; i++ {
		slot := &r.slots[(r.head+i)%ringSize]
		number(c, &slot.n, 0, len(slot.data))
		c.Raw(slot.data[:])
		c.endpoint(&slot.from)
		c.Duration(&slot.at)
		if c.way == reading && (slot.n == 0 || slot.n != handshakeSize(uint32(slot.data[0]))) {
			c.fail("a message has a wrong size")
			return
		}
	}
	r.n = n
	r.cookies = 0
	for i := range n {
		if r.slots[(r.head+i)%ringSize].data[0] == noise.TypeCookie {
			r.cookies++
		}
	}
}
