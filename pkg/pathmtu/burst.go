package pathmtu

import "time"

// burstSize is the number of probes of a size that are sent as one segmented datagram.
const burstSize = 8

type burstPhase int

const (
	quiet    burstPhase = iota
	together            // probes that are sent as one
	alone               // one probe, after none of those was answered
)

// burst finds out whether a path loses datagrams that are sent as one (UDP_SEGMENT, and what follows
// from it on the way) and carries single ones. It is pure: the caller sends what probe returns and
// reports the outcome.
type burst struct {
	timing Timing
	phase  burstPhase
	lost   int // times that none together and the one alone was answered, in a row
	next   time.Time
}

// begin begins an attempt. The path has just carried a single probe of the size.
func (b *burst) begin(now time.Time) {
	if b.phase == quiet {
		b.phase, b.lost, b.next = together, 0, now
	}
}

// due returns the time of the next probes; ok is false while there are none.
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
