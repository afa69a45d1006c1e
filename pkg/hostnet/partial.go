package hostnet

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

const (
	// partialAlways is the number of changed peers up to which SyncWant always plans only their
	// routes. Above it, it does so for up to one in partialShare of all peers.
	partialAlways = 64
	partialShare  = 8
)

// SyncWant calls Sync with the Plan of w. If the last call had an equal Want and Forget was not
// called since, it does nothing. That is common, because a new key or endpoint of a peer does not
// change routes. If few peers and node addresses changed, it plans and changes only their routes.
// It keeps references to the slices of w, which must not be changed.
func (h *Host) SyncWant(w Want) ([]Op, error) {
	last := h.wanted
	h.wanted = nil
	if h.have != nil && !h.podLinksChanged && last != nil {
		if last.equal(w) {
			h.wanted = last
			return nil, nil
		}
		if ops, routes, ok := h.planPart(*last, w); ok {
			if err := h.Apply(ops); err != nil {
				h.have, h.destinations = nil, nil
				return ops, err
			}
			h.have.Routes, h.wanted = routes, &w
			return ops, nil
		}
	}

	h.destinations = nil
	ops, err := h.Sync(Plan(w))
	if err == nil {
		h.wanted = &w
	}
	return ops, err
}

// part is the difference of two Wants that differ in few peers and node addresses: was and is have
// only these peers and addresses, and are the same otherwise.
type part struct{ was, is Want }

// destinations counts the peers that have each destination, as a node address or a pod prefix.
type destinations map[netip.Prefix]int

func (d destinations) add(peers []Peer, n int) {
	for _, p := range peers {
		for _, dst := range p.destinations() {
			if d[dst] += n; d[dst] == 0 {
				delete(d, dst)
			}
		}
	}
}

// destinations returns the destinations of the routes to p.
func (p Peer) destinations() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(p.NodeAddrs)+len(p.PodPrefixes))
	for _, a := range p.NodeAddrs {
		out = append(out, single(a))
	}
	for _, prefix := range p.PodPrefixes {
		out = append(out, canonical(prefix))
	}
	return out
}

// planPart plans the changes from last, the last Want, to w, and the routes after them. It plans
// only the routes of peers and node addresses that changed. ok is false if everything must be
// planned.
func (h *Host) planPart(last, w Want) (ops []Op, routes []rtnetlink.Route, ok bool) {
	p, ok := partOf(last, w)
	if !ok {
		return nil, nil, false
	}
	if h.destinations == nil {
		h.destinations = destinations{}
		h.destinations.add(last.Peers, 1)
	}
	h.destinations.add(p.was.Peers, -1)
	if !h.destinations.free(p) {
		return nil, nil, false
	}
	h.destinations.add(p.is.Peers, 1)

	was, is := Plan(p.was), Plan(p.is)
	ops = diffRoutes(was.Routes, is.Routes)
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.phase() - b.phase()) })
	return ops, replaceRoutes(h.have.Routes, was.Routes, is.Routes), true
}

// free reports whether no other peer has a destination of p. The routes of p then depend on no
// other peer.
func (d destinations) free(p part) bool {
	for _, w := range []Want{p.was, p.is} {
		for _, peer := range w.Peers {
			if slices.ContainsFunc(peer.destinations(),
				func(dst netip.Prefix) bool { return d[dst] > 0 }) {
				return false
			}
		}
		if slices.ContainsFunc(w.NodeAddrs, func(a netip.Addr) bool { return d[single(a)] > 0 }) {
			return false
		}
	}
	return true
}

