package pathmtu

import "time"

// step is the distance in bytes between sizes that are tried. WireGuard pads to a multiple of it
// (whitepaper, section 5.4.6), so sizes in between have the same length on the path.
const step = 16

// Timing sets the pace of a Search.
type Timing struct {
	// Interval is the pause between checks of the believed size.
	Interval time.Duration
	// RaiseMin is the pause after which a larger size is tried for the first time after the size
	// was lowered. The pause doubles each time, up to RaiseInterval. 0 means RaiseInterval.
	RaiseMin time.Duration
	// RaiseInterval is the longest pause after which a larger size is tried.
	RaiseInterval time.Duration
	// RetryMin is the first pause after a peer answered no probe of any size. The pause doubles
	// each time, up to Interval.
	RetryMin time.Duration
	// Tries is the number of probes of a size that must be lost before the size counts as too
	// large.
	Tries int
}

type phase int

const (
	idle    phase = iota
	verify        // probe the believed size
	raise         // probe the full size
	halve         // probe a size between lo and hi
	control       // probe lo again after a size failed, to check that the peer answers
	confirm       // probe the believed size again after the control was answered
	knock         // send one small probe to a peer that answered no probe of any size
)

// Search finds the largest size that a path carries, by a binary search like DPLPMTUD (RFC 8899).
// It is pure: the caller sends probes of the size that Probe returns and reports the outcome.
type Search struct {
	timing      Timing
	floor, ceil int
	believed    int

	phase   phase
	size    int  // of the probe under way
	lost    int  // lost probes of that size in a row
	doubt   bool // the believed size failed, perhaps because the peer was not up yet
	lo, hi  int  // lo was answered or is the floor; hi failed
	top     int  // the size whose failure began the binary search
	next    time.Time
	raiseAt time.Time
	pause   time.Duration // from the last result to raiseAt
	retry   time.Duration
}

// NewSearch returns a search that begins with ceil, the MTU of the device, as the believed size. No
// size below floor is tried. All sizes are in bytes.
func NewSearch(floor, ceil int, timing Timing, now time.Time) *Search {
	if timing.RaiseMin == 0 {
		timing.RaiseMin = timing.RaiseInterval
	}
	return &Search{timing: timing, floor: min(floor, ceil), ceil: ceil, believed: ceil, next: now,
		raiseAt: now.Add(timing.RaiseInterval)}
}

// Believe makes a new search begin with size, or with the floor if that is larger. The search tries
// the full size as soon as size was answered.
func (s *Search) Believe(size int) {
	s.believed = min(max(size, s.floor), s.ceil)
	s.raiseAt = s.next
}

// MTU returns the largest size that the path is believed to carry.
func (s *Search) MTU() int { return s.believed }

// Next returns the time at which an idle Search is due again.
func (s *Search) Next() time.Time { return s.next }

// Idle reports whether the search pauses until Next: no probe is under way or to be sent at once.
func (s *Search) Idle() bool { return s.phase == idle }

// Answers reports whether the last search that ended had an answer. It is true before the first.
func (s *Search) Answers() bool { return s.retry == 0 }

// Doubt makes the next search begin with one small probe, because the peer may not answer.
func (s *Search) Doubt() { s.retry = max(s.retry, s.timing.RetryMin) }

// Probe returns the size of the probe to send now. ok is false if the search is idle. The size
// stays the same until Answered or Lost is called.
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
		s.check(now)
	case raise:
		s.believe(now, s.ceil)
	case halve:
		s.lo = s.size
		s.halve(now)
	case control:
		if s.doubt {
			// The peer may have come up only now, so that probes of all sizes were lost before.
			s.doubt = false
			s.begin(confirm, s.hi)
			return
		}
		s.halve(now)
	case confirm:
		s.check(now)
	case knock:
		s.begin(verify, s.believed)
	}
}

// AnsweredLate reports that a probe of size, which was sent since the search was last idle, was
// answered after Lost had been called for it. So the path carries that size, and is slow. It
// returns whether the search has gone on, so that the probe under way no longer matters.
func (s *Search) AnsweredLate(size int, now time.Time) bool {
	doubted := s.phase == control && s.doubt
	switch {
	case s.phase != idle && s.phase != knock && size == s.size:
		s.Answered(now)
	case s.phase == idle && size > s.believed:
		s.believe(now, size)
	case s.phase == idle || s.phase == knock || s.phase == verify || size <= s.lo:
		return false
	case size == s.believed:
		s.retry = 0
		s.check(now)
	case doubted:
		return false
	case size == s.ceil:
		s.believe(now, size)
	default:
		if s.lo = size; size >= s.hi {
			s.hi = s.top
		}
		s.halve(now)
	}
	return true
}

// Lost reports that the probe under way was not answered in time.
func (s *Search) Lost(now time.Time) {
	if s.lost++; s.phase == idle || s.lost < s.timing.Tries && s.phase != knock {
		return
	}
	switch s.phase {
	case verify:
		s.lo, s.hi, s.top, s.doubt = s.floor, s.size, s.size, true
		s.begin(control, s.lo)
	case raise:
		s.hi, s.top = s.size, s.size
		s.begin(control, s.lo)
	case halve:
		s.hi = s.size
		s.begin(control, s.lo)
	case confirm:
		s.halve(now)
	case control, knock:
		// Probes of every size are lost, so the loss does not depend on the size.
		s.retry = min(max(2*s.retry, s.timing.RetryMin), s.timing.Interval)
		s.rest(now, s.retry)
	}
}

func (s *Search) begin(p phase, size int) { s.phase, s.size, s.lost = p, size, 0 }

func (s *Search) rest(now time.Time, pause time.Duration) {
	s.begin(idle, 0)
	s.next = now.Add(pause)
}

// believe ends a search with size. If the same size was found again, the pause before a larger one
// is tried doubles.
func (s *Search) believe(now time.Time, size int) {
	if size != s.believed {
		s.pause = 0
	}
	s.pause = min(max(2*s.pause, s.timing.RaiseMin), s.timing.RaiseInterval)
	s.believed, s.raiseAt = size, now.Add(s.pause)
	s.check(now)
}

// check ends a search. The believed size is checked after Interval, or when a larger size is due to
// be tried.
func (s *Search) check(now time.Time) {
	pause := s.timing.Interval
	if s.believed < s.ceil {
		pause = min(pause, max(s.raiseAt.Sub(now), 0))
	}
	s.rest(now, pause)
}

// halve begins to probe the multiple of step in the middle between lo and hi. If there is none, it
// ends the search with lo.
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
