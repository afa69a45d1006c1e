package health

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Health reports whether the daemon is alive and ready. Make one with New; it is safe for
// concurrent use.
type Health struct {
	// Now is time.Now. Tests replace it before the first call.
	Now func() time.Time

	limit time.Duration

	mu      sync.Mutex
	beat    time.Time
	pending map[string]bool
}

// New starts the clock: the daemon is alive as long as it calls Beat
// at least every limit, and ready when Done has been called for each of steps.
func New(limit time.Duration, steps ...string) *Health {
	h := &Health{limit: limit, Now: time.Now, pending: map[string]bool{}}
	h.beat = h.Now()
	for _, s := range steps {
		h.pending[s] = true
	}
	return h
}

// Beat records that the daemon's main loop is running.
func (h *Health) Beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beat = h.Now()
}

// Done records that step is done.
func (h *Health) Done(step string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pending, step)
}

// Undone records that step is no longer done, for example because the guard is missing.
func (h *Health) Undone(step string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[step] = true
}

// Alive returns the reasons why the daemon should be restarted, or nil when it is alive.
func (h *Health) Alive() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if silent := h.Now().Sub(h.beat); silent > h.limit {
		return []string{fmt.Sprintf("the main loop has not gone round for %s (limit %s)",
			silent.Round(time.Second), h.limit)}
	}
	return nil
}

// Ready returns the reasons why the node is not ready, sorted, or nil when it is ready.
func (h *Health) Ready() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for s := range h.pending {
		out = append(out, "not yet: "+s)
	}
	slices.Sort(out)
	return out
}
