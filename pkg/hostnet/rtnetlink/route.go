package rtnetlink

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Route is one route. It is comparable. Table, Dst and Metric are the kernel's identity of a route.
type Route struct {
	Table  int
	Dst    netip.Prefix
	Metric int
	// Device is the output link; empty means an unreachable route.
	Device string
	// MTU is the route's own MTU; 0 means the MTU of the device. It is locked, because look-ups of
	// BPF programs ignore another one (ip_mtu_from_fib_result and ip6_mtu_from_fib6). A negative
	// number is an MTU that another program did not lock.
	MTU int
	// Source is the preferred source address; the zero Addr means that there is none.
	Source netip.Addr
}

// Unreachable reports whether packets on r are refused.
func (r Route) Unreachable() bool { return r.Device == "" }

// String is the route as `ip route` prints it.
func (r Route) String() string {
	var b strings.Builder
	if r.Unreachable() {
		fmt.Fprintf(&b, "unreachable %s", r.Dst)
	} else {
		fmt.Fprintf(&b, "%s dev %s", r.Dst, r.Device)
	}
	table := "main"
	if r.Table != unix.RT_TABLE_MAIN {
		table = fmt.Sprint(r.Table)
	}
	fmt.Fprintf(&b, " table %s metric %d", table, r.Metric)
	if r.Source.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Source)
	}
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	return b.String()
}

// CompareRoutes defines the canonical order of routes. Larger table numbers come first, so that the
// routes of pods in TablePod are closed before those in main.
func CompareRoutes(a, b Route) int {
	if c := CompareKeys(a, b); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Device, b.Device), a.Source.Compare(b.Source),
		cmp.Compare(a.MTU, b.MTU))
}

// CompareKeys compares the kernel's identities of two routes.
func CompareKeys(a, b Route) int {
	if c := cmp.Compare(b.Table, a.Table); c != 0 {
		return c
	}
	if c := a.Dst.Addr().Compare(b.Dst.Addr()); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Dst.Bits(), b.Dst.Bits()); c != 0 {
		return c
	}
	return cmp.Compare(a.Metric, b.Metric)
}

// OddDevice is the Device of a route that Route cannot represent. No wanted route has this Device.
const OddDevice = "#"

// nexthopID is RTA_NH_ID (include/uapi/linux/rtnetlink.h).
const nexthopID = 30

// ReadRoute parses the body of RTM_NEWROUTE or RTM_DELROUTE. index is the index of the output link,
// and kind the type of the route (RTN_…). ok is false if the body is malformed.
func ReadRoute(body []byte,
	nameOf func(index int) string) (r Route, index int, proto, kind byte, ok bool) {
	if len(body) < unix.SizeofRtMsg {
		return Route{}, 0, 0, 0, false
	}

	family, bits := body[0], int(body[1])
	proto, kind = body[5], body[7]
	r.Table = int(body[4])
	addr, size := netip.IPv4Unspecified(), 4
	if family == unix.AF_INET6 {
		addr, size = netip.IPv6Unspecified(), 16
	}

	plain := kind == unix.RTN_UNICAST
	for k, v := range Attributes(body[unix.SizeofRtMsg:]) {
		switch k {
		case unix.RTA_DST:
			if len(v) != size {
				return Route{}, 0, 0, 0, false
			}
			addr, _ = netip.AddrFromSlice(v)
		case unix.RTA_TABLE:
			r.Table = Number(v)
		case unix.RTA_OIF:
			index = Number(v)
		case unix.RTA_PRIORITY:
			r.Metric = Number(v)
		case unix.RTA_PREFSRC:
			src, _ := netip.AddrFromSlice(v)
			r.Source = src.Unmap()
		case unix.RTA_METRICS:
			locked := Number(Attribute(v, unix.RTAX_LOCK))&(1<<unix.RTAX_MTU) != 0
			r.MTU = ownMTU(Number(Attribute(v, unix.RTAX_MTU)), locked)
		case unix.RTA_GATEWAY, unix.RTA_MULTIPATH, unix.RTA_VIA, nexthopID:
			plain = false
		}
	}

	r.Dst = netip.PrefixFrom(addr, bits)
	switch {
	case kind == unix.RTN_UNREACHABLE:
	case plain:
		r.Device = nameOf(index)
	default:
		r.Device = OddDevice
	}

	return r, index, proto, kind, r.Dst.IsValid()
}

// ownMTU returns Route.MTU for the MTU of a route in the kernel.
func ownMTU(mtu int, locked bool) int {
	if locked {
		return mtu
	}
	return -mtu
}

// FromLibrary converts a route that the general netlink library has read. A property that Route
// cannot represent, such as a gateway that another program set with our protocol, becomes an
// impossible device name. So such a route never equals a wanted one.
func FromLibrary(r nl.Route, family int, names map[int]string) Route {
	out := Route{Table: r.Table, Metric: r.Priority, MTU: ownMTU(r.MTU, r.MTULock),
		Dst: defaultPrefix(family)}
	if r.Dst != nil {
		ones, _ := r.Dst.Mask.Size()
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		if family == nl.FamilyV4 {
			a = a.Unmap()
		}
		out.Dst = netip.PrefixFrom(a, ones)
	}
	if src, ok := netip.AddrFromSlice(r.Src); ok {
		out.Source = src.Unmap()
	}
	switch {
	case r.Type == unix.RTN_UNREACHABLE:
	case r.Type == unix.RTN_UNICAST && r.Gw == nil && len(r.MultiPath) == 0:
		out.Device = names[r.LinkIndex]
		if out.Device == "" {
			out.Device = fmt.Sprintf("#%d", r.LinkIndex)
		}
	default:
		out.Device = fmt.Sprintf("#%d type %d via %s", r.LinkIndex, r.Type, r.Gw)
	}
	return out
}

// ToLibrary converts a route of Kubeveil for the general netlink library. index returns the index
// of a link by its name.
func (r Route) ToLibrary(index func(name string) (int, error)) (*nl.Route, error) {
	out := &nl.Route{
		Table: r.Table, Dst: nl.IPNet(r.Dst), Priority: r.Metric, Protocol: abi.RouteProtoNode,
		MTU: r.MTU, MTULock: r.MTU != 0, Type: unix.RTN_UNREACHABLE,
		Src: r.Source.AsSlice(),
	}
	if r.Unreachable() {
		return out, nil
	}
	if n, _ := fmt.Sscanf(r.Device, "#%d type %d", &out.LinkIndex, &out.Type); n == 2 {
		// RT_SCOPE_NOWHERE matches any scope when a route is deleted. Such a route is never added.
		out.Scope = unix.RT_SCOPE_NOWHERE
		return out, nil
	}
	link, err := index(r.Device)
	if err != nil {
		return nil, err
	}
	out.LinkIndex, out.Type = link, unix.RTN_UNICAST
	if r.Dst.Addr().Is4() {
		out.Scope = unix.RT_SCOPE_LINK
	}
	return out, nil
}

func defaultPrefix(family int) netip.Prefix {
	if family == nl.FamilyV6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
