package pathmtu

import "time"

// step is the distance of the sizes that are tried: WireGuard pads to it (whitepaper, section
// 5.4.6), so sizes in between look the same on the path.
const step = 16

// Timing sets the pace of a Search.
type Timing struct {
	// Interval is the pause between checks of the believed size.
	Interval time.Duration
	// RaiseInterval is the pause after which a larger size is tried.
	RaiseInterval time.Duration
	// RetryMin is the pause after a peer did not answer at all; it doubles up to Interval.
	RetryMin time.Duration
	// Tries is the number of probes of a size that must be lost before the size counts as too
	// large.
	Tries int
}

type phase int

const (
	idle    phase = iota
	verify        // the believed size
	raise         // the full size
	halve         // a size between lo and hi
	control       // lo again, after a size failed: is it the size or the peer?
	confirm       // the believed size again, after a control of the same peer was answered
	knock         // one small probe to a peer that did not answer at all
)

// Search finds the largest size that a path carries: a binary search in the manner of DPLPMTUD (RFC
// 8899). It is pure: the caller sends what Probe returns and reports the outcome.
type Search struct {
	timing      Timing
	floor, ceil int
	believed    int

	phase   phase
	size    int  // of the probe under way
	lost    int  // probes of it that were lost
	doubt   bool // the believed size failed, maybe before the peer was there
	lo, hi  int  // lo was answered or is the floor; hi failed
	next    time.Time
	raiseAt time.Time
	retry   time.Duration
}

// NewSearch begins with the belief that ceil, the MTU of the device, fits.
func NewSearch(floor, ceil int, timing Timing, now time.Time) *Search {
	return &Search{timing: timing, floor: min(floor, ceil), ceil: ceil, believed: ceil, next: now,
		raiseAt: now.Add(timing.RaiseInterval)}
}

// Believe makes a new search begin with size, or the floor if that is larger,
// and try the full one as soon as size was answered.
func (s *Search) Believe(size int) {
	s.believed = min(max(size, s.floor), s.ceil)
	s.raiseAt = s.next
}

// MTU is the size that is believed to fit.
func (s *Search) MTU() int { return s.believed }

// Next returns the time at which an idle Search is due again.
func (s *Search) Next() time.Time { return s.next }

// Idle reports whether no probe is under way or to be sent at once.
func (s *Search) Idle() bool { return s.phase == idle }

// Probe returns the size of the probe to send now; ok is false when the search is idle. The size is
// the same until Answered or Lost is called.
func (s *Search) Probe(now time.Time) (size int, ok bool) {
	if s.phase == idle && !now.Before(s.next) {
		if s.retry > 0 {
			s.begin(knock, s.floor)
		} else {
			s.begin(verify, s.believed)
		}
	}
	return s.size, s.phase != idle
}

// Answered reports that the probe under way was answered.
func (s *Search) Answered(now time.Time) {
	s.retry = 0

	switch s.phase {
	case verify:
		if s.believed < s.ceil && !now.Before(s.raiseAt) {
			s.lo = s.believed
			s.begin(raise, s.ceil)
			return
		}
		s.rest(now, s.timing.Interval)
	case raise:
		s.believe(now, s.ceil)
	case halve:
		s.lo = s.size
		s.halve(now)
	case control:
		if s.doubt {
			// The peer may have come only now, in which case all sizes were lost before.
			s.doubt = false
			s.begin(confirm, s.hi)
			return
		}
		s.halve(now)
	case confirm:
		s.rest(now, s.timing.Interval)
	case knock:
		s.begin(verify, s.believed)
	}
}

// Lost reports that the probe under way was not answered in time.
func (s *Search) Lost(now time.Time) {
	if s.lost++; s.phase == idle || s.lost < s.timing.Tries && s.phase != knock {
		return
	}
	switch s.phase {
	case verify:
		s.lo, s.hi, s.doubt = s.floor, s.size, true
		s.begin(control, s.lo)
	case raise, halve:
		s.hi = s.size
		s.begin(control, s.lo)
	case confirm:
		s.halve(now)
	case control, knock:
		// Probes of every size are lost, so nothing follows for a size.
		s.retry = min(max(2*s.retry, s.timing.RetryMin), s.timing.Interval)
		s.rest(now, s.retry)
	}
}

func (s *Search) begin(p phase, size int) { s.phase, s.size, s.lost = p, size, 0 }

func (s *Search) rest(now time.Time, pause time.Duration) {
	s.begin(idle, 0)
	s.next = now.Add(pause)
}

func (s *Search) believe(now time.Time, size int) {
	s.believed = size
	s.raiseAt = now.Add(s.timing.RaiseInterval)
	s.rest(now, s.timing.Interval)
}

// halve tries the multiple of step in the middle between lo and hi, or ends.
func (s *Search) halve(now time.Time) {
	mid := (s.lo + s.hi) / 2 / step * step
	if mid <= s.lo {
		mid = (s.lo/step + 1) * step
	}
	if mid >= s.hi {
		s.believe(now, s.lo)
		return
	}
	s.begin(halve, mid)
}
