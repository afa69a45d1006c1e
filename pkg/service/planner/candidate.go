package planner

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// Ranks of an endpoint, by the flows that it may get.
const (
	rankNone     = iota
	rankDraining // keeps its flows
	rankLast     // terminates and serves: gets new flows if no endpoint is ready (KEP-1669)
	rankReady
)

type candidate struct {
	slot  service.Backend
	rank  int
	hints hint
}

// hint is a set of bits about an endpoint's hints and this node.
type hint uint8

const (
	hintNode  hint = 1 << iota // for clients on this node
	hintZone                   // for clients in this node's zone
	hintNodes                  // for some nodes
	hintZones                  // for some zones
)

func hintsOf(h here, of *service.Hints) (hints hint) {
	if of == nil {
		return 0
	}
	if len(of.Nodes) > 0 {
		hints |= hintNodes
	}
	if slices.Contains(of.Nodes, h.node) {
		hints |= hintNode
	}
	if len(of.Zones) > 0 {
		hints |= hintZones
	}
	if slices.Contains(of.Zones, h.zone) {
		hints |= hintZone
	}
	return hints
}

// nearest returns the hint that an endpoint must have to get new flows of this node: hintNode if
// all ready endpoints have hints for nodes, one of them for this node; else hintZone if the same
// holds for zones; else 0 (topologyModeFromHints of pkg/proxy/topology.go in Kubernetes).
func nearest(all []candidate) hint {
	common, some := ^hint(0), hint(0)
	for _, c := range all {
		if c.rank == rankReady {
			common &= c.hints
			some |= c.hints
		}
	}
	switch {
	case common&hintNodes != 0 && some&hintNode != 0:
		return hintNode
	case common&hintZones != 0 && some&hintZone != 0:
		return hintZone
	}
	return 0
}

func rankOf(ep service.Endpoint) int {
	switch {
	case ep.Ready:
		return rankReady
	case ep.Serving && ep.Terminating:
		return rankLast
	case ep.Serving:
		return rankDraining
	}
	return rankNone
}

// portOf returns the number of a port of s, or 0 if it has none.
func portOf(s *service.Slice, name string, protocol service.Protocol) uint16 {
	i := slices.IndexFunc(s.Ports, func(sp service.SlicePort) bool {
		return sp.Name == name && sp.Protocol == protocol
	})
	if i < 0 {
		return 0
	}
	return s.Ports[i].Port
}

// candidateOf returns the i-th endpoint of s as a candidate at a port, and false if it is none of
// this family.
func candidateOf(h here, s *service.Slice, i int, port uint16, v6 bool) (c candidate, ok bool) {
	ep := s.Endpoints.Bare(i)
	addr, rank := ep.Addr.Unmap(), rankOf(ep)
	if port == 0 || rank == rankNone || !service.Reachable(addr) || addr.Is6() != v6 {
		return c, false
	}
	c = candidate{service.BackendOf(netip.AddrPortFrom(addr, port)), rank, hintsOf(h,
		s.HintsOf(ep))}
	if h.node != "" && s.Endpoints.NodeOf(i) == h.handle {
		c.slot.Flags = service.FlagLocal
	}
	return c, true
}

// compare returns a positive number if c has a better state than o.
func (c candidate) compare(o candidate) int {
	return cmp.Or(cmp.Compare(c.rank, o.rank), cmp.Compare(c.slot.Flags, o.slot.Flags),
		cmp.Compare(c.hints, o.hints))
}

func (c candidate) better(o candidate) bool { return c.compare(o) > 0 }

// candidates returns the endpoints of a port, sorted, each once. An endpoint that moves between
// slices is in both for a moment. Its better state counts as the newer one.
func candidates(h here, e *entry, p service.Port, v6 bool) []candidate {
	var all []candidate
	for _, s := range e.slices {
		port := portOf(s, p.Name, p.Protocol)
		if port == 0 {
			continue
		}
		all = slices.Grow(all, s.Endpoints.Len())
		for i := range s.Endpoints.Len() {
			if c, ok := candidateOf(h, s, i, port, v6); ok {
				all = append(all, c)
			}
		}
	}

	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(service.CompareBackend(a.slot, b.slot), b.compare(a))
	})
	return slices.CompactFunc(all, func(a, b candidate) bool {
		return service.CompareBackend(a.slot, b.slot) == 0
	})
}
