package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

const (
	// closeEvery is the least time between two searches for connections to silent nodes. A search
	// takes at most a tenth of the time.
	closeEvery, searchShare = 2 * time.Second, 10
	// closeIdleAfter is the time after which connections that wait for nothing are closed, too. A
	// node that restarted would reset them, but a node that is gone never does.
	closeIdleAfter = 30 * time.Second
)

// silentNodes closes the TCP connections of this node and its pods to pods on nodes of other
// clusters that do not answer. Connections that wait for an acknowledgement are closed at once, and
// others after closeIdleAfter, because a short partition ends no idle connection. The client gets
// ECONNABORTED and connects to another endpoint. Make it with newSilentNodes.
type silentNodes struct {
	namespaces func() ([]string, error) // paths of network namespaces of pods
	log        *slog.Logger
	wake       chan struct{}
	// closed counts the closed connections.
	closed atomic.Uint64

	mu sync.Mutex
	// since has the pod prefixes of the nodes, and when they became silent.
	since map[netip.Prefix]time.Time
	nodes prefixes // the keys of since
}

func newSilentNodes(namespaces func() ([]string, error), log *slog.Logger) *silentNodes {
	return &silentNodes{namespaces: namespaces, log: log, wake: make(chan struct{}, 1)}
}

// set sets the pod prefixes of the nodes that do not answer.
func (s *silentNodes) set(dead []netip.Prefix, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(dead) == 0 && len(s.since) == 0 {
		return
	}
	since := make(map[netip.Prefix]time.Time, len(dead))
	for _, p := range dead {
		p = p.Masked()
		since[p] = now
		if was, known := s.since[p]; known {
			since[p] = was
		}
	}
	s.since, s.nodes = since, newPrefixes(dead...)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run closes connections until ctx ends.
func (s *silentNodes) run(ctx context.Context) {
	for failed, again := false, false; ; {
		if !again {
			select {
			case <-ctx.Done():
				return
			case <-s.wake:
			}
		}

		began := time.Now()
		n, any, err := s.once(began)
		if err != nil && !failed {
			s.log.Warn("connections to silent nodes of other clusters cannot be closed", "error", err)
		}
		if failed = err != nil; n > 0 {
			s.log.Info("closed connections to silent nodes of other clusters", "number", n)
		}

		again = any && !errors.Is(err, sockdiag.ErrNotSupported)
		if again && poll.Pause(ctx, max(closeEvery, searchShare*time.Since(began))) != nil {
			return
		}
	}
}

// once closes connections, and returns their number. any reports whether a node is silent. An error
// of one network namespace does not stop the search in others.
func (s *silentNodes) once(now time.Time) (n int, any bool, err error) {
	s.mu.Lock()
	since, nodes := s.since, s.nodes // They are replaced and never changed.
	s.mu.Unlock()
	if len(since) == 0 {
		return 0, false, nil
	}
	lost := func(c sockdiag.Socket) bool {
		p, silent := nodes.find(c.Remote.Addr().Unmap())
		return silent && (c.Stuck() || now.Sub(since[p]) >= closeIdleAfter)
	}

	pods, err := s.namespaces()
	errs := []error{err}
	for _, path := range append([]string{netns.Own}, pods...) {
		err := netns.Do(path, func() error {
			closed, err := sockdiag.CloseIf(unix.IPPROTO_TCP, lost)
			n += closed
			s.closed.Add(uint64(closed))
			return err
		})
		if errors.Is(err, sockdiag.ErrNotSupported) {
			return n, true, err
		}
		if err != nil && !errors.Is(err, netns.ErrNotFound) {
			errs = append(errs, fmt.Errorf("close connections in %s: %w", path, err))
		}
	}
	return n, true, errors.Join(errs...)
}
