package hostnet

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/device"
	"github.com/kubeveil/kubeveil/pkg/hostnet/flowtable"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/hostnet/tables"
)

// Want is the input of Plan: what the agent demands of this node's routing. The order of elements
// does not matter, except where a field says so.
type Want struct {
	// Devices are the tunnel devices. The first carries the service ranges.
	Devices []TunnelDevice
	// Peers are the believed peers.
	Peers []Peer
	// ClusterRanges and ServiceRanges are reachable only through a tunnel. Forwarding is enabled
	// for the families of ClusterRanges.
	ClusterRanges, ServiceRanges []netip.Prefix
	// NodeAddrs are the addresses of all known nodes. Pods reach those of peers through tunnels;
	// the others are unreachable for pods.
	NodeAddrs []netip.Addr
	// ClosedRanges are other ranges that are unreachable for pods, such as networks of nodes and
	// link-local addresses.
	ClosedRanges []netip.Prefix
	// SelfAddrs are this node's own addresses. The first of a family is the preferred source
	// towards remote pods; it must be assigned to a link.
	SelfAddrs []netip.Addr
	// Masquerade translates the source of pods' packets that leave the cluster to this node's
	// address.
	Masquerade bool
	// ReflectMarks makes the kernel's own replies to a packet (resets, ICMP errors, echoes) carry
	// the packet's mark, so that rules route them by it. It applies to the families of
	// ClusterRanges.
	ReflectMarks bool
	// Flowtable lets packets of known flows between pods and tunnels take the kernel's fast path,
	// if the kernel has flow tables.
	Flowtable bool
	// TunnelPort is the UDP port of the tunnels. 0 means that no rules for outer packets are made.
	TunnelPort int
}

// TunnelDevice is a tunnel device; pkg/tunnel makes it.
type TunnelDevice struct {
	Name string
	// MTU in bytes; 0 leaves it unchanged.
	MTU int
}

// Peer is a believed node with a tunnel to it.
type Peer struct {
	Name        string
	PodPrefixes []netip.Prefix
	NodeAddrs   []netip.Addr
	// Devices are the tunnel devices that lead to the peer. Only the first is used. A peer without
	// devices is unreachable.
	Devices []string
	// MTU is the largest packet that fits through the tunnel to this peer, bytes; 0 means the MTU
	// of the device.
	MTU int
}

// equal reports whether w and v are the same, in the same order.
func (w Want) equal(v Want) bool {
	samePeers := len(w.Peers) == len(v.Peers) && (len(w.Peers) == 0 || &w.Peers[0] == &v.Peers[0]) ||
		slices.EqualFunc(w.Peers, v.Peers, Peer.Equal)
	return slices.Equal(w.Devices, v.Devices) && samePeers &&
		slices.Equal(w.ClusterRanges, v.ClusterRanges) &&
		slices.Equal(w.ServiceRanges, v.ServiceRanges) &&
		slices.Equal(w.NodeAddrs, v.NodeAddrs) && slices.Equal(w.ClosedRanges, v.ClosedRanges) &&
		slices.Equal(w.SelfAddrs, v.SelfAddrs) && w.Masquerade == v.Masquerade &&
		w.ReflectMarks == v.ReflectMarks &&
		w.Flowtable == v.Flowtable && w.TunnelPort == v.TunnelPort
}

// Equal reports whether p and q are the same, with their lists in the same order.
func (p Peer) Equal(q Peer) bool {
	return p.Name == q.Name && slices.Equal(p.PodPrefixes, q.PodPrefixes) &&
		slices.Equal(p.NodeAddrs, q.NodeAddrs) &&
		slices.Equal(p.Devices, q.Devices) && p.MTU == q.MTU
}

// Plan returns the State that the kernel must have. It is pure, and returns the same State for the
// same Want in any order.
func Plan(w Want) State {
	p := planner{routes: make([]rtnetlink.Route, 0, 16+10*len(w.Peers)+2*len(w.NodeAddrs))}
	p.beneath(w)
	p.tunnels(w)

	s := State{Rules: planRules(w), Routes: p.list(), Devices: planDevices(w.Devices)}
	for _, r := range w.ClusterRanges {
		if r.Addr().Unmap().Is4() {
			s.Forward4 = true
		} else {
			s.Forward6 = true
		}
	}

	if w.ReflectMarks && s.Forward4 {
		s.Reflect4 = reflectOurs
	}
	if w.ReflectMarks && s.Forward6 {
		s.Reflect6 = reflectOurs
	}
	if w.Masquerade {
		s.NAT = tables.NAT().String()
	}
	if w.Flowtable {
		s.Flows = flowtable.Text()
	}

	if w.TunnelPort != 0 {
		s.Outer, s.OuterPort = tables.Outer(w.TunnelPort).String(), w.TunnelPort
	}

	s.sortSmall()
	return s
}

// unspecified6 is the unspecified address of IPv6 (RFC 4291 section 2.5.2). The kernel routes
// packets to it, unlike those to 0.0.0.0.
const unspecified6 = "::"

type planner struct{ routes []rtnetlink.Route }

func (p *planner) add(r rtnetlink.Route) { p.routes = append(p.routes, r) }

// list returns the routes in canonical order. Of several routes with one identity, it returns only
// the first that was added.
func (p *planner) list() []rtnetlink.Route {
	slices.SortStableFunc(p.routes, rtnetlink.CompareKeys)
	return slices.CompactFunc(p.routes,
		func(a, b rtnetlink.Route) bool { return rtnetlink.CompareKeys(a, b) == 0 })
}

