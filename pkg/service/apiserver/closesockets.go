package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

// silentClients holds, keyed by server, the network namespaces in which the last search found
// connections to the server. A search that closes all connections removes the server. Only one
// goroutine uses it.
type silentClients map[netip.AddrPort][]string

// Close closes TCP connections of this node and of its pods to a server. It returns the number of
// closed connections and the CPU time that the search took.
func (c *Connections) Close(what Closing) (closed int, took time.Duration, err error) {
	var paths []string
	if !what.Again {
		paths, err = c.namespaces()
	}
	closed, took, closeErr := c.silent.close(what, paths)
	return closed, took, errors.Join(err, closeErr)
}

// close closes connections to a server in the network namespaces of paths. If c.Again is set, it
// searches the namespaces in which the last search found connections instead.
func (all silentClients) close(c Closing, paths []string) (closed int, took time.Duration,
	err error) {
	if c.Again {
		paths = all[c.Server]
	}
	var clients []string
	closed, err = closeIn(paths, c.Still, func(path string) (int, error) {
		began, found := threadTime(), false
		n, err := sockdiag.Close(unix.IPPROTO_TCP, c.Server, func(s sockdiag.Socket) bool {
			spare := c.Spare(s.Cookie)
			found = found || !spare
			return (!c.Stuck || s.Stuck()) && !spare
		})
		took += threadTime() - began
		if found || err != nil {
			clients = append(clients, path)
		}
		return n, err
	})

	if all[c.Server] = clients; !c.Stuck {
		delete(all, c.Server)
	}
	return closed, took, err
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
