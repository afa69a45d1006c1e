// Package bare makes a network namespace a node of ours without tunnels: what veild has in force on
// one beside them and the table of services, which are the guard at links and in nftables, policy
// routing, and masquerading.
//
// It promises to make it by the packages that veild uses, so that benchmarks pay for connection
// tracking as nodes in use do.
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

// GuardedNode is a node with the guard and without a daemon. Its pods' links must be in the group
// abi.PodGroup.
type GuardedNode struct {
	// Pods and Services are the cluster's ranges.
	Pods, Services []netip.Prefix
	// Addrs are the node's own addresses.
	Addrs []netip.Addr
	// Pins is a folder of a bpffs for the guard's programs.
	Pins string
}

// Apply puts it into force in the namespace of the calling thread. The guard is held until release
// is called; that is nil with an error.
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
