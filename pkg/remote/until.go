package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// Pauses of Until, the first and the longest.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// Stop wraps an error after which Until need not try again.
func Stop(err error) error { return poll.Stop(err) }

// Until calls fn until it returns nil, at most for patience, which follows the context's pace; the
// error names what and holds fn's last. The context that fn is given ends with the patience.
func Until(ctx context.Context, what string, patience time.Duration,
	fn func(ctx context.Context) error) error {
	ctx, cancel := withPatience(ctx, patience)
	defer cancel()
	err := poll.Until(ctx, firstPause, lastPause, func() error { return fn(ctx) })
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// withPatience returns a context that ends when the patience is over, which may grow with the pace
// meanwhile. It must be cancelled.
func withPatience(ctx context.Context, usual time.Duration) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	began := time.Now()
	go func() {
		for {
			left := Patience(ctx, usual) - time.Since(began)
			if left <= 0 {
				end(context.DeadlineExceeded)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(left):
			}
		}
	}()
	return ctx, func() { end(nil) }
}
