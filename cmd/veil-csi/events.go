package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/volume"
)

const (
	// warnAgain is how long an event of a volume is not repeated. The kubelet repeats its call
	// every two minutes.
	warnAgain = 10 * time.Minute
	// warnRetry is the time between two attempts to make the events that wait.
	warnRetry = 30 * time.Second
	// warnings bounds the events that wait. Further ones are only in the log.
	warnings = 16
)

// warner makes Kubernetes events at the claims of volumes. They are about refused disks, and about
// changes of a volume that no CSI call reports, such as a fence.
type warner struct {
	warn    func(ctx context.Context, volume, reason, message string) error
	log     *slog.Logger
	notices chan driver.Notice
}

func newWarner(warn func(ctx context.Context, volume, reason, message string) error,
	log *slog.Logger) *warner {
	return &warner{warn: warn, log: log, notices: make(chan driver.Notice, warnings)}
}

// observe receives each CSI call that ended, and never blocks.
func (w *warner) observe(c driver.Call) {
	var refused *crypt.RefusedError
	if c.Volume == "" || !errors.As(c.Err, &refused) {
		return
	}
	w.notice(driver.Notice{Volume: c.Volume, Reason: refused.Kind.Name(), Message: c.Err.Error()})
}

// notice receives each notice, and never blocks.
func (w *warner) notice(n driver.Notice) {
	select {
	case w.notices <- n:
	default:
	}
}

// run makes events until ctx ends. It keeps the events that it cannot make while the API server is
// unavailable, and makes them later. A node fences a volume without the API server too, by the
// record on the disk, and the event must not be lost.
func (w *warner) run(ctx context.Context) {
	type said struct{ volume, reason string }
	last := map[said]time.Time{}
	var waiting []driver.Notice
	retry := time.NewTicker(warnRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
			waiting = w.say(ctx, waiting)
		case n := <-w.notices:
			for each, when := range last {
				if time.Since(when) >= warnAgain {
					delete(last, each)
				}
			}

			s := said{n.Volume, n.Reason}
			if _, ok := last[s]; ok || len(waiting) == warnings {
				continue
			}
			last[s] = time.Now()
			waiting = w.say(ctx, append(waiting, n))
		}
	}
}

// say makes the events of notices, and returns the notices whose events must be made later.
func (w *warner) say(ctx context.Context, notices []driver.Notice) []driver.Notice {
	for i, n := range notices {
		err := w.warn(ctx, n.Volume, n.Reason, n.Message)
		if err != nil {
			w.log.Warn("no event was made at the claim of a volume", "volume", n.Volume,
				"reason", n.Reason, "error", err)
		}
		if errors.Is(err, volume.ErrUnavailable) {
			return notices[i:]
		}
	}
	return nil
}
