package engine

import (
	"bytes"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
)

// handle handles a handshake message of the ring. Its MAC1 was already checked; cookies have none.
func (d *Device) handle(m *message, now time.Duration) {
	msg := m.data[:m.n]
	if m.data[0] == noise.TypeCookie {
		d.takeCookie((*[noise.CookieSize]byte)(msg), now)
		return
	}

	if d.mu.load.high(now) {
		if !d.mu.checker.MAC2(msg, m.from.Addr, now) {
			d.drops.add(cookieDemanded, 1)
			reply := d.mu.checker.Reply(msg, m.from.Addr, now)
			d.mu.out.message(d.state.bound, &m.from, reply[:])
			return
		}
		if !d.mu.limits.allow(m.from.Addr.Addr(), now) {
			d.drops.add(rateLimited, 1)
			return
		}
	}

	if m.data[0] == noise.TypeInitiation {
		d.takeInitiation(m, now)
	} else {
		d.takeResponse(m, now)
	}
}

// takeCookie stores the cookie for the peer whose message the reply answers.
func (d *Device) takeCookie(msg *[noise.CookieSize]byte, now time.Duration) {
	i := noise.CookieReceiver(msg)
	p := d.waiting.get(i)
	if s := d.state.sessions[i]; p == nil && s != nil {
		p = s.peer
	}
	if p == nil || !p.stamper.Take(msg, now) {
		d.drops.add(badCookie, 1)
	}
}

// takeInitiation answers an initiation with a response. The new session is next until it is proven.
func (d *Device) takeInitiation(m *message, now time.Duration) {
	msg := &m.data
	key, err := d.mu.id.Open(msg)
	if err != nil {
		d.drops.add(badHandshake, 1)
		return
	}

	p := d.mu.peers[key]
	if p == nil {
		d.drops.add(unknownPeer, 1)
		return
	}

	stamp, err := d.mu.id.Verify(p.secrets, msg)
	switch {
	case err != nil:
		d.drops.add(badHandshake, 1)
		return
	case !stamp.After(p.lastSeenStamp):
		d.drops.add(handshakeReplayed, 1)
		return
	case p.lastConsumed != 0 && now-p.lastConsumed <= floodInterval:
		d.drops.add(handshakeFlood, 1)
		return
	}

	// If the peer already uses next, make it current first. Otherwise the new session, which the
	// peer may never use, would replace it.
	d.confirm(p, now)
	s, err := d.newSession(p, noise.Sender(msg[:]), false, now)
	if err != nil {
		d.log.Warn("no memory for a session", "err", err)
		return
	}

	var answer [noise.ResponseSize]byte
	if err := d.mu.id.Respond(p.secrets, &p.public, msg, s.local, &answer, s.keys); err != nil {
		secret.Free(d.arena, s.keys)
		d.drops.add(badHandshake, 1)
		return
	}

	c := p.current
	s.crossed = c != nil && c.initiator && !c.used.Load()
	p.lastSeenStamp, p.lastConsumed = stamp, now
	// An initiation of ours would only cross the peer's handshake, so it counts for tooSoon.
	p.lastInitiation = now
	p.dead.Store(false)
	p.move(&m.from, m.at)
	p.rxBytes.Add(uint64(m.n))
	p.receivedAt(now, false)

	// The device sends under the session only after its first packet proves that the peer has the
	// keys.
	d.changeSessions(p, accepted, s, now)
	p.stamper.Stamp(answer[:], now)

	p.sentAt(now, false)
	p.sentBytes.Add(uint64(len(answer)))
	d.mu.out.message(d.state.bound, &m.from, answer[:])
}

// takeResponse completes the handshake of an initiation of this device.
func (d *Device) takeResponse(m *message, now time.Duration) {
	msg := (*[noise.ResponseSize]byte)(m.data[:noise.ResponseSize])
	p := d.waiting.get(noise.ResponseReceiver(msg))
	if p == nil {
		d.drops.add(unknownIndex, 1)
		return
	}

	d.confirm(p, now)
	s, err := d.newSession(p, noise.Sender(msg[:]), true, now)
	if err != nil {
		d.log.Warn("no memory for a session", "err", err)
		return
	}

	if err := d.mu.id.Finish(p.secrets, msg, s.keys); err != nil {
		secret.Free(d.arena, s.keys)
		d.drops.add(badHandshake, 1)
		return
	}

	// The peer sends to the index of the initiation.
	s.local = p.index
	d.waiting.remove(p.index)
	p.index = 0
	p.move(&m.from, m.at)
	p.rxBytes.Add(uint64(m.n))
	p.receivedAt(now, false)
	d.changeSessions(p, answered, s, now)
}

// newSession returns a session with an unused index. Its keys are not set yet.
func (d *Device) newSession(p *peer, remote uint32, initiator bool,
	now time.Duration) (*session, error) {
	keys, err := secret.Alloc[noise.Keys](d.arena)
	if err != nil {
		return nil, err
	}
	return &session{peer: p, keys: keys, local: d.newIndex(), remote: remote, initiator: initiator,
		born: now}, nil
}

// confirm makes next the current session if a packet came under it, or declines it; see proof.
func (d *Device) confirm(p *peer, now time.Duration) {
	e := p.proof(bytes.Compare(d.mu.id.Public[:], p.public[:]) > 0)
	if e == declined {
		p.next.rival = p.current.local
		p.next.declined.Store(int64(now))
	}
	d.changeSessions(p, e, nil, now)
}

// complete records that a handshake is complete, and sends the staged packets. If there are none,
// the initiator sends an empty packet, which proves to the peer that the initiator has the keys.
func (d *Device) complete(p *peer, initiator bool, now time.Duration) {
	p.timers.completed(now, initiator)
	p.dead.Store(false)
	p.wanted = false
	p.refreshed.Store(false)
	p.lastHandshake = time.Now()
	if !d.sendStaged(p, now) && initiator {
		d.sendEmpty(p, now)
	}
}

// sendStaged sends the staged packets of a peer, and reports whether there were any.
func (d *Device) sendStaged(p *peer, now time.Duration) bool {
	packets := d.unstage(p)
	for _, b := range packets {
		copy(d.mu.out.room(d.state.bound, p.current, packet.ECN(b), len(b), now), b)
	}
	d.mu.out.flush(d.state.bound, now)
	return len(packets) > 0
}

// sendEmpty sends an empty packet, or requests a handshake if there is no session to send under.
func (d *Device) sendEmpty(p *peer, now time.Duration) {
	if s := p.current; s == nil || s.expired(now) {
		d.requestHandshake(p, now)
		return
	}
	d.mu.out.room(d.state.bound, p.current, 0, 0, now)
	d.mu.out.flush(d.state.bound, now)
}