// partOf returns the difference of was and is. ok is false if they differ in more than peers and
// node addresses, or in too many of them, or if a list is not sorted.
func partOf(was, is Want) (p part, ok bool) {
	p = part{was, is}
	limit := 2 * max(partialAlways, len(is.Peers)/partialShare)
	var samePeers, sameAddrs bool
	p.was.Peers, p.is.Peers, samePeers = differing(was.Peers, is.Peers, limit, comparePeers,
		Peer.Equal)
	p.was.NodeAddrs, p.is.NodeAddrs, sameAddrs = differing(was.NodeAddrs, is.NodeAddrs, limit,
		netip.Addr.Compare, func(a, b netip.Addr) bool { return a == b })
	if !samePeers || !sameAddrs {
		return part{}, false
	}

	rest := p.is
	rest.Peers, rest.NodeAddrs = p.was.Peers, p.was.NodeAddrs
	if !rest.equal(p.was) {
		return part{}, false
	}

	// A changed address that is also an address of a changed peer is planned with that peer. If it
	// stays a node address, it must be planned as such, too.
	addrs := func(list []netip.Addr, w Want) []netip.Addr {
		list = slices.Clone(list)
		for _, peer := range slices.Concat(p.was.Peers, p.is.Peers) {
			for _, a := range peer.NodeAddrs {
				if _, has := slices.BinarySearchFunc(w.NodeAddrs, a, netip.Addr.Compare); has {
					list = append(list, a)
				}
			}
		}
		return list
	}
	p.was.NodeAddrs, p.is.NodeAddrs = addrs(p.was.NodeAddrs, was), addrs(p.is.NodeAddrs, is)

	// The families of the rules must not depend on these peers and addresses.
	fixed := is
	fixed.Peers, fixed.NodeAddrs = nil, nil
	rules := len(planRules(fixed))
	return p, len(planRules(p.was)) == rules && len(planRules(p.is)) == rules
}

// differing compares two sorted lists. gone are the elements of was that are not in is, and fresh
// those of is that are not in was. ok is false if a list is not sorted, or more than limit differ.
func differing[T any](was, is []T, limit int, compare func(a, b T) int,
	same func(a, b T) bool) (gone, fresh []T, ok bool) {
	if len(was) == len(is) && (len(was) == 0 || &was[0] == &is[0]) {
		return nil, nil, true
	}

	for i, j := 0, 0; i < len(was) || j < len(is); {
		if len(gone)+len(fresh) > limit ||
			i > 0 && i < len(was) && compare(was[i-1], was[i]) >= 0 ||
			j > 0 && j < len(is) && compare(is[j-1], is[j]) >= 0 {
			return nil, nil, false
		}
		c := 0
		switch {
		case i == len(was):
			c = 1
		case j == len(is):
			c = -1
		default:
			c = compare(was[i], is[j])
		}

		if c < 0 || c == 0 && !same(was[i], is[j]) {
			gone = append(gone, was[i])
		}
		if c > 0 || c == 0 && !same(was[i], is[j]) {
			fresh = append(fresh, is[j])
		}
		if c <= 0 {
			i++
		}
		if c >= 0 {
			j++
		}
	}
	return gone, fresh, true
}

// replaceRoutes returns routes with fresh in place of gone. All are in canonical order.
func replaceRoutes(routes, gone, fresh []rtnetlink.Route) []rtnetlink.Route {
	gone, fresh, _ = differing(gone, fresh, len(gone)+len(fresh), rtnetlink.CompareRoutes,
		func(a, b rtnetlink.Route) bool { return a == b })
	if len(gone) == 0 && len(fresh) == 0 {
		return routes
	}

	out := make([]rtnetlink.Route, 0, len(routes)+len(fresh))
	for len(gone) > 0 || len(fresh) > 0 {
		remove := len(fresh) == 0 ||
			len(gone) > 0 && rtnetlink.CompareRoutes(gone[0], fresh[0]) < 0
		next := fresh
		if remove {
			next = gone
		}
		i, found := slices.BinarySearchFunc(routes, next[0], rtnetlink.CompareRoutes)
		out, routes = append(out, routes[:i]...), routes[i:]
		switch {
		case remove:
			if found {
				routes = routes[1:]
			}
			gone = gone[1:]
		default:
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
	}
	return append(out, routes...)
}
