package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/driver"
)

const (
	// warnAgain is how long the same is not said again of a volume: the kubelet asks every two
	// minutes.
	warnAgain = 10 * time.Minute
	// warnings is how many may wait to be said; more are in the log alone.
	warnings = 16
)

// warner makes events at the claims of volumes whose disk was refused.
type warner struct {
	warn  func(ctx context.Context, volume, reason, message string) error
	log   *slog.Logger
	calls chan driver.Call
}

func newWarner(warn func(ctx context.Context, volume, reason, message string) error,
	log *slog.Logger) *warner {
	return &warner{warn: warn, log: log, calls: make(chan driver.Call, warnings)}
}

// observe is told of each call, and never blocks.
func (w *warner) observe(c driver.Call) {
	if c.Volume == "" || !errors.As(c.Err, new(*crypt.RefusedError)) {
		return
	}
	select {
	case w.calls <- c:
	default:
	}
}

// run makes events until ctx ends.
func (w *warner) run(ctx context.Context) {
	type said struct{ volume, reason string }
	last := map[said]time.Time{}
	for {
		var c driver.Call
		select {
		case <-ctx.Done():
			return
		case c = <-w.calls:
		}

		var refused *crypt.RefusedError
		errors.As(c.Err, &refused)
		s := said{c.Volume, refused.Kind.Name()}

		for each, when := range last {
			if time.Since(when) >= warnAgain {
				delete(last, each)
			}
		}

		if _, ok := last[s]; ok {
			continue
		}

		last[s] = time.Now()
		if err := w.warn(ctx, s.volume, s.reason, c.Err.Error()); err != nil {
			w.log.Warn("no event was made at the claim of a volume whose disk was refused",
				"volume", s.volume, "error", err)
		}
	}
}
