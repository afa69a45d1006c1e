package engine

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	mathrand "math/rand/v2"
	"os"
	"time"

	"github.com/kubeveil/kubeveil/internal/secret"
	"github.com/kubeveil/kubeveil/pkg/engine/noise"
)

// walkInterval is the interval at which control checks the timers of all peers and the link.
const walkInterval = 100 * time.Millisecond

// control is the goroutine that does all work except the forwarding of packets.
func (d *Device) control() {
	secret.LockThread()
	var b [8]byte
	for !d.closing.Load() {
		d.mu.Lock()
		if d.closing.Load() {
			d.mu.Unlock()
			return
		}
		next := d.step(d.now())
		d.mu.Unlock()
		if next <= 0 {
			continue
		}
		_ = d.wakeFile.SetReadDeadline(time.Now().Add(next))
		if _, err := d.wakeFile.Read(b[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(walkInterval)
		}
		d.awake.Store(false)
	}
}

// messagesPerStep bounds the handshake messages that one step handles, so that events do not wait
// long.
const messagesPerStep = 32

// step does the due work and returns how long control may wait for more. If the result is not
// positive, control must call step again at once. The caller holds mu.
func (d *Device) step(now time.Duration) time.Duration {
	d.mu.handled = d.takePending(d.mu.handled)
	for i, p := range d.mu.handled {
		d.mu.handled[i] = nil
		e := p.events.Swap(0)
		if p.removed {
			continue
		}
		p.restsUntil = 0
		if e&confirmed != 0 {
			d.confirm(p, now)
		}
		if e&insisted != 0 {
			d.changeSessions(p, preferred, nil, now)
		}
		if e&wantSession != 0 {
			d.requestHandshake(p, now)
		}
	}

	more := false
	for range messagesPerStep {
		waiting, ok := d.ring.take(&d.mu.msg)
		if !ok {
			break
		}
		more = true
		if d.mu.msg.data[0] != noise.TypeCookie {
			d.mu.load.note(waiting, now)
		}
		d.handle(&d.mu.msg, now)
	}

	if now >= d.mu.nextWalk {
		d.mu.nextWalk = now + walkInterval
		d.checkLink(now)
		if d.mu.up {
			d.walk(now)
		}
	}

	if more {
		return 0
	}
	return d.mu.nextWalk - now
}

// walk performs the due actions of all peers, and leaves out those that rest. It begins at the
// first peer for which the last walk had no budget, so that no peer starves.
func (d *Device) walk(now time.Duration) {
	d.mu.refused, d.mu.judgements = false, 0
	d.noteChanges()
	d.retryOffloads(now)
	n := len(d.mu.order)
	start := d.mu.turn
	for i := range n {
		p := d.mu.order[(start+i)%n]
		if now < p.restsUntil && !p.unjudged.Load() {
			continue
		}
		d.judge(p, now)
		d.retrySegments(p, now)
		a := p.timers.due(p.view(now))
		if a != 0 || p.wanted {
			d.act(p, a, now, (start+i)%n)
		}
		p.restsUntil = p.timers.rest(p.view(now))
		if p.wanted {
			p.restsUntil = 0
		}
	}
}

// act performs the due actions of p. place is the index of p in d.mu.order.
func (d *Device) act(p *peer, a action, now time.Duration, place int) {
	if a&doAge != 0 {
		d.changeSessions(p, aged, nil, now)
	}

	if a&doGiveUp != 0 {
		d.dropStaged(p)
		p.dead.Store(true)
	}

	if a&doRetry != 0 {
		d.markDead(p)
	}

	if a&doZero != 0 {
		d.changeSessions(p, over, nil, now)
		d.forgetInitiation(p)
		d.dropStaged(p)
	}

	if a&doInitiate != 0 {
		p.unanswered.Store(0)
		p.forgetSource()
		p.timers.again()
		d.requestHandshake(p, now)
	}

	if a&(doRetry|doGreet) != 0 || p.wanted {
		d.repeat(p, a, now, place)
	}

	if a&(doKeepalive|doConfirm) != 0 && p.endpoint.Load() != nil {
		p.owed.Store(0)
		d.sendEmpty(p, now)
	}
}

// repeat sends the handshake initiation that is due: a retransmission, a greeting, or an initiation
// that waited for budget.
func (d *Device) repeat(p *peer, a action, now time.Duration, place int) {
	if a&(doRetry|doGreet) == 0 && p.tooSoon(now) {
		return
	}
	if d.dropUnreachable(p) {
		return
	}
	first := p.wanted && !p.dead.Load() || a&doGreet != 0 && p.timers.greetings == 0
	if !d.mu.budget.take(first, now) {
		if !d.mu.refused {
			d.mu.refused, d.mu.turn = true, place
		}
		return
	}
	if a&doRetry != 0 {
		p.timers.attempts++
		p.forgetSource()
	}
	if d.initiate(p, now) && a&doGreet != 0 {
		p.timers.greeted(now, mathrand.Float64())
	}
}

// requestHandshake initiates a handshake, unless one began in the last 5 s. If a greeting is due,
// the initiation counts as that greeting.
func (d *Device) requestHandshake(p *peer, now time.Duration) {
	if !d.mu.up {
		return
	}
	p.restsUntil = 0
	if p.timers.retransmit != 0 {
		return // The retransmission timer repeats the initiation.
	}
	if d.dropUnreachable(p) {
		return
	}
	if p.tooSoon(now) {
		// The handshake that is under way may fail, so walk tries again later.
		p.wanted = true
		return
	}
	p.timers.again()
	if !d.mu.budget.take(!p.dead.Load(), now) {
		p.wanted = true
		return
	}
	if d.initiate(p, now) && p.timers.greet != 0 {
		// Another initiation now would replace this one, whose response could then not be used.
		p.timers.greeted(now, mathrand.Float64())
	}
}

// tooSoon reports whether either side began a handshake in the last 5 s.
func (p *peer) tooSoon(now time.Duration) bool {
	return p.lastInitiation != 0 && now-p.lastInitiation < rekeyTimeout
}

// dropUnreachable reports whether a peer has no endpoint. If so, it cancels the peer's handshake
// and drops its staged packets. Call it before budget.take, so that such a peer uses no budget.
func (d *Device) dropUnreachable(p *peer) bool {
	if p.endpoint.Load() != nil {
		return false
	}
	p.wanted = false
	p.timers.retransmit, p.timers.greet = 0, 0
	d.drops.add(noEndpoint, 1)
	d.dropStaged(p)
	return true
}

// initiate sends an initiation without checking budget or tooSoon, and reports whether it could
// compute one. The peer must have an endpoint.
func (d *Device) initiate(p *peer, now time.Duration) bool {
	p.wanted = false
	ep := p.endpoint.Load()
	index := d.newIndex()
	p.lastStamp = d.stamp(p)
	var msg [noise.InitiationSize]byte
	d.forgetInitiation(p)
	if err := d.mu.id.Initiate(p.secrets, &p.public, index, p.lastStamp, &msg); err != nil {
		p.timers.retransmit, p.timers.greet = 0, 0
		d.drops.add(badHandshake, 1)
		return false
	}

	p.index = index
	d.waiting.put(index, p)
	p.lastInitiation = now
	p.stamper.Stamp(msg[:], now)
	p.timers.began(now, randomJitter())
	p.sentAt(now, false)
	p.sentBytes.Add(uint64(len(msg)))
	d.mu.out.message(d.state.bound, ep, msg[:])

	return true
}

// forgetInitiation discards the initiation that waits for a response, and its secrets.
func (d *Device) forgetInitiation(p *peer) {
	if p.index != 0 {
		d.waiting.remove(p.index)
		p.index = 0
	}
	p.secrets.Forget()
}

// newIndex returns a random index that is not in use.
func (d *Device) newIndex() uint32 {
	for {
		var b [4]byte
		rand.Read(b[:])
		i := binary.LittleEndian.Uint32(b[:])
		if i != 0 && d.state.sessions[i] == nil && d.waiting.get(i) == nil {
			return i
		}
	}
}
