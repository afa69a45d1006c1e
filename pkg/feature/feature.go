package feature

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// Feature is a part of veild that the agent drives. The agent calls Begin once, after the guard is
// in force, then Run once. Turn and Closed belong to the agent's loop. KernelChanged, Status and
// Pages may be called at any time from any goroutine, also beside Turn.
type Feature interface {
	// Begin puts in force what is known before any source has spoken. An error ends veild.
	Begin() error
	// Run keeps the feature in force until ctx ends. An error ends veild, except the error of ctx.
	Run(ctx context.Context) error
	// Close releases what the feature has open, after Run of all features has returned.
	Close() error
	// Turn receives what a turn of the loop believes, before the turn changes the kernel. The error
	// is shown as a problem that leaves the node ready.
	Turn(t Turn) error
	// KernelChanged receives what others may have changed in the kernel.
	KernelChanged(c KernelChange)
	// Closed returns addresses that the guard must block for pods. They may be addresses of
	// nodes, which the guard leaves open. The first call comes before Begin.
	Closed() []netip.Addr
	// Status adds the feature's part, and its problems, to a status.
	Status(s *telemetry.Status)
	// Pages returns the feature's pages of the admin socket by path, even if the feature is off.
	Pages() map[string]telemetry.Page
}

// Turn is what one turn of the agent's loop believes.
type Turn struct {
	Table cluster.Table
	// Complete reports whether Table has every node. Before that, nothing may be removed because
	// Table lacks it.
	Complete bool
	// LinkAddrs are the addresses of the link that carries node traffic, Assigned the addresses of
	// all links. Certain reports whether that link was found. If not, LinkAddrs may be incomplete.
	LinkAddrs, Assigned []netip.Addr
	Certain             bool
	// PodPrefixes and SelfAddrs are what this node's pods and this node have, as planned. They are
	// empty while this node is not known.
	PodPrefixes []netip.Prefix
	SelfAddrs   []netip.Addr
}

// KernelChange is what others may have changed in the kernel.
type KernelChange struct {
	// PolicyTable reports that an nftables table of policies was deleted, or lost rules at hooks.
	PolicyTable bool
	// Pods reports that links of pods came, went or changed.
	Pods bool
}

// None is a Feature that does nothing. A feature embeds it and has the methods that it needs.
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

// Status adds nothing.
func (None) Status(*telemetry.Status) {}

// Pages returns no page.
func (None) Pages() map[string]telemetry.Page { return nil }

// IgnoreEnd drops an error that only reports that ctx ended.
func IgnoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)) {
		return nil
	}
	return err
}
