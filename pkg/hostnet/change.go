package hostnet

import (
	"maps"
	"slices"
)

// Change is what others may have changed, as far as the kernel's messages tell. The zero value is
// nothing. What this process wrote is in it too: Host.Differs tells the two apart.
type Change struct {
	// Underlay reports a link, address, rule or route that node traffic may take.
	Underlay bool
	// Routing reports what Host.Read reads, but for what Host.Differs compares.
	Routing bool
	// Tunnels reports a tunnel device that came, went, or carries packets as it did not before.
	Tunnels bool
	// Guard reports the nft tables of the guard.
	Guard bool
	// Policy reports that the nft table of policies, or one of its hooks, went.
	Policy bool
	// PodLinks reports that links of pods came or went.
	PodLinks bool
	// Pods are the host links of pods whose addresses, routes or links were changed.
	Pods []string
	// AllPods reports that any pod may be concerned.
	AllPods bool

	// routes are events of routes in their order, devices the last event of each tunnel device.
	routes  []routeEvent
	devices map[string]Device
}

// All is the Change of somebody who has missed messages.
func All() Change {
	return Change{Underlay: true, Routing: true, Tunnels: true, Guard: true, Policy: true,
		PodLinks: true, AllPods: true}
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool {
	return !(c.Underlay || c.Routing || c.Tunnels || c.Guard || c.Policy || c.PodLinks || c.AllPods) &&
		len(c.Pods) == 0 && len(c.routes) == 0 && len(c.devices) == 0
}

// maxRouteEvents bounds the routes that a Change remembers; with more it is Routing.
const maxRouteEvents = 1 << 14

// Add adds a later Change.
func (c *Change) Add(later Change) {
	c.Underlay = c.Underlay || later.Underlay
	c.Routing = c.Routing || later.Routing
	c.Tunnels = c.Tunnels || later.Tunnels
	c.Guard = c.Guard || later.Guard
	c.Policy = c.Policy || later.Policy
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
		c.routes = nil // Host.Read sees what they say.
	}
	if c.devices == nil {
		c.devices = later.devices
		return
	}
	maps.Copy(c.devices, later.devices)
}

// routeEvent is a message about a route.
type routeEvent struct {
	route Route
	// ours reports whether it has RouteProtoNode.
	ours bool
	// gone reports whether it was deleted.
	gone bool
}

// Differs reports whether the routes and tunnel devices of c are not as the last Sync left them.
// It does not ask the kernel: own writes come back as messages that say what Sync remembers, and
// cost nothing.
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
		// A replaced route is announced by the one in its place alone.
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
