package servicefeed

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/service"
)

const (
	// The objects of one namespace may use a quarter of the frontends and an eighth of the slots in
	// the table of services. Kubernetes supports 5,000 services per namespace, which have 10,000
	// EndpointSlices with both families.
	frontendShare = 4
	slotShare     = 8
	// wholeTable is the size of a table up to which one namespace may use all its entries.
	wholeTable = 4096
	// slotsPerBackend is the maximum number of slots per backend. The length of a run of slots is a
	// power of two, and a run exists twice while it changes.
	slotsPerBackend = 4
	// leastFrontends and leastBackends are the least elements of an object, because small objects
	// take memory too.
	leastFrontends = 4
	leastBackends  = 8
	// malformedElements are the least elements of an object with a problem, because it has a line
	// in status.
	malformedElements = 64
)

// shareOf returns the number of table entries that the objects of one namespace may use: the part
// 1/parts of size, but at least wholeTable entries if the table has so many.
func shareOf(size, parts int) int { return max(size/parts, min(size, wholeTable)) }

// boundServices sets the parser of Services, and bounds them by the frontends and source ranges
// that they need.
func boundServices(f *feed.Feed[service.Service], room service.Limits, left *Left) {
	perRange := max(1, int(room.Frontends/max(1, room.SourceRanges)))
	limit := shareOf(int(room.Frontends), frontendShare)
	f.Parse = sizedBy(parseService, limit, leastFrontends, "frontends",
		func(s *service.Service) int {
			return frontendsOf(s) + perRange*len(s.SourceRanges)
		})
	f.LeaveOutLast(limit, leastFrontends, fmt.Sprintf("they need more than %d frontends, the "+
		"maximum for one namespace, so the last by name are not served and refuse connections; "+
		"delete some or move some to another namespace", limit), left.note(f.What))
}

// boundSlices sets the parser of EndpointSlices, and bounds them by the backends that they need.
func boundSlices(f *feed.Feed[service.Slice], room service.Limits, left *Left) {
	limit := shareOf(int(room.BackendSlots), slotShare) / slotsPerBackend
	f.Parse = sizedBy(parseEndpoints, limit, leastBackends, "endpoints",
		func(s *service.Slice) int {
			return s.Endpoints.Len() * max(1, len(s.Ports))
		})
	f.LeaveOutLast(limit, leastBackends, fmt.Sprintf("they have more than %d endpoints, counted "+
		"once per port, the maximum for one namespace, so endpoints of the last by name get no "+
		"connections; delete some or move some to another namespace",
		limit), left.note(f.What))
}

// sizedBy returns a parser that calls parse and sets the elements of each object, at least least. A
// single object that exceeds the limit is left out with a problem, so that it does not displace
// other objects.
func sizedBy[T any](parse func(*object.Object) feed.Parsed[T], limit, least int, unit string,
	size func(*T) int) func(*object.Object) feed.Parsed[T] {
	return func(o *object.Object) feed.Parsed[T] {
		p := parse(o)
		if p.Value != nil {
			p.Elements = max(least, size(p.Value))
		}
		if p.Elements > limit {
			p = feed.Parsed[T]{Problem: fmt.Sprintf("it needs %d %s, but its namespace may have "+
				"%d, so it is left out; split it over namespaces", p.Elements, unit, limit)}
		}
		if p.Problem != "" {
			p.Elements = max(p.Elements, malformedElements)
		}
		return p
	}
}

// frontendsOf returns the number of frontends that a service needs on a node with one address per
// family, at least 1.
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
