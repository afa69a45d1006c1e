package pod

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Gateway returns the next hop of a pod's default route in the family of addr.
func Gateway(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return netip.MustParseAddr(abi.PodGateway4)
	}
	return netip.MustParseAddr(abi.PodGateway6)
}

// tables are the routing tables on the node that have a host route to each pod.
var tables = []int{unix.RT_TABLE_MAIN, abi.TablePod}

// hostRoutes returns the routes on the node to the pod's addresses.
func hostRoutes(r Record, index int) []nl.Route {
	var routes []nl.Route
	for _, a := range r.Addrs {
		for _, t := range tables {
			routes = append(routes, nl.Route{
				LinkIndex: index, Dst: single(a), Table: t, Family: family(a),
				Protocol: abi.RouteProtoPod, Scope: linkScope(a), Type: unix.RTN_UNICAST,
			})
		}
	}
	return routes
}

// hostNeighs returns the permanent neighbours on the node, which are the pod's addresses.
func hostNeighs(r Record, index int) []nl.Neigh {
	var neighs []nl.Neigh
	for _, a := range r.Addrs {
		neighs = append(neighs, permanent(a, r.PodMAC(), index))
	}
	return neighs
}

// podNeighs returns the permanent neighbours in the pod, which are its gateways.
func podNeighs(r Record, index int) []nl.Neigh {
	var neighs []nl.Neigh
	for _, a := range r.Addrs {
		neighs = append(neighs, permanent(Gateway(a), r.HostMAC(), index))
	}
	return neighs
}

// podRoutes returns the routes in the pod. Per family these are a route to the gateway, and the
// default route via the gateway with the pod's MTU.
func podRoutes(r Record, index int) []nl.Route {
	var routes []nl.Route
	for _, a := range r.Addrs {
		gateway := Gateway(a)
		routes = append(routes,
			nl.Route{
				LinkIndex: index, Dst: single(gateway), Family: family(a), Scope: linkScope(a),
				Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC, Type: unix.RTN_UNICAST,
			},
			defaultRoute(a, index, r.MTU))
	}
	return routes
}

func defaultRoute(a netip.Addr, index, mtu int) nl.Route {
	return nl.Route{
		LinkIndex: index, Dst: nl.IPNet(DefaultPrefix(a)), Gw: Gateway(a).AsSlice(),
		Family: family(a),
		Table:  unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_STATIC, Type: unix.RTN_UNICAST, MTU: mtu,
	}
}

// DefaultPrefix returns the prefix of length zero in the family of addr.
func DefaultPrefix(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func permanent(a netip.Addr, mac net.HardwareAddr, index int) nl.Neigh {
	return nl.Neigh{LinkIndex: index, Family: family(a), State: unix.NUD_PERMANENT, IP: a.AsSlice(),
		HardwareAddr: mac}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return nl.FamilyV4
	}
	return nl.FamilyV6
}

// linkScope returns the scope of a route without a gateway. IPv6 routes have no scopes.
func linkScope(a netip.Addr) nl.Scope {
	if a.Is4() {
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

func single(a netip.Addr) *net.IPNet { return nl.IPNet(netip.PrefixFrom(a, a.BitLen())) }
