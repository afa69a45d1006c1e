package servicefeed

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
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

// boundServices sets the parser of Services, and bounds them by the frontends and source ranges
// that they ask for.
func boundServices(f *feed.Feed[service.Service], room service.Limits, left *Left) {
	perRange := max(1, int(room.Frontends/max(1, room.SourceRanges)))
	limit := shareOf(int(room.Frontends), frontendShare)
	f.Parse = sizedBy(parseService, limit, leastFrontends, "frontends",
		func(s *service.Service) int {
			return frontendsOf(s) + perRange*len(s.SourceRanges)
		})
	f.LeaveOutLast(limit, leastFrontends, fmt.Sprintf("they ask for more than %d frontends, the "+
		"most that one namespace may have: the last by name are left out and refuse connections; "+
		"delete some or move some to another namespace", limit), left.note(f.What))
}

// boundSlices sets the parser of EndpointSlices, and bounds them by the backends that they ask for.
func boundSlices(f *feed.Feed[service.Slice], room service.Limits, left *Left) {
	limit := shareOf(int(room.BackendSlots), slotShare) / slotsPerBackend
	f.Parse = sizedBy(parseEndpoints, limit, leastBackends, "endpoints",
		func(s *service.Slice) int {
			return len(s.Endpoints) * max(1, len(s.Ports))
		})
	f.LeaveOutLast(limit, leastBackends, fmt.Sprintf("they have more than %d endpoints, counted "+
		"once per port, the most that one namespace may have: the last by name are left out, and "+
		"their endpoints get no connections; delete some or move some to another namespace",
		limit), left.note(f.What))
}

// sizedBy returns parse with the elements of each object, at least least. An object that exceeds
// the limit alone has a problem of its own, so it does not put others out.
func sizedBy[T any](parse func(*object.Object) feed.Parsed[T], limit, least int, unit string,
	size func(*T) int) func(*object.Object) feed.Parsed[T] {
	return func(o *object.Object) feed.Parsed[T] {
		p := parse(o)
		if p.Value != nil {
			p.Elements = max(least, size(p.Value))
		}
		if p.Elements > limit {
			p = feed.Parsed[T]{Problem: fmt.Sprintf("it asks for %d %s, and its namespace may "+
				"have %d: it is left out; split it over namespaces", p.Elements, unit, limit)}
		}
		if p.Problem != "" {
			p.Elements = max(p.Elements, malformedElements)
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
