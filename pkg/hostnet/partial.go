package hostnet

import (
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/sorted"
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
	return ops, rtnetlink.Replace(h.have.Routes, was.Routes, is.Routes), true
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
	p.was.Peers, p.is.Peers, samePeers = sorted.Diff(was.Peers, is.Peers, limit, comparePeers,
		Peer.Equal)
	p.was.NodeAddrs, p.is.NodeAddrs, sameAddrs = sorted.Diff(was.NodeAddrs, is.NodeAddrs, limit,
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
