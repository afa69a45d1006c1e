package engine

import "math"

// Limits of a session's counter (whitepaper, section 6.1).
const (
	rekeyAfterMessages  = 1 << 60
	rejectAfterMessages = math.MaxUint64 - 1<<13
)

// window is the anti-replay window of RFC 6479, 8,128 counters wide. The zero value is empty.
type window struct {
	next uint64 // one more than the greatest counter seen
	ring [windowWords]uint64
}

const (
	windowWords = 128 // a power of two
	windowSize  = (windowWords - 1) * 64
)

// stale reports whether a counter is beyond the protocol's limit or below the window. accept
// refuses such a counter.
func (w *window) stale(c uint64) bool {
	return c >= rejectAfterMessages || w.next > windowSize+1 && c < w.next-1-windowSize
}

// accept reports whether a counter is new, and marks it as seen.
func (w *window) accept(c uint64) bool {
	if w.stale(c) {
		return false
	}
	word := c / 64
	if c >= w.next {
		last := uint64(0)
		if w.next > 0 {
			last = (w.next - 1) / 64
		}
		for i := range min(word-last, windowWords) {
			w.ring[(last+1+i)%windowWords] = 0
		}
		w.next = c + 1
	}
	bit := uint64(1) << (c % 64)
	at := &w.ring[word%windowWords]
	seen := *at&bit != 0
	*at |= bit
	return !seen
}
