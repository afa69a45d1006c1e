// Package bare turns a network namespace into a Kubeveil node without tunnels and without a service
// table. It installs the guard at links and in nftables, policy routing, and masquerading.
//
// It promises to use the packages that veild uses, so that benchmarks pay the same cost of
// connection tracking as real nodes.
//
// Start reading at GuardedNode.
package bare

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
)

// GuardedNode describes a node with the guard and without a daemon. The links of its pods must be
// in the link group abi.PodGroup.
type GuardedNode struct {
	// Pods and Services are the cluster's ranges.
	Pods, Services []netip.Prefix
	// Addrs are the node's own addresses.
	Addrs []netip.Addr
	// Pins is a folder of a bpffs for the guard's programs.
	Pins string
}

// Apply installs the node in the network namespace of the calling thread. release closes the guard;
// it is nil beside an error.
func (n GuardedNode) Apply() (release func() error, err error) {
	h, err := hostnet.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if _, err := h.Sync(hostnet.Plan(hostnet.Want{
		ClusterRanges: n.Pods, ServiceRanges: n.Services, SelfAddrs: n.Addrs,
		Masquerade: true, TunnelPort: abi.TunnelPort,
	})); err != nil {
		return nil, err
	}

	g, err := guard.Open(n.Pins, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if _, err := g.Apply(guard.Settings{Ranges: slices.Concat(n.Pods, n.Services),
		NodeAddrs: n.Addrs}); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g.Close, nil
}
