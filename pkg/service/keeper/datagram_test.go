package keeper

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestSearchesForSocketsLeaveProcessorTime: while backends of UDP are deleted all the time, a
// search is followed by a pause of four times its duration, and of 200 ms at least.
func TestSearchesForSocketsLeaveProcessorTime(t *testing.T) {
	for name, v := range map[string]struct{ search, turn time.Duration }{
		"many sockets": {time.Second, 5 * time.Second},
		"few sockets":  {10 * time.Millisecond, 210 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &Keeper{log: slog.New(slog.DiscardHandler), stale: make(chan struct{}, 1),
					abortAgain: time.Hour}
				start := time.Now()
				var began []time.Duration
				k.abort = func() (int, error) {
					began = append(began, time.Since(start))
					k.findStale()
					<-time.After(v.search)
					return 0, nil
				}

				k.findStale()
				ctx, cancel := context.WithTimeout(t.Context(), 2*v.turn+v.search)
				defer cancel()
				k.abortStale(ctx)
				if want := []time.Duration{0, v.turn, 2 * v.turn}; !slices.Equal(began, want) {
					t.Errorf("searches began after %v, want %v", began, want)
				}
			})
		})
	}
}
