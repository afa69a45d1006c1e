package droplog

import (
	"maps"
	"time"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables"
)

// Bounds of what is logged, regardless of what pods send.
const (
	// dropRepeat is how soon a drop with the same ends is logged again.
	dropRepeat = time.Hour
	// dropBurst drops of one sender are logged at once, then one each dropEvery.
	dropBurst = 20
	dropEvery = 10 * time.Second
	// dropKnown bounds the drops of one sender that are remembered, and dropSenders the senders.
	dropKnown   = 512
	dropSenders = 4096
	// dropNodeBurst drops of all senders are logged at once, then one each dropNodeEvery.
	dropNodeBurst = 400
	dropNodeEvery = 100 * time.Millisecond
)

// dropLimit decides which drops are logged. It remembers the logged drops of each sending pod, and
// has a token bucket per pod for new ones. Packets that no known pod sent share one bucket. A
// dropLimit is for one goroutine.
type dropLimit struct {
	node    bucket
	senders map[policy.Name]*senderLimit
}

// senderLimit is the account of one sender.
type senderLimit struct {
	bucket
	known   map[sameDrop]time.Time
	skipped int
}

// sameDrop is the key of drops that count as the same: equal flows and reasons, with any source
// port.
type sameDrop struct {
	policy.Flow
	reason string
}

// bucket is a token bucket. full is the time at which it is full again; the zero value is a full
// bucket.
type bucket struct{ full time.Time }

// has reports whether a bucket has a token, take takes one.
func (b *bucket) has(now time.Time, burst int, every time.Duration) bool {
	if b.full.Before(now) {
		b.full = now
	}
	return b.full.Sub(now) <= time.Duration(burst-1)*every
}

func (b *bucket) take(every time.Duration) { b.full = b.full.Add(every) }

func newDropLimit() *dropLimit { return &dropLimit{senders: map[policy.Name]*senderLimit{}} }

// accept reports whether a drop of the sender's packet is to be logged now. If so, it takes the
// tokens and remembers the drop.
func (l *dropLimit) accept(d nftables.Dropped, sender policy.Name, now time.Time) bool {
	s, same := l.sender(sender, now), sameDrop{d.Flow, d.Reason}
	if last, known := s.known[same]; known && now.Sub(last) < dropRepeat {
		return false
	}
	if !s.has(now, dropBurst, dropEvery) || !l.node.has(now, dropNodeBurst, dropNodeEvery) {
		s.skipped++
		return false
	}

	s.take(dropEvery)
	l.node.take(dropNodeEvery)
	if len(s.known) >= dropKnown {
		clear(s.known)
	}
	s.known[same] = now
	return true
}

// sender returns the account of a sender. If there are too many accounts, idle ones are removed. If
// none is idle, the sender shares the account of unknown senders.
func (l *dropLimit) sender(name policy.Name, now time.Time) *senderLimit {
	if s := l.senders[name]; s != nil {
		return s
	}
	if none := (policy.Name{}); len(l.senders) >= dropSenders && name != none {
		maps.DeleteFunc(l.senders, func(n policy.Name, s *senderLimit) bool {
			return n != none && now.Sub(s.full) > dropRepeat
		})
		if len(l.senders) >= dropSenders {
			return l.sender(none, now)
		}
	}
	s := &senderLimit{known: map[sameDrop]time.Time{}}
	l.senders[name] = s
	return s
}

// takeSkipped returns how many drops of a sender had no token since the last call.
func (l *dropLimit) takeSkipped(sender policy.Name) int {
	s := l.senders[sender]
	if s == nil {
		s = l.senders[policy.Name{}]
	}
	n := s.skipped
	s.skipped = 0
	return n
}
