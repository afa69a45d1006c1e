package engine

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/sock"
)

// visitFixed visits the part of a peer that only configuration changes: its public key and its
// allowed IPs. While reading, it adds the peer to the device.
func (p *peer) visitFixed(c *codec, d *Device) {
	c.Raw(p.public[:])
	if c.way == reading && c.err == nil {
		own := p.public == d.mu.id.Public && *d.mu.id.Private() != [32]byte{}
		if own || d.mu.peers[p.public] != nil {
			c.fail("a peer occurs twice")
			return
		}
		d.mu.peers[p.public] = p
		p.stamper = noise.NewStamper(p.public)
	}
	p.visitAllowed(c, d)
}

// visitLive visits the part of a peer that changes while the device runs.
func (p *peer) visitLive(c *codec, d *Device) {
	p.secrets.Visit(c)
	p.stamper.Visit(c)
	p.visitEndpoint(c)
	p.visitShared(c)
	p.visitControl(c, d)
	p.visitStaged(c, d)
	for _, s := range p.all() {
		d.visitSession(c, p, s)
	}
}

// visitShared visits the fields that the threads change.
func (p *peer) visitShared(c *codec) {
	for _, a := range []*atomic.Int64{&p.moved, &p.unanswered, &p.owed, &p.lastSent,
		&p.lastReceived, &p.asked} {
		v := time.Duration(a.Load())
		c.Duration(&v)
		if c.way == reading {
			a.Store(int64(v))
		}
	}

	for _, a := range []*atomic.Bool{&p.dead, &p.refreshed, &p.singly} {
		v := a.Load()
		c.Flag(&v)
		if c.way == reading {
			a.Store(v)
		}
	}

	c.Duration(&p.singlyUntil)
	for _, a := range []*atomic.Uint64{&p.sentBytes, &p.rxBytes} {
		v := a.Load()
		c.u64(&v)
		if c.way == reading {
			a.Store(v)
		}
	}

	// The event insisted is left out, because it needs rivals of sessions, which images do not
	// hold.
	events := p.events.Load() & (wantSession | confirmed)
	number(c, &events, 0, wantSession|confirmed)
	if c.way == reading {
		p.events.Store(events)
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
	if !have {
		return
	}
	c.endpoint(&e)
	if c.way == reading {
		p.endpoint.Store(&e)
	}
}

// visitControl visits the fields that only control uses.
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

// claim makes the image malformed if index is 0 or already in use.
func (d *Device) claim(c *codec, index uint32) {
	if index == 0 || d.state.sessions[index] != nil || d.waiting.get(index) != nil {
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
			c.fail("an allowed IP is invalid")
			return
		}
		if d.state.routes.insert(prefix, p) != nil {
			c.fail("an allowed IP occurs twice")
			return
		}
		p.allowed[prefix] = struct{}{}
	}
}

func (p *peer) visitStaged(c *codec, d *Device) {
	const size = 8
	if c.way != reading {
		p.staged.mu.Lock()
		defer p.staged.mu.Unlock()
		packets := p.staged.packets
		if c.served {
			packets = nil // The rest has the packets that are staged at its time.
		}
		c.count(len(packets), size)
		for _, b := range packets {
			c.count(len(b), 1)
			c.Raw(b)
		}
		return
	}

	n := c.count(0, size)
	if n > maxStaged {
		c.fail("too many staged packets")
		return
	}
	for range n {
		if b := c.take(c.count(0, 1)); b != nil {
			p.staged.packets = append(p.staged.packets, append([]byte(nil), b...))
			d.stagedBytes.Add(int64(len(b)))
		}
	}
	if d.stagedBytes.Load() > maxStagedBytes {
		c.fail("too many bytes of staged packets")
	}
}

// visitSession visits the session at *at, which may be nil. The number sent is the counter of the
// next packet. No thread runs while a rest is written, so the successor continues exactly with that
// counter.
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
	if c.way == reading {
		s.used.Store(used)
		s.sent.Store(sent)
	}
	s.mu.Lock()
	c.u64(&s.window.next)
	c.words(s.window.ring[:])
	s.mu.Unlock()
	c.Raw(s.keys.Send[:])
	c.Raw(s.keys.Receive[:])
	secret.Scrub()

	if c.way == reading && c.err == nil {
		d.claim(c, s.local)
		d.state.sessions[s.local] = s
		if s.born > d.now() {
			c.fail("a session began in the future")
		}
	}
}
