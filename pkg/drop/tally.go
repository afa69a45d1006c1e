package drop

import (
	"maps"
	"sync"
)

// tally compares the counters of drops with the samples, by reason. The zero value is ready.
type tally struct {
	mu sync.Mutex
	// base are the counters at the beginning, sampled counts the samples since.
	base, sampled map[string]uint64
	// last are the counters at the last call of settled, and total is what it returned.
	last, total map[string]uint64
}

// begin begins to compare. What was counted so far has no sample, and is not skipped.
func (t *tally) begin(counts map[string]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base, t.sampled = maps.Clone(counts), map[string]uint64{}
	t.last, t.total = maps.Clone(counts), map[string]uint64{}
}

// add counts a sample.
func (t *tally) add(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sampled != nil {
		t.sampled[reason]++
	}
}

// before returns how many packets were counted before the beginning.
func (t *tally) before() (n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, count := range t.base {
		n += count
	}
	return n
}

// skipped returns how many packets have no sample. Packets whose samples are on their way count for
// a moment, so a number may become smaller.
func (t *tally) skipped(counts map[string]uint64) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skippedLocked(counts)
}

// settled is skipped for the counters of the last call, whose samples have arrived since. Its
// numbers never become smaller.
func (t *tally) settled(counts map[string]uint64) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, n := range t.skippedLocked(t.last) {
		t.total[reason] = max(t.total[reason], n)
	}
	t.last = maps.Clone(counts)
	return maps.Clone(t.total)
}

func (t *tally) skippedLocked(counts map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for reason, n := range counts {
		// A counter that another program deleted begins at 0 again.
		if from := min(t.base[reason], n) + t.sampled[reason]; n > from {
			out[reason] = n - from
		}
	}
	return out
}
