package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
)

// The first and the longest pause between two calls of Until.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// Stop wraps an error. Until returns at once when its function returns such an error.
func Stop(err error) error { return poll.Stop(err) }

// Until calls fn until it returns nil or an error of Stop, at most for patience, which Patience
// adjusts to the pace of ctx. Otherwise it returns what and the last error of fn. The context of fn
// ends when the time is over.
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

// withPatience returns a context that ends when Patience(ctx, usual) has passed. That time may grow
// during the wait, because the pace may change. The caller must call the function that it returns.
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
