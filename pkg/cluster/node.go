package cluster

import (
	"net/netip"
	"slices"
)

// Equal reports whether n and m have the same content. Nil slices equal empty ones, and times in
// different zones may be equal.
func (n Node) Equal(m Node) bool {
	return n.Name == m.Name && n.Created.Equal(m.Created) && n.ControlPlane == m.ControlPlane &&
		n.Zone == m.Zone && n.Leaving == m.Leaving &&
		slices.Equal(n.Addresses, m.Addresses) && slices.Equal(n.Contested, m.Contested) &&
		slices.Equal(n.PodPrefixes, m.PodPrefixes) && n.Claim.Equal(m.Claim)
}

// Equal reports whether c and d have the same content. Nil equals only nil.
func (c *Claim) Equal(d *Claim) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.MTU == d.MTU && slices.Equal(c.Keys, d.Keys) &&
		slices.Equal(c.Endpoints, d.Endpoints) &&
		slices.Equal(c.PodPrefixes, d.PodPrefixes) && slices.Equal(c.Features, d.Features)
}

// AllowedIPs returns the prefixes that the tunnel to the node carries in both directions: its pod
// prefixes, and its addresses as host prefixes, sorted. The caller owns the slice.
func (n Node) AllowedIPs() []netip.Prefix {
	ips := slices.Clone(n.PodPrefixes)
	for _, a := range n.Addresses {
		ips = append(ips, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(ips, netip.Prefix.Compare)
	return slices.Compact(ips)
}

// Endpoint returns the endpoint of the node's tunnel in one of the given families. If both are
// possible, it is the IPv4 endpoint, because the IPv4 header is 20 bytes shorter. ok is false if
// the node has no claim or no endpoint of these families.
func (n Node) Endpoint(underlay Families) (endpoint netip.AddrPort, ok bool) {
	if n.Claim == nil {
		return netip.AddrPort{}, false
	}
	for _, e := range n.Claim.Endpoints {
		switch is4 := e.Addr().Is4(); {
		case is4 && underlay.V4:
			return e, true
		case !is4 && underlay.V6:
			endpoint, ok = e, true
		}
	}
	return endpoint, ok
}

// TunnelSources returns the addresses from which tunnel datagrams of the node may come: its
// addresses, and the addresses of its endpoints, which may be contested. The caller owns the slice.
func (n Node) TunnelSources() []netip.Addr {
	sources := slices.Clone(n.Addresses)
	if n.Claim == nil {
		return sources
	}
	for _, e := range n.Claim.Endpoints {
		if !slices.Contains(sources, e.Addr()) {
			sources = append(sources, e.Addr())
		}
	}
	return sources
}

// NewestKey returns the key of the newest epoch. ok is false if the node has no claim or no key.
func (n Node) NewestKey() (key Key, ok bool) {
	if n.Claim == nil || len(n.Claim.Keys) == 0 {
		return Key{}, false
	}
	return slices.MaxFunc(n.Claim.Keys, func(a, b Key) int { return compareKeys(a, b) }), true
}

// PodFamilies returns the families of the node's pod prefixes.
func (n Node) PodFamilies() Families {
	var f Families
	for _, p := range n.PodPrefixes {
		f.V4 = f.V4 || p.Addr().Is4()
		f.V6 = f.V6 || !p.Addr().Is4()
	}
	return f
}

// AddressFamilies returns the families of the node's own addresses.
func (n Node) AddressFamilies() Families {
	var f Families
	for _, a := range n.Addresses {
		f.V4 = f.V4 || a.Is4()
		f.V6 = f.V6 || !a.Is4()
	}
	return f
}
