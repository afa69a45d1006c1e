package agent

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/netns"
	"github.com/kubeveil/kubeveil/pkg/service/proxy"
	"github.com/kubeveil/kubeveil/pkg/service/table"
)

// ownNamespace is the path of the node's network namespace.
const ownNamespace = "/proc/self/ns/net"

// namespaces are the paths of the network namespaces of this node and its pods.
func (a *Agent) namespaces() ([]string, error) {
	paths := []string{ownNamespace}
	records, err := a.pods.paths.List()
	for _, r := range records {
		paths = append(paths, r.Netns)
	}
	return paths, err
}

// closeSockets closes TCP connections of this node and of its pods to a server, and returns how
// many.
func (a *Agent) closeSockets(c proxy.Closing) (int, error) {
	paths, err := a.namespaces()
	lost := func(s sockdiag.Socket) bool { return (!c.Stuck || s.Stuck()) && !c.Spare(s.Cookie) }
	closed, closeErr := closeIn(paths, c.Still, func() (int, error) {
		return sockdiag.Close(unix.IPPROTO_TCP, c.Server, lost)
	})
	return closed, errors.Join(err, closeErr)
}

// closeIn closes sockets in network namespaces while still returns true. What the kernel does not
// support in one it supports in none; that is reported once.
func closeIn(paths []string, still func() bool, closeHere func() (int, error)) (int, error) {
	closed := 0
	var errs []error
	for _, path := range paths {
		if !still() {
			break
		}
		err := netns.Do(path, func() error {
			n, err := closeHere()
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

// abortDatagrams disconnects the UDP sockets of this node and its pods whose backend has gone.
func (a *Agent) abortDatagrams(t *table.Table) (int, error) {
	paths, err := a.namespaces()
	n, abortErr := t.AbortUDP(paths...)
	return n, errors.Join(err, abortErr)
}
