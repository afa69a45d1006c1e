// Package poll repeats a call until it succeeds.
package poll

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// StopError is an error after which Until does not try again.
type StopError struct{ error }

// Unwrap returns the error that Stop was given.
func (e StopError) Unwrap() error { return e.error }

// Stop wraps an error after which Until need not try again.
func Stop(err error) error { return StopError{err} }

// Until calls fn until it returns nil, with pauses that double from first to most. If ctx ends
// before, the error holds its cause and fn's last error.
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
			// The last try is often cut short. Its error reports only that.
			last = err
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: last: %w", context.Cause(ctx), last)
		case <-time.After(pause):
		}
	}
}
