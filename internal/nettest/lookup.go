package nettest

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
)

// Hop is the kernel's route for a packet.
type Hop struct {
	// Unreachable reports whether the packet would be refused, by an unreachable, prohibit or
	// blackhole route, or because there is no route.
	Unreachable bool
	// Errno is the reason if Unreachable is set: EHOSTUNREACH for an unreachable route,
	// ENETUNREACH for no route.
	Errno error
	// Device is the name of the output link; lo for local destinations.
	Device string
	// Gateway is the next hop. It is the zero Addr if the destination is on the link.
	Gateway netip.Addr
	// Source is the source address that a local socket would get.
	Source netip.Addr
	// MTU is the MTU of the route. 0 means that the route has no MTU.
	MTU int
	// Table is the routing table that has the route.
	Table int
}

func (h Hop) String() string {
	if h.Unreachable {
		return fmt.Sprintf("unreachable (%v)", h.Errno)
	}
	return fmt.Sprintf("dev %s via %s src %s table %d", h.Device, h.Gateway, h.Source, h.Table)
}

// Lookup returns the kernel's route for a packet with this mark to dst. It uses RTM_GETROUTE, so
// all policy rules apply.
func Lookup(h *nl.Handle, dst netip.Addr, mark uint32) (Hop, error) {
	routes, err := h.RouteGetWithOptions(dst.AsSlice(), &nl.RouteGetOptions{Mark: mark})
	for _, refusal := range []error{unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, refusal) {
			return Hop{Unreachable: true, Errno: refusal}, nil
		}
	}
	if err != nil {
		return Hop{}, fmt.Errorf("look up route to %s mark %#x: %w", dst, mark, err)
	}
	if len(routes) == 0 {
		return Hop{}, fmt.Errorf("look up route to %s mark %#x: no answer", dst, mark)
	}
	r := routes[0]
	hop := Hop{MTU: r.MTU, Table: r.Table, Gateway: addr(r.Gw), Source: addr(r.Src)}
	if r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL {
		hop.Unreachable, hop.Errno = true, unix.EHOSTUNREACH
		return hop, nil
	}
	link, err := h.LinkByIndex(r.LinkIndex)
	if err != nil {
		return Hop{}, fmt.Errorf("find link %d: %w", r.LinkIndex, err)
	}
	hop.Device = link.Attrs().Name
	return hop, nil
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}
