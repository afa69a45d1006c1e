package hostnet

import (
	"maps"
	"slices"
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

	// routes are the events of routes in order, devices the last event of each tunnel device.
	routes  []routeEvent
	devices map[string]Device
}

// All is the Change after lost notifications.
func All() Change {
	return Change{Underlay: true, Routing: true, Tunnels: true, Guard: true, Policy: true,
		Filters: true, PodLinks: true, AllPods: true}
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool {
	return !(c.Underlay || c.Routing || c.Tunnels || c.Guard || c.Policy || c.Filters ||
		c.PodLinks || c.AllPods) && len(c.Pods) == 0 && len(c.routes) == 0 && len(c.devices) == 0
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
	if c.routes = append(c.routes, later.routes...); len(c.routes) > maxRouteEvents {
		c.Routing = true
	}
	if c.Routing {
		c.routes = nil // Host.Read sees the later changes.
	}
	if c.devices == nil {
		c.devices = later.devices
		return
	}
	maps.Copy(c.devices, later.devices)
}

// routeEvent is a notification about a route.
type routeEvent struct {
	route Route
	// ours reports whether it has RouteProtoNode.
	ours bool
	// gone reports whether it was deleted.
	gone bool
}

// Differs reports whether the routes and tunnel devices of c differ from what the last Sync left.
// It does not query the kernel: the notifications of own writes match what Sync remembers.
func (h *Host) Differs(c Change) bool {
	if len(c.routes) == 0 && len(c.devices) == 0 {
		return false
	}
	if h.have == nil {
		return true
	}

	for name, d := range c.devices {
		i := slices.IndexFunc(h.have.Devices, func(have Device) bool { return have.Name == name })
		if i < 0 {
			return true
		}
		if have := h.have.Devices[i]; have.MTU != d.MTU || have.Group != d.Group ||
			have.QueueLen != d.QueueLen || have.Up != d.Up {
			return true
		}
	}

	there := map[Route]bool{}
	for _, e := range c.routes {
		if e.ours {
			there[e.route] = !e.gone
			continue
		}
		// The kernel announces a replaced route only by its replacement.
		if _, taken := slices.BinarySearchFunc(h.have.Routes, e.route, compareKeys); taken {
			return true
		}
	}

	for r, is := range there {
		if _, was := slices.BinarySearchFunc(h.have.Routes, r, compareRoutes); was != is {
			return true
		}
	}

	return false
}