// beneath adds unreachable routes for all destinations that must not be reached in clear. It does
// not rely on the ranges: the prefixes of a peer get such routes even if no range contains them.
func (p *planner) beneath(w Want) {
	for _, table := range []int{abi.TablePod, unix.RT_TABLE_MAIN} {
		for _, r := range slices.Concat(w.ClusterRanges, w.ServiceRanges) {
			p.add(unreachable(table, r))
		}
	}

	// No host has these addresses. Without these routes, packets to them would take the node's
	// default route.
	for _, a := range []string{abi.PodGateway4, abi.TunnelAddress4, unspecified6} {
		nowhere := netip.MustParseAddr(a)
		if slices.ContainsFunc(w.ClusterRanges,
			func(r netip.Prefix) bool { return r.Addr().Unmap().Is6() == nowhere.Is6() }) {
			p.add(unreachable(abi.TablePod, single(nowhere)))
		}
	}

	for _, r := range w.ClosedRanges {
		p.add(unreachable(abi.TablePod, r))
	}

	for _, a := range slices.Concat(w.NodeAddrs, w.SelfAddrs) {
		p.add(unreachable(abi.TablePod, single(a)))
	}

	for _, peer := range w.Peers {
		for _, a := range peer.NodeAddrs {
			p.add(unreachable(abi.TablePod, single(a)))
		}
		for _, prefix := range peer.PodPrefixes {
			if !covered(prefix, w.ClusterRanges) {
				p.add(unreachable(abi.TablePod, prefix))
				p.add(unreachable(unix.RT_TABLE_MAIN, prefix))
			}
		}
	}
}

// tunnels adds the routes into tunnels, with a better metric than the unreachable routes.
func (p *planner) tunnels(w Want) {
	source := sources(w.SelfAddrs)
	// Packets of pods already have a source. The kernel's own replies that use TablePod need a
	// source that peers accept from this node.
	var answers map[bool]netip.Addr
	if w.ReflectMarks {
		answers = source
	}

	peers := slices.SortedFunc(slices.Values(w.Peers), comparePeers)
	for _, peer := range peers {
		if len(peer.Devices) == 0 {
			continue
		}
		via := rtnetlink.Route{Metric: abi.MetricTunnel, Device: peer.Devices[0], MTU: peer.MTU}
		for _, a := range peer.NodeAddrs {
			if !slices.Contains(w.SelfAddrs, a) {
				p.add(from(to(via, abi.TablePod, single(a)), answers))
			}
		}
		for _, prefix := range peer.PodPrefixes {
			p.add(from(to(via, abi.TablePod, prefix), answers))
			p.add(from(to(via, unix.RT_TABLE_MAIN, prefix), source))
		}
	}

	if len(w.Devices) == 0 {
		return
	}

	// If a host process connects to a service, the kernel looks up a route before it translates the
	// packet. So service ranges need a route. The tunnel drops a packet that is not translated,
	// because no peer has its destination.
	via := rtnetlink.Route{Metric: abi.MetricTunnel, Device: w.Devices[0].Name}
	for _, r := range w.ServiceRanges {
		p.add(from(to(via, unix.RT_TABLE_MAIN, r), source))
	}
}

func comparePeers(a, b Peer) int { return cmp.Compare(a.Name, b.Name) }

// to returns r in a table for a destination.
func to(r rtnetlink.Route, table int, dst netip.Prefix) rtnetlink.Route {
	r.Table, r.Dst = table, canonical(dst)
	return r
}

// from returns r with the preferred source of its family.
func from(r rtnetlink.Route, source map[bool]netip.Addr) rtnetlink.Route {
	r.Source = source[r.Dst.Addr().Is6()]
	return r
}

func sources(self []netip.Addr) map[bool]netip.Addr {
	out := map[bool]netip.Addr{}
	for _, a := range self {
		a = a.Unmap()
		if _, ok := out[a.Is6()]; !ok {
			out[a.Is6()] = a
		}
	}
	return out
}

func unreachable(table int, dst netip.Prefix) rtnetlink.Route {
	return to(rtnetlink.Route{Metric: abi.MetricRange}, table, dst)
}

func single(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// canonical returns p masked, with an IPv4-mapped IPv6 prefix converted to IPv4.
func canonical(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

func covered(p netip.Prefix, ranges []netip.Prefix) bool {
	p = canonical(p)
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool {
		r = canonical(r)
		return r.Bits() <= p.Bits() && r.Contains(p.Addr())
	})
}

// planRules returns the rules for each family of the ranges and node addresses.
func planRules(w Want) []Rule {
	var out []Rule
	for _, v6 := range []bool{false, true} {
		if !hasFamily(w, v6) {
			continue
		}
		out = append(out,
			Rule{V6: v6, Pref: abi.RulePrefTunnel, Mark: abi.TunnelMark,
				Table: unix.RT_TABLE_MAIN, NotGroup: abi.TunnelGroup},
			Rule{V6: v6, Pref: abi.RulePrefTunnelDeny, Mark: abi.TunnelMark},
			Rule{V6: v6, Pref: abi.RulePrefPod, Mark: abi.PodMark, Table: abi.TablePod})
	}
	return out
}

func hasFamily(w Want, v6 bool) bool {
	is := func(a netip.Addr) bool { return a.Unmap().Is6() == v6 }
	isOf := func(p netip.Prefix) bool { return is(p.Addr()) }
	reaches := func(p Peer) bool { return slices.ContainsFunc(p.NodeAddrs, is) }
	return slices.ContainsFunc(w.ClusterRanges, isOf) ||
		slices.ContainsFunc(w.ServiceRanges, isOf) || slices.ContainsFunc(w.Peers, reaches) ||
		slices.ContainsFunc(w.NodeAddrs, is) || slices.ContainsFunc(w.SelfAddrs, is)
}

func planDevices(devices []TunnelDevice) []Device {
	var out []Device
	for _, d := range devices {
		out = append(out, device.Want(d.Name, d.MTU))
	}
	return out
}
