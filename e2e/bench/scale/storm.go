package scale

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Paths of the feed by which a storm begins and ends.
const stormPath, calmPath = "/storm", "/calm"

// storm deletes the slices of the services that changer does not change, and puts them back, again
// and again. A request for stormPath begins it. One for calmPath ends it, and is answered when all
// slices are back.
type storm struct {
	feed  *apifeed.Feed
	shape apifeed.Shape

	mu    sync.Mutex
	end   chan struct{} // nil without a storm
	ended chan error
}

func (s *storm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case r.URL.Path == stormPath && s.end == nil:
		s.end, s.ended = make(chan struct{}), make(chan error, 1)
		go func() { s.ended <- s.run(s.end) }()
	case r.URL.Path == calmPath && s.end != nil:
		close(s.end)
		err, s.end = <-s.ended, nil
	default:
		err = errors.New("the storm has begun or ended already")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// A storm has at most stormSlices events each stormPause: 50,000 endpoints a second. If it were
// faster than the node, single changes would wait behind its events.
const stormSlices, stormPause = 5, 10 * time.Millisecond

// run deletes the slices and puts them back until end is closed.
func (s *storm) run(end <-chan struct{}) error {
	tick := time.NewTicker(stormPause)
	defer tick.Stop()
	events := 0
	for {
		for _, do := range []func(apifeed.Object) error{s.feed.Delete, s.feed.Put} {
			for i := changing(s.shape); i < s.shape.Services(); i++ {
				for _, slice := range s.shape.Slices(i) {
					if events++; events%stormSlices == 0 {
						<-tick.C
					}
					if err := do(slice); err != nil {
						return err
					}
				}
			}
		}
		select {
		case <-end:
			return nil
		default:
		}
	}
}

// settleLimit bounds the wait until the table has everything after a storm, and settleCalm is how
// long nothing must be written meanwhile.
const settleLimit, settleCalm = time.Minute, 500 * time.Millisecond

// storm measures single changes amid a storm, and the time from the storm's last event to the last
// write. It does nothing if there is only one service.
func (n *node) storm(ctx context.Context, shape apifeed.Shape, config string, f *figures) error {
	if shape.Services() < 2 {
		return nil
	}
	client, url, err := clientOf(config)
	if err != nil {
		return err
	}
	if err := request(ctx, client, url+stormPath); err != nil {
		return err
	}
	_, f.Amid, err = n.writes.changes.measure(ctx, config, shape)
	if err = errors.Join(err, request(ctx, client, url+calmPath)); err != nil {
		return err
	}

	ended, last := time.Now(), time.Time{}
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, errors.New("the storm does not settle"))
	defer cancel()
	err = poll.Until(ctx, settleCalm, settleCalm, func() error {
		last = n.writes.lastWrite()
		if calm := time.Since(last); calm < settleCalm {
			return fmt.Errorf("a write %v ago", calm)
		}
		return complete(n.dir(), wantOf(shape))
	})
	f.Settled = bench.Millis(max(last.Sub(ended), time.Microsecond))
	return err
}
