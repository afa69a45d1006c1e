package watch

import (
	"maps"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// Change names the parts of the kernel's state that changed according to the kernel's
// notifications. The zero value means no change. Changes by this process itself are included;
// hostnet.Host.Differs recognizes them.
type Change struct {
	// Underlay reports whether a link, address, rule or route changed that node traffic may use.
	Underlay bool
	// Routing reports whether something changed that hostnet.Host.Read reads, apart from Routes and
	// Devices.
	Routing bool
	// Tunnels reports whether a tunnel device appeared, disappeared, or changed whether it carries
	// packets.
	Tunnels bool
	// Guard reports whether the nft tables of the guard changed.
	Guard bool
	// Policy reports whether an nft table of policies was deleted, or lost rules at hooks.
	Policy bool
	// Filters reports whether other programs changed nftables rules that may drop packets.
	Filters bool
	// PodLinks reports whether pod links appeared, disappeared, or changed their MTU or group.
	PodLinks bool
	// Pods are the host links of pods whose addresses, routes or links changed.
	Pods []string
	// AllPods reports whether any pod may have changed.
	AllPods bool

	// Routes are the events of routes in order. Devices holds the last event of each tunnel device,
	// by name.
	Routes  []RouteEvent
	Devices map[string]Tunnel
}

// All returns the Change after lost notifications: everything may have changed.
func All() Change {
	return Change{Underlay: true, Routing: true, Tunnels: true, Guard: true, Policy: true,
		Filters: true, PodLinks: true, AllPods: true}
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool {
	return !(c.Underlay || c.Routing || c.Tunnels || c.Guard || c.Policy || c.Filters ||
		c.PodLinks || c.AllPods) && len(c.Pods) == 0 && len(c.Routes) == 0 && len(c.Devices) == 0
}

// maxRouteEvents bounds the events in Change.Routes. Beyond it, Add sets Routing instead.
const maxRouteEvents = 1 << 14

// Add merges a later Change into c.
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
		c.Routes = nil // Not needed: hostnet.Host.Read reads all routes.
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
	// Ours reports whether the route has the protocol RouteProtoNode.
	Ours bool
	// Gone reports whether the route was deleted.
	Gone bool
}

// Tunnel holds the settings in a notification about a tunnel device.
type Tunnel struct {
	MTU, QueueLen int
	Group         uint32
	Up            bool
}
