package engine

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	mathrand "math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/engine/noise"
	"github.com/kubeveil/kubeveil/pkg/engine/packet"
	"github.com/kubeveil/kubeveil/pkg/engine/secret"
)

// walkInterval is how often control looks at the timers of all peers and at the link.
const walkInterval = 100 * time.Millisecond

// control is the goroutine that does all that is not the path.
func (d *Device) control() {
	var b [8]byte
	for !d.closing.Load() {
		d.mu.Lock()
		now := d.now()
		next := d.step(now)
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

// messagesPerStep bounds the handshake messages between two looks at events.
const messagesPerStep = 32

// step does what is due and returns how long control may wait; not positive is not at all.
func (d *Device) step(now time.Duration) time.Duration {
	d.handled = d.takePending(d.handled)
	for i, p := range d.handled {
		d.handled[i] = nil
		e := p.events.Swap(0)
		if p.removed {
			continue
		}
		if e&confirmed != 0 {
			d.confirm(p, now)
		}
		if e&wantSession != 0 {
			d.want(p, now)
		}
	}

	more := false
	for range messagesPerStep {
		waiting, ok := d.ring.take(&d.msg)
		if !ok {
			break
		}
		more = waiting > 0
		d.load.note(waiting, now)
		d.handle(&d.msg, now)
	}

	if now >= d.nextWalk {
		d.nextWalk = now + walkInterval
		d.checkLink(now)
		if d.up {
			d.walk(now)
		}
	}

	if more {
		return 0
	}
	return d.nextWalk - now
}

// checkLink follows the state of the TUN's link.
func (d *Device) checkLink(now time.Duration) {
	l, err := d.link()
	if err != nil {
		return // The TUN is gone or about to be; its thread says so.
	}
	d.mtu.Store(int64(l.MTU))
	switch {
	case l.Up && !d.up:
		if err := d.setUp(now); err != nil {
			d.log.Warn("sockets cannot be opened, trying again", "port", d.port, "err", err)
			d.nextWalk = now + time.Second
		}
	case !l.Up && d.up:
		d.setDown()
	}
}

// walk does what the timers of the peers want. It begins where the last one used the budget up, so
// that each peer gets its turn.
func (d *Device) walk(now time.Duration) {
	n := len(d.order)
	start := d.turn
	for i := range n {
		p := d.order[(start+i)%n]
		d.expire(p, now)
		a := p.timers.due(p.view(now))
		if a != 0 || p.wanted {
			d.act(p, a, now, (start+i)%n)
		}
	}
}

// expire zeroes the keys of former sessions that nothing may be received under any more.
func (d *Device) expire(p *peer, now time.Duration) {
	old := func(s *session) bool { return s != nil && now-s.born >= rejectAfterTime }
	if !slices.ContainsFunc(p.former[:], old) {
		return
	}
	d.state.Lock()
	for i, s := range p.former {
		if old(s) {
			d.retire(s)
			p.former[i] = nil
		}
	}
	d.state.Unlock()
	d.zeroRetired()
}

// act does the actions of a peer, which is at place in order.
func (d *Device) act(p *peer, a action, now time.Duration, place int) {
	if a&doGiveUp != 0 {
		d.dropStaged(p)
		p.dead.Store(true)
	}

	if a&doRetry != 0 {
		d.markDead(p)
	}

	if a&doZero != 0 {
		d.state.Lock()
		d.endSessions(p)
		d.state.Unlock()
		d.zeroRetired()
		d.forgetInitiation(p)
		d.dropStaged(p)
	}

	if a&doInitiate != 0 {
		p.unanswered.Store(0)
		p.forgetSource()
		p.timers.attempts = 0
		d.want(p, now)
	}

	if a&(doRetry|doGreet) != 0 || p.wanted {
		d.repeat(p, a, now, place)
	}

	if a&(doKeepalive|doConfirm) != 0 {
		p.owed.Store(0)
		d.sendEmpty(p, now)
	}
}

// repeat begins a handshake that waits for the budget, repeats one, or greets.
func (d *Device) repeat(p *peer, a action, now time.Duration, place int) {
	if a&(doRetry|doGreet) == 0 && p.tooSoon(now) {
		return
	}
	first := p.wanted && !p.dead.Load() || a&doGreet != 0 && p.timers.greetings == 0
	if !d.budget.take(first, now) {
		d.turn = place
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

// want begins a handshake if none was begun in the last 5 s.
func (d *Device) want(p *peer, now time.Duration) {
	if !d.up {
		return
	}
	if p.timers.retransmit != 0 {
		return // The timer repeats it.
	}
	if p.tooSoon(now) {
		// The peer's handshake may fail.
		p.wanted = true
		return
	}
	p.timers.attempts = 0
	if !d.budget.take(!p.dead.Load(), now) {
		p.wanted = true
		return
	}
	d.initiate(p, now)
}

// tooSoon reports whether a handshake was begun, by either side, in the last 5 s.
func (p *peer) tooSoon(now time.Duration) bool {
	return p.lastInitiation != 0 && now-p.lastInitiation < rekeyTimeout
}

// initiate sends an initiation whatever the rate, and reports whether it could.
func (d *Device) initiate(p *peer, now time.Duration) bool {
	p.wanted = false
	ep := p.endpoint.Load()
	if ep == nil {
		p.timers.retransmit, p.timers.greet = 0, 0
		d.drops.add(noEndpoint, 1)
		d.dropStaged(p)
		return false
	}

	index := d.newIndex()
	p.lastStamp = noise.Stamp(time.Now(), p.lastStamp)
	var msg [noise.InitiationSize]byte
	d.forgetInitiation(p)
	if err := d.id.Initiate(p.secrets, &p.public, index, p.lastStamp, &msg); err != nil {
		p.timers.retransmit, p.timers.greet = 0, 0
		d.drops.add(badHandshake, 1)
		return false
	}

	p.index = index
	d.waiting[index] = p
	p.lastInitiation = now
	p.stamper.Stamp(msg[:], now)
	p.timers.began(now, randomJitter())
	p.sentAt(now, false)
	p.sentBytes.Add(uint64(len(msg)))
	d.out.message(d.bound(), ep, msg[:])

	return true
}

// forgetInitiation ends the exchange that waits for its response.
func (d *Device) forgetInitiation(p *peer) {
	if p.index != 0 {
		delete(d.waiting, p.index)
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
		if i != 0 && d.sessions[i] == nil && d.waiting[i] == nil {
			return i
		}
	}
}

// handle takes a handshake message.
func (d *Device) handle(m *message, now time.Duration) {
	msg := m.data[:m.n]
	if m.data[0] == noise.TypeCookie {
		d.takeCookie((*[noise.CookieSize]byte)(msg), now)
		return
	}

	if !d.checker.MAC1(msg) {
		d.drops.add(badMAC1, 1)
		return
	}

	if d.load.high(now) {
		if !d.checker.MAC2(msg, m.from.Addr, now) {
			d.drops.add(cookieDemanded, 1)
			reply := d.checker.Reply(msg, m.from.Addr, now)
			d.out.message(d.bound(), &m.from, reply[:])
			return
		}
		if !d.limits.allow(m.from.Addr.Addr(), now) {
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

func (d *Device) takeCookie(msg *[noise.CookieSize]byte, now time.Duration) {
	i := noise.CookieReceiver(msg)
	p := d.waiting[i]
	if s := d.sessions[i]; p == nil && s != nil {
		p = s.peer
	}
	if p == nil || !p.stamper.Take(msg, now) {
		d.drops.add(badCookie, 1)
	}
}

func (d *Device) takeInitiation(m *message, now time.Duration) {
	msg := &m.data
	key, err := d.id.Open(msg)
	if err != nil {
		d.drops.add(badHandshake, 1)
		return
	}

	p := d.peers[key]
	if p == nil {
		d.drops.add(unknownPeer, 1)
		return
	}

	stamp, err := d.id.Verify(p.secrets, msg)
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

	// A session that the peer uses already must not give way to one that it may not use.
	d.confirm(p, now)
	s, err := d.newSession(p, noise.Sender(msg[:]), false, now)
	if err != nil {
		d.log.Warn("no memory for a session", "err", err)
		return
	}

	var answer [noise.ResponseSize]byte
	if err := d.id.Respond(p.secrets, &p.public, msg, s.local, &answer, s.keys); err != nil {
		secret.Free(d.arena, s.keys)
		d.drops.add(badHandshake, 1)
		return
	}

	p.lastSeenStamp, p.lastConsumed = stamp, now
	// The peer's handshake is under way; one of ours would only cross it.
	p.lastInitiation = now
	p.dead.Store(false)
	p.move(&m.from, m.at)
	p.rxBytes.Add(uint64(m.n))
	p.receivedAt(now, false)

	// The session is used when its first packet proves that the peer has the keys.
	d.state.Lock()
	d.shelve(p, p.next)
	p.next = s
	d.sessions[s.local] = s
	d.state.Unlock()
	d.zeroRetired()
	p.timers.derived(now)
	p.stamper.Stamp(answer[:], now)

	p.sentAt(now, false)
	p.sentBytes.Add(uint64(len(answer)))
	d.out.message(d.bound(), &m.from, answer[:])
}

func (d *Device) takeResponse(m *message, now time.Duration) {
	msg := (*[noise.ResponseSize]byte)(m.data[:noise.ResponseSize])
	p := d.waiting[noise.ResponseReceiver(msg)]
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

	if err := d.id.Finish(p.secrets, msg, s.keys); err != nil {
		secret.Free(d.arena, s.keys)
		d.drops.add(badHandshake, 1)
		return
	}

	// The index of the initiation becomes that of the session.
	s.local = p.index
	delete(d.waiting, p.index)
	p.index = 0
	p.move(&m.from, m.at)
	p.rxBytes.Add(uint64(m.n))
	p.receivedAt(now, false)
	d.state.Lock()
	d.shelve(p, p.current)
	d.shelve(p, p.next)
	p.next = nil
	p.current = s
	d.sessions[s.local] = s
	d.state.Unlock()
	d.zeroRetired()
	p.timers.derived(now)
	d.complete(p, true, now)
}

// newSession makes a session with an index that is not in use; its keys are not set yet.
func (d *Device) newSession(p *peer, remote uint32, initiator bool,
	now time.Duration) (*session, error) {
	keys, err := secret.Alloc[noise.Keys](d.arena)
	if err != nil {
		return nil, err
	}
	return &session{peer: p, keys: keys, local: d.newIndex(), remote: remote, initiator: initiator,
		born: now}, nil
}

// crossing is the time between two sessions that both sides began at once.
const crossing = rekeyTimeout

// confirm begins to use the session that the peer has proven to have. Where the handshakes of both
// sides crossed there are two; then the one that the side with the greater public key began is
// kept. Else each side might send under the other's, and neither would renew its own.
func (d *Device) confirm(p *peer, now time.Duration) {
	if p.next == nil || !p.next.used.Load() {
		return
	}
	c := p.current
	keep := c != nil && c.initiator && p.next.born-c.born < crossing &&
		bytes.Compare(d.id.Public[:], p.public[:]) > 0
	d.state.Lock()
	if keep {
		d.shelve(p, p.next)
	} else {
		d.shelve(p, p.current)
		p.current = p.next
	}
	p.next = nil
	d.state.Unlock()
	d.zeroRetired()
	d.complete(p, false, now)
}

// complete notes that a handshake is complete, and sends what waits for it. The initiator sends an
// empty packet if nothing waits: it proves to the peer that it has the keys.
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

// sendStaged sends the packets that wait for a session, and reports whether there were any.
func (d *Device) sendStaged(p *peer, now time.Duration) bool {
	packets := d.unstage(p)
	for _, b := range packets {
		copy(d.out.room(d.bound(), p.current, packet.ECN(b), len(b), now), b)
	}
	d.out.flush(d.bound(), now)
	return len(packets) > 0
}

// sendEmpty sends an empty packet, or begins a handshake if there is no session for it.
func (d *Device) sendEmpty(p *peer, now time.Duration) {
	if s := p.current; s == nil || now-s.born >= rejectAfterTime {
		d.want(p, now)
		return
	}
	d.out.room(d.bound(), p.current, 0, 0, now)
	d.out.flush(d.bound(), now)
}

// Budget of initiations. First ones are of peers that answered last time or were never asked; the
// others repeat what was not answered, which is all that unreachable peers cost.
const (
	firstPerSecond  = 1500
	repeatPerSecond = 100
)

// budget limits initiations by two token buckets. The zero value is full.
type budget struct{ first, repeat bucket }

func (b *budget) take(first bool, now time.Duration) bool {
	if first {
		return b.first.take(now, time.Second/firstPerSecond, 200)
	}
	return b.repeat.take(now, time.Second/repeatPerSecond, 50)
}

// bucket is a token bucket that is refilled by one token each interval (GCRA). The zero value is
// full.
type bucket struct{ next time.Duration }

func (b *bucket) take(now, interval time.Duration, burst int) bool {
	if b.next < now {
		b.next = now
	}
	if b.next-now > time.Duration(burst)*interval {
		return false
	}
	b.next += interval
	return true
}

// Load. Above either limit the device asks for cookies, and for a second after.
const (
	loadWaiting   = ringSize / 8
	loadPerSecond = 200
	loadHeld      = time.Second
)

// load judges whether handshake messages come faster than they can be answered.
type load struct {
	second time.Duration
	count  int
	until  time.Duration
}

func (l *load) note(waiting int, now time.Duration) {
	if now-l.second >= time.Second {
		l.second, l.count = now, 0
	}
	if l.count++; l.count > loadPerSecond || waiting >= loadWaiting {
		l.until = now + loadHeld
	}
}

func (l *load) high(now time.Duration) bool { return now < l.until }

// limiter limits handshake messages of each address under load: 20 a second, 5 at once. An IPv6
// address is limited with its /64. It knows a bounded number of addresses; when they are used up it
// allows no other until a second is over.
type limiter struct {
	known map[netip.Addr]*bucket
	reset time.Duration
}

const maxLimited = 4096

func (l *limiter) allow(a netip.Addr, now time.Duration) bool {
	if a.Is6() {
		p, _ := a.WithZone("").Prefix(64)
		a = p.Addr()
	}
	if l.known == nil || now-l.reset >= time.Second {
		if l.known == nil {
			l.known = map[netip.Addr]*bucket{}
		}
		for k, b := range l.known {
			if b.next <= now {
				delete(l.known, k)
			}
		}
		l.reset = now
	}
	b := l.known[a]
	if b == nil {
		if len(l.known) == maxLimited {
			return false
		}
		b = new(bucket)
		l.known[a] = b
	}
	return b.take(now, time.Second/20, 4)
}
