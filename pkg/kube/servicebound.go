package kube

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
)

const (
	// The objects of one namespace may take this part of the table of services: a quarter of the
	// frontends, an eighth of the slots. Kubernetes supports 5,000 services per namespace, which
	// have 10,000 EndpointSlices with both families.
	frontendShare = 4
	slotShare     = 8
	// wholeTable is the number of entries up to which one namespace may take them all.
	wholeTable = 4096
	// slotsPerBackend is how many slots a backend may take: a run is a power of two, and there are
	// two of it while it changes.
	slotsPerBackend = 4
	// leastFrontends and leastBackends are what a small object counts, because it takes memory.
	leastFrontends = 4
	leastBackends  = 8
	// malformedElements is what an object with a problem counts: each has a line in status.
	malformedElements = 64
)

// shareOf returns how many of size entries the objects of one namespace may take: one part.
func shareOf(size, parts int) int { return max(size/parts, min(size, wholeTable)) }

// boundServices bounds Services by the frontends and source ranges that they ask for.
func boundServices(f *feed[service.Service], room service.Limits) {
	perRange := max(1, int(room.Frontends/max(1, room.SourceRanges)))
	limit := shareOf(int(room.Frontends), frontendShare)
	f.parse = sizedBy(f.parse, limit, leastFrontends, "frontends", func(s *service.Service) int {
		return frontendsOf(s) + perRange*len(s.SourceRanges)
	})
	f.room = newRoom(limit, leastFrontends, fmt.Sprintf("they ask for more than %d frontends, the "+
		"most that one namespace may have: the last by name are left out and refuse connections; "+
		"delete some or move some to another namespace", limit))
}

// boundSlices bounds EndpointSlices by the backends that they ask for.
func boundSlices(f *feed[service.Slice], room service.Limits) {
	limit := shareOf(int(room.BackendSlots), slotShare) / slotsPerBackend
	f.parse = sizedBy(f.parse, limit, leastBackends, "endpoints", func(s *service.Slice) int {
		return len(s.Endpoints) * max(1, len(s.Ports))
	})
	f.room = newRoom(limit, leastBackends, fmt.Sprintf("they have more than %d endpoints, counted "+
		"once per port, the most that one namespace may have: the last by name are left out, and "+
		"their endpoints get no connections; delete some or move some to another namespace", limit))
}

// sizedBy returns parse with the elements of each object, at least least. An object that exceeds
// the limit alone has a problem of its own, so it does not put others out.
func sizedBy[T any](parse func(*object) parsed[T], limit, least int, unit string,
	size func(*T) int) func(*object) parsed[T] {
	return func(o *object) parsed[T] {
		p := parse(o)
		if p.value != nil {
			p.elements = max(least, size(p.value))
		}
		if p.elements > limit {
			p = parsed[T]{problem: fmt.Sprintf("it asks for %d %s, and its namespace may have %d: "+
				"it is left out; split it over namespaces", p.elements, unit, limit)}
		}
		if p.problem != "" {
			p.elements = max(p.elements, malformedElements)
		}
		return p
	}
}

// frontendsOf returns how many frontends a service asks for on a node with one address per family,
// at least 1.
func frontendsOf(s *service.Service) int {
	perPort := len(s.ClusterIPs) + 2*(len(s.ExternalIPs)+len(s.LoadBalancerIPs)) // inside, outside
	n := 0
	for _, p := range s.Ports {
		n += max(1, perPort)
		if p.NodePort != 0 {
			n += 4
		}
	}
	return max(1, n)
}

// LeftOut returns what is left out, sorted by kind and namespace. Any goroutine may call it.
func (c *Client) LeftOut() []service.LeftOut {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.left)
}

// noteLeft replaces what is known of a kind and a namespace; a Count of 0 removes it.
func (c *Client) noteLeft(l service.LeftOut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, found := slices.BinarySearchFunc(c.left, l, func(a, b service.LeftOut) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace))
	})
	switch {
	case found && l.Count == 0:
		c.left = slices.Delete(c.left, at, at+1)
	case found:
		c.left[at] = l
	case l.Count > 0:
		c.left = slices.Insert(c.left, at, l)
	}
}
