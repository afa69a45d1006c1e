package lab

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stopError ends Until at once.
type stopError struct{ error }

func (e stopError) Unwrap() error { return e.error }

// Stop wraps an error after which Until need not try again.
func Stop(err error) error { return stopError{err} }

// Until calls fn until it returns nil, at most for timeout; the error holds fn's last.
func Until(ctx context.Context, timeout time.Duration, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pause := time.Millisecond
	for {
		err := fn()
		var stop stopError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return stop.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: last: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}
