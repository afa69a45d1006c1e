package keeper

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// tookDatagrams reports whether changes may have removed the backend of a connected UDP socket.
func tookDatagrams(c service.Changes) bool {
	return c.LostUDP ||
		slices.ContainsFunc(c.DropFrontends,
			func(k service.FrontendKey) bool { return k.Protocol == service.UDP })
}

// findStale makes abortStale search for stale sockets.
func (k *Keeper) findStale() {
	select {
	case k.stale <- struct{}{}:
	default:
	}
}

// abortStale disconnects UDP sockets whose backend is gone, until ctx ends. All backends that are
// deleted during a search share the next search.
func (k *Keeper) abortStale(ctx context.Context) {
	if k.abort == nil {
		return
	}

	var again <-chan time.Time
	for failed := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-k.stale:
			again = time.After(k.abortAgain)
		case <-again:
			again = nil
		}

		began := time.Now()
		n, err := k.abort()
		pause := max(abortPause, abortIdle*time.Since(began))
		if err != nil {
			if !failed {
				k.log.Warn("UDP sockets may still send to a removed backend, because they could "+
					"not be disconnected; trying again", "every", k.abortRetry, "error", err)
			}
			pause = max(pause, k.abortRetry)
			k.findStale()
		}

		failed = err != nil
		if n > 0 {
			k.log.Info("disconnected UDP sockets from removed backends", "sockets", n)
		}

		if poll.Pause(ctx, pause) != nil {
			return
		}
	}
}

// podNamespaces returns the paths of the network namespaces of this node's pods.
func (f *Feature) podNamespaces() ([]string, error) {
	var paths []string
	records, err := f.o.Paths.List()
	for _, r := range records {
		paths = append(paths, r.Netns)
	}
	return paths, err
}

// abortDatagrams disconnects the UDP sockets of this node and its pods whose backend has gone.
func (f *Feature) abortDatagrams() (int, error) {
	paths, err := f.podNamespaces()
	n, abortErr := f.table.AbortUDP(append([]string{netns.Own}, paths...)...)
	return n, errors.Join(err, abortErr)
}
