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
	// warnAgain is the minimum interval between two events of a volume with the same reason. The
	// kubelet repeats a failed call every two minutes.
	warnAgain = 10 * time.Minute
	// warnRetry is the interval of attempts to create the events that wait.
	warnRetry = 30 * time.Second
	// warnings is the maximum number of events that wait. Further notices get no event.
	warnings = 16
)

// warner creates Kubernetes events for the claims of volumes. The events are about refused disks,
// and about changes of a volume that no CSI call reports, such as a fence. Use newWarner, then run.
type warner struct {
	warn    func(ctx context.Context, volume, reason, message string) error
	log     *slog.Logger
	notices chan driver.Notice
}

func newWarner(warn func(ctx context.Context, volume, reason, message string) error,
	log *slog.Logger) *warner {
	return &warner{warn: warn, log: log, notices: make(chan driver.Notice, warnings)}
}

// observe queues an event if the CSI call was refused a disk. Call it for each call that ended. It
// never blocks.
func (w *warner) observe(c driver.Call) {
	var refused *crypt.RefusedError
	if c.Volume == "" || !errors.As(c.Err, &refused) {
		return
	}
	w.notice(driver.Notice{Volume: c.Volume, Reason: refused.Kind.Name(), Message: c.Err.Error()})
}

// notice queues an event for a notice. It never blocks: if the queue is full, it drops the notice.
func (w *warner) notice(n driver.Notice) {
	select {
	case w.notices <- n:
	default:
	}
}

// run creates events until ctx ends. While the API server is unavailable, it keeps the notices and
// retries. So the event of a fence is not lost: a node also fences a volume without the API server,
// because of the record on the disk.
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

// say creates the events of notices. It returns the notices whose events must be created later.
func (w *warner) say(ctx context.Context, notices []driver.Notice) []driver.Notice {
	for i, n := range notices {
		err := w.warn(ctx, n.Volume, n.Reason, n.Message)
		if err != nil {
			w.log.Warn("could not create an event at the claim of a volume", "volume", n.Volume,
				"reason", n.Reason, "error", err)
		}
		if errors.Is(err, volume.ErrUnavailable) {
			return notices[i:]
		}
	}
	return nil
}
