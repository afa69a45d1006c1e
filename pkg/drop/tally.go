package drop

import (
	"maps"
	"sync"
)

// counts are numbers of packets, by reason: of those that were dropped, and of the samples that
// programs wrote of them. dropped was read before written, so that no sample is of a packet that
// was not counted yet.
type counts struct{ dropped, written map[string]uint64 }

// tally compares the counters of drops with the samples, by reason. The zero value is ready.
type tally struct {
	mu sync.Mutex
	// base are the counts at the beginning. sampled counts the samples of the kernel's log since.
	base    counts
	sampled map[string]uint64
	// last are the counters at the last call of settled, and total is what it returned.
	last, total map[string]uint64
}

// begin begins to compare. What was counted so far has no sample, and is not skipped.
func (t *tally) begin(c counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base, t.sampled = c, map[string]uint64{}
	t.last, t.total = c.dropped, map[string]uint64{}
}

// add counts a sample of the kernel's log.
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
	for _, count := range t.base.dropped {
		n += count
	}
	return n
}

// skipped returns how many packets have no sample. Packets whose samples are on their way count for
// a moment, so a number may become smaller.
func (t *tally) skipped(c counts) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skippedLocked(c)
}

// settled is skipped for the counters of the last call, whose samples have arrived since. Its
// numbers never become smaller.
func (t *tally) settled(c counts) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, n := range t.skippedLocked(counts{t.last, c.written}) {
		t.total[reason] = max(t.total[reason], n)
	}
	t.last = c.dropped
	return maps.Clone(t.total)
}

func (t *tally) skippedLocked(c counts) map[string]uint64 {
	out := map[string]uint64{}
	for reason, n := range c.dropped {
		// A counter that another program deleted begins at 0 again.
		from := min(t.base.dropped[reason], n) + t.sampled[reason]
		from += c.written[reason] - min(t.base.written[reason], c.written[reason])
		if n > from {
			out[reason] = n - from
		}
	}
	return out
}
