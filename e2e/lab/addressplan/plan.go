package addressplan

import (
	"fmt"
	"net/netip"
	"slices"
)

// Family is the set of address families of a lab. Nodes, pods and services have the same families.
type Family string

// Families of a lab.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
	Dual Family = "dual"
)

// The networks of a lab.
var (
	Underlay4 = netip.MustParsePrefix("198.18.0.0/24")
	Underlay6 = netip.MustParsePrefix("fd42::/64")
	service4  = netip.MustParsePrefix("198.18.128.0/20")
	service6  = netip.MustParsePrefix("fd42:2::/112")
	// Ranges of services that a test adds at run time.
	added4   = netip.MustParsePrefix("198.18.144.0/24")
	added6   = netip.MustParsePrefix("fd42:6::/112")
	cluster4 = netip.MustParsePrefix("198.19.0.0/16")
	cluster6 = netip.MustParsePrefix("fd42:1::/48")
	// Other4 and Other6 are the ranges of another network between nodes. Loop4 and Loop6 are
	// ranges of addresses on the nodes' loopback links.
	Other4 = netip.MustParsePrefix("198.18.64.0/24")
	Other6 = netip.MustParsePrefix("fd42:3::/64")
	Loop4  = netip.MustParsePrefix("198.18.77.0/32")
	Loop6  = netip.MustParsePrefix("fd42:4::/128")
)

// Last bytes of addresses on the underlay.
const (
	ControlHost = 2  // plus the number of the API server; the first is 0
	NodeHost    = 10 // plus the node's number
	ExtraHost   = 100
	SecondHost  = 150 // plus the node's number: its second IPv6 address
	OutsideHost = 250
	MaxNodes    = ExtraHost - NodeHost - 1
	// BesideNode is the number before that of the first node of the second cluster, see Parts.
	BesideNode = 64
	MaxServers = NodeHost - ControlHost
)

// V4 and V6 report whether the family is in use.
func (f Family) V4() bool { return f != IPv6 }
func (f Family) V6() bool { return f != IPv4 }

// Valid returns an error unless f is one of the families.
func (f Family) Valid() error {
	switch f {
	case IPv4, IPv6, Dual:
		return nil
	}
	return fmt.Errorf("family %q: want %s, %s or %s", f, IPv4, IPv6, Dual)
}

// Pick returns the values for the families that f contains, IPv4 first.
func Pick[T any](f Family, four, six T) []T {
	var out []T
	if f.V4() {
		out = append(out, four)
	}
	if f.V6() {
		out = append(out, six)
	}
	return out
}

// ClusterRanges returns the ranges that contain every pod prefix of the lab.
func (f Family) ClusterRanges() []netip.Prefix { return Pick(f, cluster4, cluster6) }

// ServiceRanges returns the ranges that contain every service address of the lab.
func (f Family) ServiceRanges() []netip.Prefix { return Pick(f, service4, service6) }

// AddedRanges returns ranges of services that a test may add at run time. The oracle reports frames
// with such an address in clear.
func (f Family) AddedRanges() []netip.Prefix { return Pick(f, added4, added6) }

// Part has the ranges of one of two clusters on the same network.
type Part struct{ Pods, Nodes []netip.Prefix }

// mostFirst is the largest number of a node whose addresses are in the first part.
const mostFirst = BesideNode - NodeHost - 1

// Parts returns the ranges of two clusters on the same network. The first has the nodes with numbers
// up to 53, and the second those above BesideNode. Both have the same ranges of services.
func (f Family) Parts() (first, second Part) {
	list := func(v4, v6 string) []netip.Prefix {
		return Pick(f, netip.MustParsePrefix(v4), netip.MustParsePrefix(v6))
	}
	first.Pods = slices.Concat(list("198.19.0.0/18", "fd42:1::/58"),
		list("198.19.128.0/17", "fd42:1:0:80::/57"))
	first.Nodes = slices.Concat(list("198.18.0.0/26", "fd42::/122"),
		list("198.18.0.128/25", "fd42::80/121"))
	second.Pods = list("198.19.64.0/18", "fd42:1:0:40::/58")
	second.Nodes = list("198.18.0.64/26", "fd42::40/122")
	return first, second
}

// Underlay returns the addresses with the last byte host on the network between hosts, IPv4 first.
// Each has the prefix length of the subnet.
func (f Family) Underlay(host byte) []netip.Prefix {
	return Pick(f, At(Underlay4, host), At(Underlay6, host))
}

// At returns p with host as the last byte of its address.
func At(p netip.Prefix, host byte) netip.Prefix {
	b := p.Addr().AsSlice()
	b[len(b)-1] = host
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// PodPrefixes returns the pod prefixes of a node, by its number: a /24 and a /64.
func (f Family) PodPrefixes(node int) []netip.Prefix {
	four := cluster4.Addr().As4()
	four[2] = byte(node)
	six := cluster6.Addr().As16()
	six[7] = byte(node)
	return Pick(f, netip.PrefixFrom(netip.AddrFrom4(four), 24),
		netip.PrefixFrom(netip.AddrFrom16(six), 64))
}

// AddrsOf returns the addresses of prefixes.
func AddrsOf(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
	}
	return out
}

// Joined returns prefixes or addresses separated by commas, as flags of programs take them.
func Joined[T fmt.Stringer](list []T) string {
	s := ""
	for i, v := range list {
		if i > 0 {
			s += ","
		}
		s += v.String()
	}
	return s
}
