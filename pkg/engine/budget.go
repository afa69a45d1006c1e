package engine

import (
	"net/netip"
	"time"
)

// Budget of initiations. First ones go to peers that answered last time or never got one; the
// others repeat unanswered initiations, which is the whole cost of unreachable peers.
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

// Load. Above either limit, and for a second after, the device demands cookies. Only messages with
// a right MAC1 count. A handshake costs the responder 0.3 to 0.5 ms of CPU, so 2,000 per second
// take about one core, and 256 that wait are 0.1 s. Peers of a node that starts again send up to
// firstPerSecond, which must not count as load.
const (
	loadWaiting   = ringSize / 4
	loadPerSecond = 2000
	loadHeld      = time.Second
)

// load judges whether handshake messages come faster than they should be answered.
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

// limiter limits handshake messages of each address under load: 20 per second, 5 at once. An IPv6
// address is limited with its /64. It stores a bounded number of addresses; when they are used up
// it allows no other until a second is over.
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
