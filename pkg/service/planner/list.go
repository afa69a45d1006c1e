package planner

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/service"
)

// listPage is the number of services that List returns at most. listChunk is the number of services
// that one call of ask reads.
const (
	listPage  = 500
	listChunk = 16
)

// List returns the services in force whose names follow after, sorted by name, at most one page.
// The zero Name precedes all others. An empty list means that no services follow. The views have
// the counts of backends instead of the backends. List calls ask for a few services at a time. So a
// service that is added or deleted meanwhile may be in the list or not.
func List(after service.Name, ask func(func(*Planner)) error) ([]service.View, error) {
	var names []service.Name
	if err := ask(func(p *Planner) { names = p.names(after) }); err != nil {
		return nil, err
	}
	slices.SortFunc(names, compareName)
	names = names[:min(len(names), listPage)]
	views := []service.View{}
	for chunk := range slices.Chunk(names, listChunk) {
		err := ask(func(p *Planner) {
			for _, n := range chunk {
				if v, ok := p.view(n, p.counted()); ok {
					views = append(views, v)
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return views, nil
}

// names returns the names that follow after, unsorted.
func (p *Planner) names(after service.Name) []service.Name {
	var names []service.Name
	for n, e := range p.entries {
		if (e.service != nil || e.api != nil) && compareName(n, after) > 0 {
			names = append(names, n)
		}
	}
	return names
}

// counted returns a function that sets the counts of a frontend's backends. It counts the endpoints
// of each port of one service once.
func (p *Planner) counted() func(*entry, claim, *service.FrontendView) {
	known := make(map[groupKey]int)
	return func(e *entry, c claim, f *service.FrontendView) {
		key := c.group
		key.local = false // Known counts endpoints of other nodes too
		if _, ok := known[key]; !ok {
			known[key] = countEndpoints(e, c)
		}
		f.Known = known[key]
		if g := e.now.groups[c.group]; g != nil {
			f.Chosen = g.backends.Len()
		}
	}
}

func countEndpoints(e *entry, c claim) int {
	if c.kind == kindAPIServer {
		return e.now.groups[c.group].backends.Len()
	}
	known := make(map[netip.AddrPort]bool) // a moving endpoint is in two slices
	for port, ep := range endpointsOf(e, c.group) {
		known[netip.AddrPortFrom(ep.Addr.Unmap(), port)] = true
	}
	return len(known)
}
