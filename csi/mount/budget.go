package mount

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// DefaultMemory is the memory in bytes that the programs of a Host without a Budget may take.
	DefaultMemory = 384 << 20
	// mostPrograms is the maximum number of programs without a memory limit that run at the same
	// time. Each takes that part of a Budget.
	mostPrograms = 8
	// sharePatience is how long a program that uses no CPU time keeps its share of the memory. A
	// program that waits for a hanging disk never ends and cannot be killed.
	sharePatience = 5 * time.Minute
)

// Budget is the memory that all programs together may take. It serves requests in their order. Its
// methods may be called from several goroutines.
type Budget struct {
	total int64
	free  *semaphore.Weighted
}

// NewBudget returns a Budget of memory bytes. 0 means DefaultMemory.
func NewBudget(memory uint64) *Budget {
	if memory == 0 {
		memory = DefaultMemory
	}
	return &Budget{total: int64(memory), free: semaphore.NewWeighted(int64(memory))}
}

// defaultBudget is the Budget of each Host without one.
var defaultBudget = NewBudget(0)

// share is the part of a Budget that one program has. Use Budget.take.
type share struct {
	give func()
	over chan struct{}
}

// take waits until memory bytes of the Budget are free, and takes them. A larger request takes the
// whole Budget. The caller calls end.
func (b *Budget) take(ctx context.Context, memory int64) (*share, error) {
	memory = min(memory, b.total)
	if err := b.free.Acquire(ctx, memory); err != nil {
		return nil, err
	}
	return &share{over: make(chan struct{}),
		give: sync.OnceFunc(func() { b.free.Release(memory) })}, nil
}

// end returns the memory. Call it once.
func (s *share) end() {
	close(s.over)
	s.give()
}

// watch returns the memory early if the program hangs. A program hangs if spent, its CPU time, does
// not change for sharePatience. A slow program keeps its memory; a hanging one takes no more
// memory.
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
