package kube

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
)

const (
	// namespaceShare says what part of the table of services the objects of one namespace may take:
	// a quarter. Kubernetes supports 5,000 services per namespace.
	namespaceShare = 4
	// wholeTable is the number of entries up to which one namespace may take them all.
	wholeTable = 4096
	// slotsPerBackend is how many slots a backend may take: a run is a power of two, and there are
	// two of it while it changes.
	slotsPerBackend = 4
	// malformedElements is what a malformed object counts: its problem is kept.
	malformedElements = 64
)

// shareOf returns how many of size entries the objects of one namespace may take.
func shareOf(size int) int { return max(size/namespaceShare, min(size, wholeTable)) }

// boundServices bounds Services by the frontends and source ranges that they ask for.
func boundServices(f *feed[service.Service], room service.Limits) {
	perRange := max(1, int(room.Frontends/max(1, room.SourceRanges)))
	limit := shareOf(int(room.Frontends))
	parse := f.parse
	f.parse = func(o *object) parsed[service.Service] {
		p := parse(o)
		switch {
		case p.value != nil:
			p.elements = frontendsOf(p.value) + perRange*len(p.value.SourceRanges)
		case p.problem != "":
			p.elements = malformedElements
		}
		return p
	}
	f.bound = leavingOut(limit, fmt.Sprintf("they ask for more than %d frontends: the newest are "+
		"left out, and connections to them are refused", limit),
		func(s service.Service) service.Service { return service.Service{Name: s.Name} },
		func(s service.Service) bool {
			return s.Created.IsZero() && s.ClusterIPs == nil && s.Ports == nil
		})
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

// boundSlices bounds EndpointSlices by the backends that they ask for.
func boundSlices(f *feed[service.Slice], room service.Limits) {
	limit := shareOf(int(room.BackendSlots)) / slotsPerBackend
	parse := f.parse
	f.parse = func(o *object) parsed[service.Slice] {
		p := parse(o)
		switch {
		case p.value != nil:
			p.elements = max(1, len(p.value.Endpoints)) * max(1, len(p.value.Ports))
		case p.problem != "":
			p.elements = malformedElements
		}
		return p
	}
	f.bound = leavingOut(limit, fmt.Sprintf("they have more than %d endpoints, counted once per "+
		"port: the newest are left out, and their endpoints get no connections", limit),
		func(s service.Slice) service.Slice {
			return service.Slice{Service: s.Service, Name: s.Name}
		}, func(s service.Slice) bool { return s.Endpoints == nil })
}

// LeftOut is how many objects of a namespace are not passed on, because the namespace has too many.
type LeftOut struct {
	// Kind is "Service" or "EndpointSlice".
	Kind, Namespace string
	Count           int
}

// LeftOut returns what is left out, sorted by kind and namespace. Any goroutine may call it.
func (c *Client) LeftOut() []LeftOut {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.left)
}

// noteLeft replaces what is known of a kind and a namespace; a Count of 0 removes it.
func (c *Client) noteLeft(l LeftOut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, found := slices.BinarySearchFunc(c.left, l, func(a, b LeftOut) int {
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
