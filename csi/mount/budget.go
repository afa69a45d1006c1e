package mount

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// DefaultMemory is the memory in bytes of the programs of a Host without a Budget.
	DefaultMemory = 384 << 20
	// mostPrograms is how many programs without a limit of memory run at once: each takes that part
	// of a Budget.
	mostPrograms = 8
	// sharePatience is how long a program may delay others without running itself: one that waits
	// for a hanging disk never ends and cannot be killed.
	sharePatience = 5 * time.Minute
)

// Budget is the memory that programs may take at once. Requests are served in their order. Its
// methods may be called at the same time.
type Budget struct {
	total int64
	free  *semaphore.Weighted
}

// NewBudget returns a Budget of so many bytes, which is DefaultMemory for 0.
func NewBudget(memory uint64) *Budget {
	if memory == 0 {
		memory = DefaultMemory
	}
	return &Budget{total: int64(memory), free: semaphore.NewWeighted(int64(memory))}
}

// defaultBudget is the Budget of each Host without one.
var defaultBudget = NewBudget(0)

// share is the part of a Budget that one program has.
type share struct {
	give func()
	over chan struct{}
}

// take waits for that much memory of the Budget, at most all of it. end ends the share.
func (b *Budget) take(ctx context.Context, memory int64) (*share, error) {
	memory = min(memory, b.total)
	if err := b.free.Acquire(ctx, memory); err != nil {
		return nil, err
	}
	return &share{over: make(chan struct{}),
		give: sync.OnceFunc(func() { b.free.Release(memory) })}, nil
}

// end returns the memory; call it once.
func (s *share) end() {
	close(s.over)
	s.give()
}

// watch returns the memory early if the program hangs: if spent, its time on processors, is the
// same after sharePatience. A slow program keeps its memory, and what hangs takes no more.
func (s *share) watch(spent func() string) {
	for last := spent(); ; {
		select {
		case <-s.over:
			return
		case <-time.After(sharePatience):
		}
		now := spent()
		if now == last {
			s.give()
			return
		}
		last = now
	}
}
