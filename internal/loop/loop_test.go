package loop

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var errTurn = errors.New("the kernel refuses")

// world is a loop in a synctest bubble. It records the times of its turns.
type world struct {
	*Loop
	began time.Time
	turns []time.Duration
	// reasons has the reason of each turn.
	reasons []Reason
	// fails is the number of next turns that will fail.
	fails int
	stop  func()
}

// run calls f with a loop that runs.
func run(t *testing.T, o Schedule, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{Loop: New(o), began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx, w.turn)
		}()
		w.stop = func() { cancel(); <-done }
		defer w.stop()
		f(t, w)
	})
}

func (w *world) turn(r Reason) error {
	w.turns = append(w.turns, time.Since(w.began))
	w.reasons = append(w.reasons, r)
	if w.fails > 0 {
		w.fails--
		return errTurn
	}
	return nil
}

// pass waits for d in the time of the bubble, and then until all its goroutines wait.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// until lets d pass and compares the turns that were made.
func (w *world) until(t *testing.T, d time.Duration, want ...time.Duration) {
	t.Helper()
	pass(d)
	if !slices.Equal(w.turns, want) {
		t.Errorf("turns at %v, want %v", w.turns, want)
	}
}

// A poke after calm causes a turn at once. Further pokes shortly after a turn cause one together.
func TestPokesShortlyAfterATurnCountAsOne(t *testing.T) {
	const ms = time.Millisecond
	run(t, Schedule{Gather: 2 * ms, RetryMin: time.Second, RetryMax: time.Second},
		func(t *testing.T, w *world) {
			w.Poke()
			w.until(t, ms/2, 0)
			w.Poke()
			w.until(t, ms/2, 0)
			w.Poke()
			w.until(t, time.Minute, 0, 2*ms)
			w.Poke()
			w.until(t, time.Minute, 0, 2*ms, time.Minute+ms)
		})
}

func TestRetriesPauseLongerUntilATurnSucceeds(t *testing.T) {
	const ms = time.Millisecond
	run(t, Schedule{RetryMin: 100 * ms, RetryMax: 300 * ms}, func(t *testing.T, w *world) {
		w.fails = 4
		w.Poke()
		w.until(t, time.Minute, 0, 100*ms, 300*ms, 600*ms, 900*ms)
		again := Reason{Failed: true}
		if want := []Reason{{}, again, again, again, again}; !slices.Equal(w.reasons, want) {
			t.Errorf("reasons %+v, want %+v", w.reasons, want)
		}

		w.turns, w.began, w.fails = nil, time.Now(), 1
		w.Poke()
		w.until(t, time.Minute, 0, 100*ms)
	})
}

func TestPokeAfterAFailureBeginsWithTheShortestPause(t *testing.T) {
	const ms = time.Millisecond
	run(t, Schedule{RetryMin: 100 * ms, RetryMax: time.Second}, func(t *testing.T, w *world) {
		w.fails = 4
		w.Poke()
		w.until(t, 350*ms, 0, 100*ms, 300*ms)
		w.Poke()
		w.until(t, 150*ms, 0, 100*ms, 300*ms, 350*ms, 450*ms)
	})
}

func TestPokeWaitsForTheRetryWhereWaitIsTrue(t *testing.T) {
	waits := true
	o := Schedule{RetryMin: time.Second, RetryMax: time.Second, Wait: func() bool { return waits }}
	run(t, o, func(t *testing.T, w *world) {
		w.Poke() // no turn has failed
		w.until(t, 0, 0)
		w.fails = 2
		w.Poke()
		w.until(t, 0, 0, 0)
		w.Poke()
		w.until(t, time.Second/2, 0, 0)
		waits = false
		w.Poke()
		w.until(t, 0, 0, 0, time.Second/2)
	})
}

func TestResyncMakesTurnsWithoutAReason(t *testing.T) {
	o := Schedule{Resync: 30 * time.Second, RetryMin: time.Second, RetryMax: time.Second}
	run(t, o, func(t *testing.T, w *world) {
		pass(10 * time.Second)
		w.Poke()
		w.until(t, 60*time.Second, 10*time.Second, 30*time.Second, 60*time.Second)
		if want := []Reason{{}, {Resync: true}, {Resync: true}}; !slices.Equal(w.reasons, want) {
			t.Errorf("reasons %+v, want %+v", w.reasons, want)
		}
	})
}

func TestJobsRunBetweenTurns(t *testing.T) {
	run(t, Schedule{RetryMin: time.Second, RetryMax: time.Second}, func(t *testing.T, w *world) {
		var ran atomic.Int32
		job := func() { ran.Add(1) }
		w.After(time.Minute, job)
		if err := w.Do(t.Context(), job); err != nil || ran.Load() != 1 {
			t.Errorf("ran %d jobs, %v, want 1", ran.Load(), err)
		}
		w.until(t, time.Minute)
		if ran.Load() != 2 {
			t.Errorf("ran %d jobs after the minute, want 2", ran.Load())
		}

		ctx, cancel := context.WithCancel(t.Context())
		w.After(time.Minute, job)
		w.stop()
		if err := w.Do(ctx, job); !errors.Is(err, ErrEnded) {
			t.Errorf("after the end: %v", err)
		}
		cancel()
		w.until(t, time.Hour)
		if ran.Load() != 2 {
			t.Errorf("ran %d jobs, the last one after the end", ran.Load())
		}
	})
}

func TestDoEndsWithItsContextBeforeRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(Schedule{}).Do(ctx, func() { t.Error("it ran") }); !errors.Is(err,
		context.Canceled) {
		t.Errorf("error %v", err)
	}
}
