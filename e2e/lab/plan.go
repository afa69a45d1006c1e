package lab

import (
	"fmt"
	"net/netip"
)

// Family is the set of address families of a lab, inside and outside alike.
type Family string

// Families of a lab.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
	Dual Family = "dual"
)

// The address plan. Every lab uses the same: labs cannot see each other.
var (
	underlay4 = netip.MustParsePrefix("198.18.0.0/24")
	underlay6 = netip.MustParsePrefix("fd42::/64")
	service4  = netip.MustParsePrefix("198.18.128.0/20")
	service6  = netip.MustParsePrefix("fd42:2::/112")
	// Ranges of services that a test adds at run time.
	added4   = netip.MustParsePrefix("198.18.144.0/24")
	added6   = netip.MustParsePrefix("fd42:6::/112")
	cluster4 = netip.MustParsePrefix("198.19.0.0/16")
	cluster6 = netip.MustParsePrefix("fd42:1::/48")
	// Of Options.MoreAddresses: another network, and addresses of loopback.
	other4 = netip.MustParsePrefix("198.18.64.0/24")
	other6 = netip.MustParsePrefix("fd42:3::/64")
	loop4  = netip.MustParsePrefix("198.18.77.0/32")
	loop6  = netip.MustParsePrefix("fd42:4::/128")
)

// Last bytes of addresses on the underlay.
const (
	controlHost = 2  // and those after it, for further API servers
	nodeHost    = 10 // plus the node's number
	extraHost   = 100
	secondHost  = 150 // plus the node's number: its second IPv6 address
	outsideHost = 250
	maxNodes    = extraHost - nodeHost - 1
	maxServers  = nodeHost - controlHost
)

// v4 and v6 report whether the family is in use.
func (f Family) v4() bool { return f != IPv6 }
func (f Family) v6() bool { return f != IPv4 }

func (f Family) valid() error {
	switch f {
	case IPv4, IPv6, Dual:
		return nil
	}
	return fmt.Errorf("family %q: want %s, %s or %s", f, IPv4, IPv6, Dual)
}

// pick keeps the values of the family, IPv4 first.
func pick[T any](f Family, four, six T) []T {
	var out []T
	if f.v4() {
		out = append(out, four)
	}
	if f.v6() {
		out = append(out, six)
	}
	return out
}

// ClusterRanges hold every pod prefix of the lab.
func (f Family) ClusterRanges() []netip.Prefix { return pick(f, cluster4, cluster6) }

// ServiceRanges hold every service address of the lab.
func (f Family) ServiceRanges() []netip.Prefix { return pick(f, service4, service6) }

// AddedRanges are ranges of services that a test may add at run time: no byte to them is seen.
func (f Family) AddedRanges() []netip.Prefix { return pick(f, added4, added6) }

// Underlay returns the address with that last byte on the network between hosts,
// with the length of its subnet, IPv4 first.
func (f Family) Underlay(host byte) []netip.Prefix {
	return pick(f, at(underlay4, host), at(underlay6, host))
}

// at replaces the last byte of a prefix's address.
func at(p netip.Prefix, host byte) netip.Prefix {
	b := p.Addr().AsSlice()
	b[len(b)-1] = host
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// PodPrefixes returns the pod prefixes of the node with that number: a /24 and a /64.
func (f Family) PodPrefixes(node int) []netip.Prefix {
	four := cluster4.Addr().As4()
	four[2] = byte(node)
	six := cluster6.Addr().As16()
	six[7] = byte(node)
	return pick(f, netip.PrefixFrom(netip.AddrFrom4(four), 24),
		netip.PrefixFrom(netip.AddrFrom16(six), 64))
}

// addrsOf drops the lengths.
func addrsOf(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
	}
	return out
}

// joined writes prefixes or addresses with commas between, in the form of flags.
func joined[T fmt.Stringer](list []T) string {
	s := ""
	for i, v := range list {
		if i > 0 {
			s += ","
		}
		s += v.String()
	}
	return s
}
