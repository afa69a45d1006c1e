package framework

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Pauses of Until, the first and the longest.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

type stopError struct{ error }

func (e stopError) Unwrap() error { return e.error }

// Stop wraps an error after which Until need not try again.
func Stop(err error) error { return stopError{err} }

// Until calls fn until it returns nil, at most for patience; the error names what and holds fn's last. The context that
// fn is given ends with the patience.
func Until(ctx context.Context, what string, patience time.Duration, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := firstPause
	var last error
	for {
		err := fn(ctx)
		var stop stopError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return fmt.Errorf("%s: %w", what, stop.error)
		case last == nil || ctx.Err() == nil:
			// The last try is often cut short, and its error says only that.
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: last: %w", what, ctx.Err(), last)
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}
