package pathmtu

import "time"

// burstSize is the number of probes of a size that are sent as one segmented datagram.
const burstSize = 8

type burstPhase int

const (
	quiet    burstPhase = iota // nothing is under way
	together                   // burstSize probes in one segmented datagram
	alone                      // one probe, after no probe of the burst was answered
)

// burst decides whether a path carries single datagrams but loses datagrams that are sent as one
// segmented datagram (UDP_SEGMENT). It is pure: the caller sends the probes that are due and
// reports the outcome.
type burst struct {
	timing Timing
	phase  burstPhase
	lost   int // consecutive times that the burst was lost and the single probe was answered
	next   time.Time
}

// begin begins a check, unless one is under way. The path must just have carried a single probe of
// the same size.
func (b *burst) begin(now time.Time) {
	if b.phase == quiet {
		b.phase, b.lost, b.next = together, 0, now
	}
}

// due returns the time of the next probes. ok is false if no check is under way.
func (b *burst) due() (at time.Time, ok bool) { return b.next, b.phase != quiet }

// count returns the number of probes to send.
func (b *burst) count() int {
	if b.phase == together {
		return burstSize
	}
	return 1
}

// answered records that one of the probes was answered. It reports whether the path loses segmented
// datagrams.
func (b *burst) answered(now time.Time) (broken bool) {
	if b.phase == together {
		b.phase = quiet
		return false
	}
	b.lost++
	if b.lost == b.timing.Tries {
		b.phase = quiet
		return true
	}
	b.phase, b.next = together, now.Add(b.timing.RetryMin)
	return false
}

// unanswered records that none of the probes was answered in time.
func (b *burst) unanswered(now time.Time) {
	if b.phase == together {
		b.phase, b.next = alone, now
		return
	}
	b.phase = quiet // The peer does not answer at all.
}
