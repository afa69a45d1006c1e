package guard

import (
	"net/netip"

	"github.com/kubeveil/kubeveil/internal/sorted"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Update is Apply for settings that follow those of the last Apply or Update. If they differ in few
// addresses of nodes and services and sources of datagrams, it changes these without reading the
// kernel's state. Call Apply instead if another program may have changed that state.
func (g *Guard) Update(s Settings) ([]Op, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Unsampled = g.unsampled
	last := g.inForce
	if last == nil {
		return g.applyLocked(s)
	}
	was, is, ok := partOf(*last, s)
	if !ok {
		return g.applyLocked(s)
	}
	if err := is.Validate(); err != nil {
		return nil, err
	}

	g.settings, g.inForce = &s, nil
	done, _, err := g.do(nil, Diff(Plan(was, nil), Plan(is, nil)))
	if err == nil {
		g.inForce = &s
	}
	return done, err
}

// mostChanged is the number of changed addresses up to which Update changes only these.
const mostChanged = 8192

// partOf returns the part in which two settings differ. gone holds the addresses of nodes and
// services, the sources and the openings that only was has. fresh holds those that only is has. All
// other settings of both are unchanged. ok is false if other settings differ, if a list is not
// sorted or has an address twice, or if too many addresses differ.
func partOf(was, is Settings) (gone, fresh Settings, ok bool) {
	gone, fresh = was, is
	var sameNodes, sameVIPs, sameSources, sameOpenings bool
	gone.NodeAddrs, fresh.NodeAddrs, sameNodes = differing(was.NodeAddrs, is.NodeAddrs)
	gone.VIPs, fresh.VIPs, sameVIPs = differing(was.VIPs, is.VIPs)
	gone.Openings, fresh.Openings, sameOpenings = sorted.Diff(was.Openings, is.Openings,
		mostChanged, cluster.Opening.Compare, func(a, b cluster.Opening) bool { return a == b })
	d, e := was.Datagrams, is.Datagrams
	switch {
	case d == nil || e == nil || d.Sources == nil || e.Sources == nil:
		sameSources = d.Equal(e)
	case !d.Add && !e.Add:
		a, b := *d, *e
		a.Sources, b.Sources, sameSources = differing(d.Sources, e.Sources)
		gone.Datagrams, fresh.Datagrams = &a, &b
	}
	if !sameNodes || !sameVIPs || !sameSources || !sameOpenings {
		return Settings{}, Settings{}, false
	}

	rest := fresh
	rest.NodeAddrs, rest.VIPs, rest.Openings = gone.NodeAddrs, gone.VIPs, gone.Openings
	if d, e := gone.Datagrams, fresh.Datagrams; d != nil && e != nil {
		same := *e
		same.Sources = d.Sources
		rest.Datagrams = &same
	}
	return gone, fresh, rest.Equal(gone)
}

// differing returns the addresses of was that are not in is, and those of is that are not in was.
// ok is false if a list is not sorted or has an address twice, if one is nil, or if more than
// mostChanged differ.
func differing(was, is []netip.Addr) (gone, fresh []netip.Addr, ok bool) {
	if was == nil || is == nil {
		return []netip.Addr{}, []netip.Addr{}, was == nil && is == nil
	}
	return sorted.Diff(was, is, mostChanged, netip.Addr.Compare,
		func(a, b netip.Addr) bool { return a == b })
}
