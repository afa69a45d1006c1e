package service

import (
	"net/netip"
	"slices"
)

// Of a list: how many services an answer has, and how many are looked at before the planner does
// something else.
const (
	listPage  = 500
	listChunk = 16
)

// List returns the services after one of this name as they are in force, by name, as View does but
// with the backends counted and not told of; the zero Name is before all. There are no more when
// there are none. It asks for the planner again and again, each time for little, so that services
// which come and go meanwhile may be in the list or not.
func List(after Name, ask func(func(*Planner)) error) ([]View, error) {
	var names []Name
	if err := ask(func(p *Planner) { names = p.names(after) }); err != nil {
		return nil, err
	}
	slices.SortFunc(names, compareName)
	names = names[:min(len(names), listPage)]
	views := []View{}
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

// names are those after one, in no order.
func (p *Planner) names(after Name) []Name {
	var names []Name
	for n, e := range p.entries {
		if (e.service != nil || e.api != nil) && compareName(n, after) > 0 {
			names = append(names, n)
		}
	}
	return names
}

// counted counts the endpoints of the groups of one service, each group once.
func (p *Planner) counted() func(*entry, claim, *FrontendView) {
	known := make(map[groupKey]int)
	return func(e *entry, c claim, f *FrontendView) {
		key := c.group
		key.local = false // the other nodes' are known, too
		if _, ok := known[key]; !ok {
			known[key] = countEndpoints(e, c)
		}
		f.Known = known[key]
		if g := e.now.groups[c.group]; g != nil {
			f.Chosen = len(g.backends)
		}
	}
}

func countEndpoints(e *entry, c claim) int {
	if c.kind == kindAPIServer {
		return len(e.now.groups[c.group].backends)
	}
	known := make(map[netip.AddrPort]bool) // one that moves is in two slices
	for port, ep := range endpointsOf(e, c.group) {
		known[netip.AddrPortFrom(ep.Addr.Unmap(), port)] = true
	}
	return len(known)
}
