package feature

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// Feature is a part of veild that the agent drives. The agent calls Begin once, after the guard is
// in force, and then Run once. Turn and Closed are called by the agent's loop. KernelChanged,
// Status and Pages may be called at any time from any goroutine, also during Turn.
type Feature interface {
	// Begin puts in force what is known before the first state of a source. An error ends veild.
	Begin() error
	// Run keeps the feature in force until ctx ends. An error ends veild, except the error of ctx.
	Run(ctx context.Context) error
	// Close releases the resources of the feature. It is called after Run of all features has
	// returned.
	Close() error
	// Turn is called in each turn of the loop, before the turn changes the kernel. An error is
	// shown as a problem of the node, which stays ready.
	Turn(t Turn) error
	// KernelChanged is called when another program may have changed the kernel's state.
	KernelChanged(c KernelChange)
	// Closed returns addresses that the guard must block for pods. They may be addresses of
	// nodes, which the guard leaves open. The first call comes before Begin.
	Closed() []netip.Addr
	// Opened returns the exported endpoints of this node, sorted and distinct. It is like Closed:
	// the agent passes them to the guard in each turn of the loop. The caller must not change them.
	Opened() []cluster.Opening
	// Remote returns addresses of other clusters to whose nodes the agent proves the tunnels. It is
	// called in each turn of the loop. The caller must not change them.
	Remote() []netip.Addr
	// Status adds the state of the feature and its problems to s.
	Status(s *telemetry.Status)
	// Pages returns the feature's pages of the admin socket by path, even if the feature is off.
	Pages() map[string]admin.Page
}

// Turn is the input of one turn of the agent's loop.
type Turn struct {
	Table cluster.Table
	// SamePlaces reports whether the nodes have the names, addresses, pod prefixes and endpoints
	// that they had in the last Turn. If it is false, they may still be the same.
	SamePlaces bool
	// Complete reports whether Table has every node. Before that, nothing may be removed because
	// Table lacks it.
	Complete bool
	// LinkAddrs are the addresses of the link that carries the traffic between nodes. Assigned are
	// the addresses of all links. Certain reports whether that link was found. If not, LinkAddrs
	// may be incomplete.
	LinkAddrs, Assigned []netip.Addr
	Certain             bool
	// PodPrefixes are this node's pod prefixes and SelfAddrs its addresses, as planned. They are
	// empty while Table does not have this node.
	PodPrefixes []netip.Prefix
	SelfAddrs   []netip.Addr
	// Dead are the pod prefixes of other clusters' nodes that do not answer, sorted. Only nodes for
	// addresses in Remote are probed.
	Dead []netip.Prefix
}

// KernelChange describes what other programs may have changed in the kernel.
type KernelChange struct {
	// PolicyTable reports whether an nftables table of policies was deleted, or lost rules of a
	// base chain.
	PolicyTable bool
	// Pods reports whether links of pods were created, deleted or changed.
	Pods bool
	// Filters reports whether other programs changed nftables rules that may drop packets.
	Filters bool
}

// None is a Feature that does nothing. Features embed it and define only the methods that they
// need.
type None struct{}

// Begin does nothing.
func (None) Begin() error { return nil }

// Run does nothing and returns at once.
func (None) Run(context.Context) error { return nil }

// Close does nothing.
func (None) Close() error { return nil }

// Turn does nothing.
func (None) Turn(Turn) error { return nil }

// KernelChanged does nothing.
func (None) KernelChanged(KernelChange) {}

// Closed returns no address.
func (None) Closed() []netip.Addr { return nil }

// Opened returns no endpoint.
func (None) Opened() []cluster.Opening { return nil }

// Remote returns no address.
func (None) Remote() []netip.Addr { return nil }

// Status adds nothing.
func (None) Status(*telemetry.Status) {}

// Pages returns no page.
func (None) Pages() map[string]admin.Page { return nil }

// IgnoreEnd returns nil if err only reports that ctx ended. Otherwise it returns err.
func IgnoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)) {
		return nil
	}
	return err
}
