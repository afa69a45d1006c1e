package engine

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// An image is a device that stands still, as bytes: all that its successor needs to go on, but for
// budgets, loads and counters of drops. Keys are copied between it and the arena and nowhere else.

// Schema is the number of the image's layout. Processes of different schemas hand nothing over.
const Schema = 3

// imageMagic begins an image.
const imageMagic = 0x6b7665696c2f6874

// image writes the device into sealed memory. The caller holds mu, and no thread runs.
func (d *Device) image() (*secret.Sealed, error) {
	c := codec{way: counting}
	d.visit(&c, nil)
	s, err := secret.NewSealed(c.n)
	if err != nil {
		return nil, err
	}
	c = codec{way: writing, b: s.Bytes}
	d.visit(&c, nil)
	if err := s.Seal(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// read makes the device what the image says, with these sockets. After an error the device can only
// be closed, and has used none of them.
func (d *Device) read(image []byte, sockets []int) error {
	c := codec{way: reading, b: image}
	d.visit(&c, sockets)
	if c.err == nil && c.n != len(image) {
		c.fail("something follows")
	}
	return c.err
}

// visit is the layout of a device.
func (d *Device) visit(c *codec, sockets []int) {
	magic, schema := uint64(imageMagic), Schema
	c.u64(&magic)
	number(c, &schema, Schema, Schema)
	if c.way == reading && magic != imageMagic {
		c.fail("it is no image")
	}

	number(c, &d.port, 0, 1<<16-1)
	number(c, &d.mark, 0, 1<<32-1)
	c.Flag(&d.udpOffload)
	d.visitSockets(c, sockets)
	d.visitIdentity(c)

	n := c.count(len(d.order), len(noise.PublicKey{}))
	if n > maxPeers {
		c.fail("too many peers")
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.way != reading {
			d.order[i].visit(c, d)
			continue
		}
		p, err := d.newPeer(noise.PublicKey{})
		if err != nil {
			c.err = err
			return
		}
		d.order = append(d.order, p)
		p.visit(c, d)
	}

	d.ring.visit(c)
}

// visitSockets takes whether the device is up, and what its sockets can do.
func (d *Device) visitSockets(c *codec, sockets []int) {
	c.Flag(&d.up)
	shards := len(d.shards)
	number(c, &shards, len(d.shards), len(d.shards))
	if !d.up || c.err != nil {
		if c.way == reading && len(sockets) > 0 {
			c.fail("there are sockets of a device that has none")
		}
		return
	}

	b := d.bound
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
	d.bound = b
}

func (d *Device) visitIdentity(c *codec) {
	const size = 32
	if c.way != reading {
		c.Raw(d.id.Private()[:])
	} else if key := c.take(size); key != nil {
		d.id.SetPrivate((*[size]byte)(key))
		d.useKey()
	}
	d.checker.Visit(c)
}

// visit is the layout of a peer. One that is read is added to the device.
func (p *peer) visit(c *codec, d *Device) {
	c.Raw(p.public[:])
	if c.way == reading && c.err == nil {
		own := p.public == d.id.Public && *d.id.Private() != [32]byte{}
		if own || d.peers[p.public] != nil {
			c.fail("a peer occurs twice")
			return
		}
		d.peers[p.public] = p
		p.stamper = noise.NewStamper(p.public)
	}

	p.secrets.Visit(c)
	p.stamper.Visit(c)
	p.visitEndpoint(c)
	for _, a := range []*atomic.Int64{&p.moved, &p.unanswered, &p.owed, &p.lastSent,
		&p.lastReceived, &p.asked} {
		v := time.Duration(a.Load())
		c.Duration(&v)
		a.Store(int64(v))
	}

	for _, a := range []*atomic.Bool{&p.dead, &p.refreshed, &p.singly} {
		v := a.Load()
		c.Flag(&v)
		a.Store(v)
	}
	for _, a := range []*atomic.Uint64{&p.sentBytes, &p.rxBytes} {
		v := a.Load()
		c.u64(&v)
		a.Store(v)
	}
	// A session does not remember its rival, see yield.
	events := p.events.Load() & (wantSession | confirmed)
	number(c, &events, 0, wantSession|confirmed)
	p.events.Store(events)

	p.visitControl(c, d)
	p.visitAllowed(c, d)
	p.visitStaged(c, d)
	for _, s := range p.sessions() {
		d.visitSession(c, p, s)
	}
}

func (p *peer) visitEndpoint(c *codec) {
	var e sock.Endpoint
	old := p.endpoint.Load()
	have := old != nil
	if have {
		e = *old
	}
	c.Flag(&have)
	if have {
		c.endpoint(&e)
		p.endpoint.Store(&e)
	}
}

// visitControl takes what control alone uses.
func (p *peer) visitControl(c *codec, d *Device) {
	t := &p.timers
	for _, v := range []*time.Duration{&t.retransmit, &t.zero, &t.greet, &t.confirm, &p.keepalive,
		&p.lastInitiation, &p.lastConsumed} {
		c.Duration(v)
	}
	number(c, &t.attempts, 0, 1<<30)
	number(c, &t.greetings, 0, maxGreetings)
	number(c, &t.confirms, 0, maxConfirmations)
	c.Flag(&p.wanted)
	c.Raw(p.lastStamp[:])
	c.Raw(p.lastSeenStamp[:])
	c.addrPort(&p.greetedAt)

	var shaken int64
	if !p.lastHandshake.IsZero() {
		shaken = p.lastHandshake.UnixNano()
	}
	number(c, &shaken, 0, 1<<63-1)
	if c.way == reading && shaken != 0 {
		p.lastHandshake = time.Unix(0, shaken)
	}

	number(c, &p.index, 0, 1<<32-1)
	if c.way == reading && p.index != 0 {
		d.claim(c, p.index)
		d.waiting.put(p.index, p)
	}
}

// claim refuses an index that is in use.
func (d *Device) claim(c *codec, index uint32) {
	if index == 0 || d.sessions[index] != nil || d.waiting.get(index) != nil {
		c.fail("an index is not free")
	}
}

func (p *peer) visitAllowed(c *codec, d *Device) {
	const size = 17 + 8
	if c.way != reading {
		c.count(len(p.allowed), size)
		for prefix := range p.allowed {
			addr, bits := prefix.Addr(), prefix.Bits()
			c.addr(&addr)
			number(c, &bits, 0, 128)
		}
		return
	}

	for range c.count(0, size) {
		var addr netip.Addr
		bits := 0
		c.addr(&addr)
		number(c, &bits, 0, 128)
		prefix, err := addr.Prefix(bits)
		if c.err != nil || err != nil || !addr.IsValid() || prefix.Addr() != addr {
			c.fail("an allowed IP is none")
			return
		}
		if d.routes.insert(prefix, p) != nil {
			c.fail("an allowed IP occurs twice")
			return
		}
		p.allowed[prefix] = struct{}{}
	}
}

func (p *peer) visitStaged(c *codec, d *Device) {
	const size = 8
	if c.way != reading {
		c.count(len(p.staged.packets), size)
		for _, b := range p.staged.packets {
			c.count(len(b), 1)
			c.Raw(b)
		}
		return
	}

	n := c.count(0, size)
	if n > maxStaged {
		c.fail("too many packets wait")
		return
	}
	for range n {
		if b := c.take(c.count(0, 1)); b != nil {
			p.staged.packets = append(p.staged.packets, append([]byte(nil), b...))
			d.stagedBytes.Add(int64(len(b)))
		}
	}
	if d.stagedBytes.Load() > maxStagedBytes {
		c.fail("too many bytes wait")
	}
}

// sessions returns the places for the sessions of a peer.
func (p *peer) sessions() (out [2 + maxFormer]**session) {
	out[0], out[1] = &p.current, &p.next
	for i := range p.former {
		out[2+i] = &p.former[i]
	}
	return out
}

// visitSession takes a session, which may be nil. The counter is that of the next packet: no thread
// runs, so the one before the successor's first was the last that was used.
func (d *Device) visitSession(c *codec, p *peer, at **session) {
	have := *at != nil
	c.Flag(&have)
	if !have || c.err != nil {
		return
	}

	s := *at
	if c.way == reading {
		keys, err := secret.Alloc[noise.Keys](d.arena)
		if err != nil {
			c.err = err
			return
		}
		s = &session{peer: p, keys: keys}
		*at = s
	}

	number(c, &s.local, 1, 1<<32-1)
	number(c, &s.remote, 0, 1<<32-1)
	c.Flag(&s.initiator)
	c.Duration(&s.born)
	used, sent := s.used.Load(), s.sent.Load()
	c.Flag(&used)
	c.u64(&sent)
	s.used.Store(used)
	s.sent.Store(sent)
	c.u64(&s.window.next)
	c.words(s.window.ring[:])
	c.Raw(s.keys.Send[:])
	c.Raw(s.keys.Receive[:])

	if c.way == reading && c.err == nil {
		d.claim(c, s.local)
		d.sessions[s.local] = s
		if s.born > d.now() {
			c.fail("a session is of the future")
		}
	}
}

// visit is the layout of the handshake messages that wait.
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
