package watch

import (
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// Change is what other programs may have changed, by the kernel's notifications. The zero value
// means no change. It includes this process's own writes: Host.Differs separates the two.
type Change struct {
	// Underlay reports a link, address, rule or route that node traffic may take.
	Underlay bool
	// Routing reports a change to what Host.Read reads, except for what Host.Differs compares.
	Routing bool
	// Tunnels reports that a tunnel device appeared, disappeared, or changed whether it carries
	// packets.
	Tunnels bool
	// Guard reports the nft tables of the guard.
	Guard bool
	// Policy reports that an nft table of policies was deleted, or lost rules at hooks.
	Policy bool
	// Filters reports that other programs changed nftables rules that may drop packets.
	Filters bool
	// PodLinks reports that pod links appeared or disappeared.
	PodLinks bool
	// Pods are the host links of pods whose addresses, routes or links changed.
	Pods []string
	// AllPods reports that any pod may have changed.
	AllPods bool

	// Routes are the events of routes in order, Devices the last event of each tunnel device, by
	// name.
	Routes  []RouteEvent
	Devices map[string]Tunnel
}

// All is the Change after lost notifications.
func All() Change {
	return Change{Underlay: true, Routing: true, Tunnels: true, Guard: true, Policy: true,
		Filters: true, PodLinks: true, AllPods: true}
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool {
	return !(c.Underlay || c.Routing || c.Tunnels || c.Guard || c.Policy || c.Filters ||
		c.PodLinks || c.AllPods) && len(c.Pods) == 0 && len(c.Routes) == 0 && len(c.Devices) == 0
}

// maxRouteEvents bounds the remembered routes of a Change; beyond it, Routing is set.
const maxRouteEvents = 1 << 14

// Add adds a later Change.
func (c *Change) Add(later Change) {
	c.Underlay = c.Underlay || later.Underlay
	c.Routing = c.Routing || later.Routing
	c.Tunnels = c.Tunnels || later.Tunnels
	c.Guard = c.Guard || later.Guard
	c.Policy = c.Policy || later.Policy
	c.Filters = c.Filters || later.Filters
	c.PodLinks = c.PodLinks || later.PodLinks
	c.AllPods = c.AllPods || later.AllPods
	for _, name := range later.Pods {
		if !slices.Contains(c.Pods, name) {
			c.Pods = append(c.Pods, name)
		}
	}
	if c.Routes = append(c.Routes, later.Routes...); len(c.Routes) > maxRouteEvents {
		c.Routing = true
	}
	if c.Routing {
		c.Routes = nil // Host.Read sees the later changes.
	}
	if c.Devices == nil {
		c.Devices = later.Devices
		return
	}
	maps.Copy(c.Devices, later.Devices)
}

// RouteEvent is a notification about a route.
type RouteEvent struct {
	Route rtnetlink.Route
	// Ours reports whether it has RouteProtoNode.
	Ours bool
	// Gone reports whether it was deleted.
	Gone bool
}

// Tunnel holds the settings in a notification about a tunnel device.
type Tunnel struct {
	MTU, QueueLen int
	Group         uint32
	Up            bool
}
