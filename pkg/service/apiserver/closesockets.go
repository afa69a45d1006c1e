package apiserver

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

// Close closes TCP connections of this node and of its pods to a server. If what.Again is set, it
// searches only the namespaces in which the last search found connections. It returns the number of
// closed connections and the CPU time that the search took.
func (c *Connections) Close(what Closing) (closed int, took time.Duration, err error) {
	paths := c.silent[what.Server]
	if !what.Again {
		paths, err = c.namespaces()
	}
	var clients []string
	closed, closeErr := closeIn(paths, what.Still, func(path string) (int, error) {
		began, found := threadTime(), false
		n, err := sockdiag.Close(unix.IPPROTO_TCP, what.Server, func(s sockdiag.Socket) bool {
			spare := what.Spare(s.Cookie)
			found = found || !spare
			return (!what.Stuck || s.Stuck()) && !spare
		})
		took += threadTime() - began
		if found || err != nil {
			clients = append(clients, path)
		}
		return n, err
	})

	if c.silent[what.Server] = clients; !what.Stuck {
		delete(c.silent, what.Server)
	}
	return closed, took, errors.Join(err, closeErr)
}

// threadTime returns the CPU time of the current thread. Wall time would be longer on a busy node,
// so the pauses between searches would grow and lost servers would be noticed later.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// closeIn closes sockets in network namespaces while still returns true. An operation that the
// kernel does not support fails in every namespace, so closeIn reports it once.
func closeIn(paths []string, still func() bool,
	closeHere func(path string) (int, error)) (int, error) {
	closed := 0
	var errs []error
	for _, path := range paths {
		if !still() {
			break
		}
		err := netns.Do(path, func() error {
			n, err := closeHere(path)
			closed += n
			return err
		})
		if errors.Is(err, sockdiag.ErrNotSupported) {
			return closed, err
		}
		if err != nil && !errors.Is(err, netns.ErrNotFound) {
			errs = append(errs, fmt.Errorf("network namespace %s: %w", path, err))
		}
	}
	return closed, errors.Join(errs...)
}
