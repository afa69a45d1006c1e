package drop

import (
	"maps"
	"sync"
)

// counts holds the number of dropped packets and the number of samples that BPF programs wrote,
// both by reason. dropped is read before written, so that a packet that is dropped and sampled
// between the two reads does not count as skipped.
type counts struct{ dropped, written map[string]uint64 }

// tally compares the counters of drops with the samples, by reason. The zero value is ready.
type tally struct {
	mu sync.Mutex
	// base holds the counts at begin. sampled counts the samples of nflog since then.
	base    counts
	sampled map[string]uint64
	// last holds the drop counters at the last call of settled, and total the result of that call.
	last, total map[string]uint64
}

// begin starts the comparison. Packets that were counted before do not count as skipped.
func (t *tally) begin(c counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base, t.sampled = c, map[string]uint64{}
	t.last, t.total = c.dropped, map[string]uint64{}
}

// add counts a sample of nflog.
func (t *tally) add(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sampled != nil {
		t.sampled[reason]++
	}
}

// before returns how many packets were counted before begin.
func (t *tally) before() (n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, count := range t.base.dropped {
		n += count
	}
	return n
}

// skipped returns how many packets have no sample, by reason. It includes packets whose samples
// have not arrived yet, so a number may decrease later.
func (t *tally) skipped(c counts) map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skippedLocked(c)
}

// settled returns how many packets had no sample at the last call of settled. Their samples have
// had time to arrive, so its numbers never decrease.
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
		// n is smaller than base if another program reset the counter.
		from := min(t.base.dropped[reason], n) + t.sampled[reason]
		from += c.written[reason] - min(t.base.written[reason], c.written[reason])
		if n > from {
			out[reason] = n - from
		}
	}
	return out
}
