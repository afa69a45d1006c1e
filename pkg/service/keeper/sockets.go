package keeper

import (
	"errors"

	"github.com/kubeveil/kubeveil/internal/netns"
)

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
