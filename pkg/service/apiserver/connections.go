package apiserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
)

// mostAPISockets bounds the connections to API servers that are read in one network namespace.
const mostAPISockets = 1 << 14

// Connections finds and closes the connections of this node and its pods to API servers.
// ServersConfig has its methods as functions. Only one goroutine may call Close.
type Connections struct {
	// pods returns the paths of the network namespaces of pods.
	pods func() ([]string, error)
	// silent has the namespaces in which the last Close found connections to a server, by server. A
	// Close of all connections removes the server.
	silent map[netip.AddrPort][]string

	mu sync.Mutex
	// clients are the namespaces of pods that had connections when they were last counted.
	clients []string
}

// NewConnections returns the Connections of the node and its pods. pods returns the paths of the
// pods' network namespaces.
func NewConnections(pods func() ([]string, error)) *Connections {
	return &Connections{pods: pods, silent: map[netip.AddrPort][]string{}}
}

func (c *Connections) namespaces() ([]string, error) {
	paths, err := c.pods()
	return append([]string{netns.Own}, paths...), err
}

// Count returns the number of connections to each server, of the node and its pods. It counts at
// most 16,384 per namespace.
func (c *Connections) Count(s Sockets) (map[netip.AddrPort]int, error) {
	paths, err := c.namespaces()
	count, clients := map[netip.AddrPort]int{}, []string(nil)
	for _, path := range paths {
		n := 0
		findErr := findIn(path, s, func(found sockdiag.Socket) bool {
			if n++; !found.Connecting {
				count[found.Remote]++
			}
			return n < mostAPISockets
		})
		if n > 0 && path != netns.Own {
			clients = append(clients, path)
		}
		err = errors.Join(err, findErr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = clients
	return count, err
}

// Retransmitting returns the servers to which a connection retransmits, of the node and of the pods
// that had connections when they were last counted.
func (c *Connections) Retransmitting(s Sockets) (silent []netip.AddrPort, err error) {
	c.mu.Lock()
	paths := append([]string{netns.Own}, c.clients...)
	c.mu.Unlock()
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

// findIn finds connections in a network namespace. A namespace that is gone has none.
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
