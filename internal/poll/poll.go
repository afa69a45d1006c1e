// Package poll repeats a call: until it succeeds, or at an interval. It also waits between calls.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// StopError wraps an error of fn after which Until returns.
type StopError struct{ error }

// Unwrap returns the wrapped error.
func (e StopError) Unwrap() error { return e.error }

// Stop wraps err. Until returns err at once when fn returns the result.
func Stop(err error) error { return StopError{err} }

// Until calls fn until it returns nil or an error of Stop, with pauses that double from first to
// most. If ctx ends before that, the error wraps the cause of ctx and the last error of fn.
func Until(ctx context.Context, first, most time.Duration, fn func() error) error {
	var last error
	for pause := first; ; pause = min(2*pause, most) {
		err := fn()
		var stop StopError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return stop.error
		case last == nil || ctx.Err() == nil:
			// The error of a try during which ctx ended often reports only that, so it is kept only
			// if there is no other.
			last = err
		}

		if err := Pause(ctx, pause); err != nil {
			return fmt.Errorf("%w: last: %w", err, last)
		}
	}
}

// Pause returns after d, or with the cause of ctx once ctx has ended.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Each calls fn at each interval until ctx ends. It returns nil.
func Each(ctx context.Context, interval time.Duration, fn func(now time.Time)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			fn(now)
		}
	}
}
