package feed

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// Lists counts the lists that were not read yet.
type Lists struct {
	left atomic.Int32
	all  chan struct{} // closed when none is left
}

// NewLists returns a count of n lists.
func NewLists(n int32) *Lists {
	l := &Lists{all: make(chan struct{})}
	l.left.Store(n)
	return l
}

// Done records that a list was read.
func (l *Lists) Done() {
	if l.left.Add(-1) == 0 {
		close(l.all)
	}
}

// Run runs feeds until ctx ends, and returns ctx's error. It calls listed when all lists have been
// read. It silences the log of the client library.
func Run(ctx context.Context, unlisted *Lists, listed func(),
	feeds ...func(context.Context)) error {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, feed := range feeds {
		wg.Go(func() { feed(ctx) })
	}

	select {
	case <-unlisted.all:
		listed()
		<-ctx.Done()
	case <-ctx.Done():
	}
	return ctx.Err()
}
