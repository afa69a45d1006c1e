package loop

import (
	"context"
	"errors"
	"time"
)

// ErrEnded is the error of Do after Run has returned.
var ErrEnded = errors.New("the loop has ended")

// Schedule holds the times of a Loop.
type Schedule struct {
	// Gather is the least time between the end of a turn and the next turn of a poke, so that one
	// turn handles several changes. A poke after that time causes a turn at once.
	Gather time.Duration
	// Resync is the interval of turns without another reason. 0 turns them off.
	Resync time.Duration
	// RetryMin and RetryMax bound the pause after a failed turn. Both must be more than zero.
	RetryMin, RetryMax time.Duration
	// Wait reports whether, after a failed turn, a poke must wait for the retry instead of causing
	// a turn at once. The goroutine of Run calls it. If it is nil, no poke waits.
	Wait func() bool
}

// Reason is the reason for a turn.
type Reason struct {
	// Resync reports whether the interval Resync is the only reason for the turn.
	Resync bool
	// Failed reports whether the last turn failed.
	Failed bool
}

// Loop makes turns. New returns a Loop, whose Run must be called once. Poke, Do and After may be
// called at any time from any goroutine. The Schedule must not change after Run was called.
type Loop struct {
	Schedule
	wake  chan struct{} // capacity 1
	jobs  chan func()
	ended chan struct{}
}

// New returns a Loop with the schedule o.
func New(o Schedule) *Loop {
	return &Loop{Schedule: o, wake: make(chan struct{}, 1), jobs: make(chan func()),
		ended: make(chan struct{})}
}

// Poke causes a turn. It returns at once.
func (l *Loop) Poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run calls turn for each turn until ctx ends. turn returns an error if the turn must be retried.
func (l *Loop) Run(ctx context.Context, turn func(Reason) error) {
	defer close(l.ended)
	var resync <-chan time.Time
	if l.Resync > 0 {
		tick := time.NewTicker(l.Resync)
		defer tick.Stop()
		resync = tick.C
	}

	var retry <-chan time.Time
	pause, failed := l.RetryMin, false
	var last time.Time // the end of the last turn
	for {
		reason := Reason{Failed: failed}
		select {
		case <-ctx.Done():
			return
		case job := <-l.jobs:
			job()
			continue
		case <-l.wake:
			if failed && l.Wait != nil && l.Wait() {
				continue
			}
			if !l.gather(ctx, last) {
				return
			}
			pause = l.RetryMin
		case <-retry:
		case <-resync:
			reason.Resync = true
		}

		err := turn(reason)
		last = time.Now()
		if err != nil {
			failed, retry = true, time.After(pause)
			pause = min(2*pause, l.RetryMax)
			continue
		}
		failed, retry, pause = false, nil, l.RetryMin
	}
}

// gather waits after a poke until Gather has passed since the last turn, because further changes
// often follow soon. It returns false if ctx ended.
func (l *Loop) gather(ctx context.Context, last time.Time) bool {
	rest := l.Gather - time.Since(last)
	if rest <= 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(rest):
	}
	select {
	case <-l.wake: // The turn has the changes of this poke too.
	default:
	}
	return true
}

// Do runs job between two turns and returns when job has returned. If Do returns an error, which is
// the error of ctx or ErrEnded, job did not run. A turn or a job must not call Do, because Do would
// wait for its caller.
func (l *Loop) Do(ctx context.Context, job func()) error {
	finished := make(chan struct{})
	select {
	case l.jobs <- func() { defer close(finished); job() }:
		<-finished
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return ErrEnded
	}
}

// After runs job once, between two turns, after d has passed. If Run ends first, job does not run.
func (l *Loop) After(d time.Duration, job func()) {
	time.AfterFunc(d, func() {
		select {
		case l.jobs <- job:
		case <-l.ended:
		}
	})
}
