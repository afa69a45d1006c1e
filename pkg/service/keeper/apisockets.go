package keeper

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/netns"
)

// mostAPISockets bounds the connections to API servers that are read in one network namespace.
const mostAPISockets = 1 << 14

// apiClients has the network namespaces of pods that had connections to API servers when they were
// last counted.
type apiClients struct {
	mu    sync.Mutex
	paths []string
}

// countAPISockets returns the number of connections to each server, of the node and its pods. In one
// namespace it counts to 16,384.
func (f *Feature) countAPISockets(s Sockets) (map[netip.AddrPort]int, error) {
	paths, err := f.namespaces()
	count, clients, countErr := countIn(paths, s)
	f.clients.mu.Lock()
	defer f.clients.mu.Unlock()
	f.clients.paths = slices.DeleteFunc(clients, func(p string) bool { return p == ownNamespace })
	return count, errors.Join(err, countErr)
}

// countIn counts connections in network namespaces. clients are those that have connections.
func countIn(paths []string, s Sockets) (count map[netip.AddrPort]int, clients []string,
	err error) {
	count = map[netip.AddrPort]int{}
	for _, path := range paths {
		n := 0
		findErr := findIn(path, s, func(found sockdiag.Socket) bool {
			if n++; !found.Connecting {
				count[found.Remote]++
			}
			return n < mostAPISockets
		})
		if n > 0 {
			clients = append(clients, path)
		}
		err = errors.Join(err, findErr)
	}
	return count, clients, err
}

// retransmittingTo returns the servers to which a connection retransmits, of the node and of the
// pods that had connections when they were last counted.
func (f *Feature) retransmittingTo(s Sockets) ([]netip.AddrPort, error) {
	f.clients.mu.Lock()
	paths := append([]string{ownNamespace}, f.clients.paths...)
	f.clients.mu.Unlock()
	return retransmittingIn(paths, s)
}

// retransmittingIn returns the servers to which a connection in one of some network namespaces
// retransmits.
func retransmittingIn(paths []string, s Sockets) (silent []netip.AddrPort, err error) {
	for _, path := range paths {
		n := 0
		findErr := findIn(path, s, func(found sockdiag.Socket) bool {
			if n++; found.Retransmits > 0 && !slices.Contains(silent, found.Remote) {
				silent = append(silent, found.Remote)
			}
			return n < mostAPISockets && len(silent) < len(s.Servers)
		})
		err = errors.Join(err, findErr)
	}
	return silent, err
}

// findIn finds connections in a network namespace. One that is gone has none.
func findIn(path string, s Sockets, found func(sockdiag.Socket) bool) error {
	err := netns.Do(path, func() error {
		return sockdiag.Find(unix.IPPROTO_TCP, s.Servers, func(one sockdiag.Socket) bool {
			return s.Spare(one.Cookie) || found(one)
		})
	})
	if err != nil && !errors.Is(err, netns.ErrNotFound) {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	return nil
}
