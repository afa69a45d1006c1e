package engine

import (
	"net/netip"
	"time"
)

// Budgets of handshake initiations. The first budget is for peers that answered the last initiation
// or never received one. The repeat budget is for all others, so it bounds the cost of unreachable
// peers.
const (
	firstPerSecond  = 1500
	repeatPerSecond = 100
)

// budget limits initiations by two token buckets. The zero value is full.
type budget struct{ first, repeat bucket }

// take reports whether an initiation may be sent now, and if so uses a token of its bucket.
func (b *budget) take(first bool, now time.Duration) bool {
	if first {
		return b.first.take(now, time.Second/firstPerSecond, 200)
	}
	return b.repeat.take(now, time.Second/repeatPerSecond, 50)
}

// bucket is a token bucket that is refilled by one token each interval (GCRA). The zero value is
// full.
type bucket struct{ next time.Duration }

// take uses a token and reports whether there was one. The bucket holds burst+1 tokens.
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

// Limits of load. Above either limit, and for loadHeld after it, the device demands cookies. Only
// messages with a valid MAC1 count. A handshake costs the responder 0.3 to 0.5 ms of CPU, so 2,000
// per second take about one core, and 256 queued messages take 0.1 s. loadPerSecond is above
// firstPerSecond, because a node that restarts causes that many handshakes.
const (
	loadWaiting   = ringSize / 4
	loadPerSecond = 2000
	loadHeld      = time.Second
)

// load decides whether the device is under load: whether handshake messages arrive faster than it
// should answer them.
type load struct {
	second time.Duration
	count  int
	until  time.Duration
}

// note counts a handshake message; waiting is the number of messages that are queued behind it.
func (l *load) note(waiting int, now time.Duration) {
	if now-l.second >= time.Second {
		l.second, l.count = now, 0
	}
	if l.count++; l.count > loadPerSecond || waiting >= loadWaiting {
		l.until = now + loadHeld
	}
}

func (l *load) high(now time.Duration) bool { return now < l.until }

// limiter limits handshake messages per source address under load: 20 per second, with bursts of 5.
// All addresses of an IPv6 /64 share one limit. The limiter stores at most maxLimited addresses.
// While it is full, it refuses other addresses. It removes idle addresses once per second.
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
