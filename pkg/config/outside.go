package config

import (
	"net/netip"
	"slices"
)

// Closed returns the parts of the nodes' networks that pods must not reach in clear: NodeRanges
// without Outside if Outside is not nil, and the NodeRanges of sites.
func (c Config) Closed() (closed []netip.Prefix) {
	if c.Outside != nil {
		for _, r := range c.NodeRanges {
			closed = append(closed, without(r, c.Outside)...)
		}
	}
	for _, s := range c.Sites {
		closed = append(closed, s.NodeRanges...)
	}
	return closed
}

// PodRanges returns the ranges of all pods that packets reach only through a tunnel: ClusterRanges,
// and the PodRanges of sites. The caller owns the slice.
func (c Config) PodRanges() []netip.Prefix {
	all := slices.Clone(c.ClusterRanges)
	for _, s := range c.Sites {
		all = append(all, s.PodRanges...)
	}
	return all
}

// linkLocal are the IPv4 link-local addresses. IPv6 link-local addresses need no such range,
// because the kernel does not forward packets to them.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// cloudAddresses are the link-local addresses at which clouds serve machines: metadata, DNS, time.
var cloudAddresses = []netip.Prefix{
	netip.MustParsePrefix("169.254.169.254/32"), netip.MustParsePrefix("169.254.169.253/32"),
	netip.MustParsePrefix("169.254.169.123/32"),
}

// ClosedLinkLocal returns the link-local addresses outside the node that pods must not reach: all
// but LinkLocalOutside.
func (c Config) ClosedLinkLocal() []netip.Prefix { return without(linkLocal, c.LinkLocalOutside) }

// OpenNodeRanges returns a phrase that describes the parts of the nodes' networks that pods reach
// in clear. It returns "" if Outside is set, because pods then reach only Outside in clear.
func (c Config) OpenNodeRanges() string {
	switch {
	case c.Outside != nil:
		return ""
	case len(c.NodeRanges) == 0:
		return "addresses of nodes that no Node names (set nodeRanges, and outside)"
	}
	return "addresses in nodeRanges that no Node names (write outside to close them)"
}

// without returns the smallest list of prefixes that covers the addresses of p that are in no hole.
func without(p netip.Prefix, holes []netip.Prefix) []netip.Prefix {
	if !slices.ContainsFunc(holes, p.Overlaps) {
		return []netip.Prefix{p}
	}
	if slices.ContainsFunc(holes, func(h netip.Prefix) bool {
		return h.Bits() <= p.Bits() && h.Overlaps(p)
	}) {
		return nil
	}
	low, high := halves(p)
	return append(without(low, holes), without(high, holes)...)
}

// halves returns the two prefixes that make up p, which must not be a single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	low = netip.PrefixFrom(p.Addr(), p.Bits()+1)
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	addr, _ := netip.AddrFromSlice(bytes)
	return low, netip.PrefixFrom(addr, p.Bits()+1)
}
