package watch

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// tracker stores the links and addresses that the kernel's notifications report. So it recognizes
// notifications that change nothing, and knows whether an index belongs to a pod, a tunnel or
// another link.
type tracker struct {
	nl    *nl.Handle
	links map[int]linkSeen
	addrs map[addrSeen]uint32 // flags
}

// linkSeen holds the state of a link from its last notification.
type linkSeen struct {
	name             string
	group            uint32
	mtu, queue       int
	flags            uint32
	operState, under int
}

type addrSeen struct {
	index int
	addr  netip.Prefix
}

// linkFlags are the flags of a link that carries packets.
const linkFlags = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP

func openTracker() (*tracker, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	t := &tracker{nl: h}
	if err := t.lost(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *tracker) close() { t.nl.Close() }

// lost reads all links and addresses, after notifications were lost.
func (t *tracker) lost() error {
	links, err := t.nl.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	addrs, err := t.nl.AddrList(nil, nl.FamilyAll)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	t.links, t.addrs = map[int]linkSeen{}, map[addrSeen]uint32{}
	for _, l := range links {
		a := l.Attrs()
		t.links[a.Index] = linkSeen{
			name: a.Name, group: a.Group, mtu: a.MTU, queue: a.TxQLen,
			flags:     a.RawFlags & linkFlags,
			operState: int(a.OperState), under: a.MasterIndex,
		}
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		t.addrs[addrSeen{a.LinkIndex, netip.PrefixFrom(ip.Unmap(), ones)}] = uint32(a.Flags)
	}
	return nil
}

func (l linkSeen) tunnel() bool { return IsTunnel(&nl.LinkAttrs{Name: l.name, Group: l.group}) }

func (l linkSeen) pod() bool {
	return l.group == abi.PodGroup || strings.HasPrefix(l.name, abi.PodLinkPrefix)
}

// change returns the Change in a datagram.
func (t *tracker) change(b []byte) (c Change) {
	for kind, body := range rtnetlink.Messages(b) {
		switch kind {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			c.Add(t.link(kind == unix.RTM_DELLINK, body))
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			c.Add(t.addr(kind == unix.RTM_DELADDR, body))
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			c.Add(t.route(kind == unix.RTM_DELROUTE, body))
		case unix.RTM_NEWRULE, unix.RTM_DELRULE:
			c.Add(Change{Underlay: true, Routing: true})
		default:
			c.Add(All())
		}
	}
	return c
}

func (t *tracker) link(gone bool, body []byte) Change {
	if len(body) < unix.SizeofIfInfomsg {
		return All()
	}
	if body[0] == unix.AF_BRIDGE {
		return Change{} // For a port of a bridge, the link itself has another notification.
	}

	index := rtnetlink.Number(body[4:])
	was, known := t.links[index]
	is := linkSeen{flags: uint32(rtnetlink.Number(body[8:])) & linkFlags}
	for k, v := range rtnetlink.Attributes(body[unix.SizeofIfInfomsg:]) {
		switch k {
		case unix.IFLA_IFNAME:
			is.name = rtnetlink.Text(v)
		case unix.IFLA_MTU:
			is.mtu = rtnetlink.Number(v)
		case unix.IFLA_TXQLEN:
			is.queue = rtnetlink.Number(v)
		case unix.IFLA_GROUP:
			is.group = uint32(rtnetlink.Number(v))
		case unix.IFLA_MASTER:
			is.under = rtnetlink.Number(v)
		case unix.IFLA_OPERSTATE:
			if len(v) > 0 {
				is.operState = int(v[0])
			}
		}
	}

	if gone {
		delete(t.links, index)
	} else if t.links[index] = is; known && is == was {
		return Change{}
	}

	switch {
	case is.tunnel() || was.tunnel():
		return tunnelChange(gone || !known, was, is)
	case is.pod() || was.pod():
		return podChange(gone, known, was, is)
	}

	// A new link carries no packets before it has an address or a route, which have their own
	// notifications.
	return Change{Underlay: known || gone}
}

// tunnelChange returns the Change in a notification about a tunnel device. A device that appeared,
// disappeared, or changed whether it carries packets may have lost routes and peers without
// notifications, so everything must be read. hostnet.Host.Differs compares other changes.
func tunnelChange(anew bool, was, is linkSeen) Change {
	if anew || was.flags != is.flags || was.operState != is.operState || was.name != is.name {
		return Change{Underlay: true, Routing: true, Tunnels: true}
	}
	return Change{Devices: map[string]Tunnel{is.name: {
		MTU: is.mtu, Group: is.group, QueueLen: is.queue,
		Up: is.flags&unix.IFF_UP != 0,
	}}}
}

// podChange returns the Change in a notification about a pod's link. It ignores changes that the
// CNI plugin makes when it configures the link.
func podChange(gone, known bool, was, is linkSeen) Change {
	if gone || !known {
		return Change{PodLinks: true}
	}
	c := Change{PodLinks: was.mtu != is.mtu || was.group != is.group}
	down := was.flags&unix.IFF_UP != 0 && is.flags&unix.IFF_UP == 0
	if down || c.PodLinks || was.name != is.name {
		c.Pods = []string{was.name}
	}
	return c
}

func (t *tracker) addr(gone bool, body []byte) Change {
	if len(body) < unix.SizeofIfAddrmsg {
		return All()
	}

	index := rtnetlink.Number(body[4:])
	l, known := t.links[index]
	if known && l.pod() {
		return Change{}
	}

	flags := uint32(body[2])
	var addr netip.Addr
	for k, v := range rtnetlink.Attributes(body[unix.SizeofIfAddrmsg:]) {
		switch k {
		case unix.IFA_LOCAL: // The link's own address, if it also has a peer address.
			addr, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			if !addr.IsValid() {
				addr, _ = netip.AddrFromSlice(v)
			}
		case unix.IFA_FLAGS:
			flags = uint32(rtnetlink.Number(v))
		}
	}

	key := addrSeen{index, netip.PrefixFrom(addr.Unmap(), int(body[1]))}
	was, had := t.addrs[key]
	if gone {
		delete(t.addrs, key)
	} else if t.addrs[key] = flags; had && was == flags {
		return Change{} // Only the lifetime of the address changed.
	}

	if known && l.tunnel() {
		return Change{Routing: gone}
	}

	// Routes with the address as preferred source disappear with it; for IPv4 without a
	// notification.
	return Change{Underlay: true, Routing: gone}
}

func (t *tracker) route(gone bool, body []byte) Change {
	r, index, proto, kind, ok := rtnetlink.ReadRoute(body, func(index int) string {
		if l := t.links[index]; l.name != "" {
			return l.name
		}
		return fmt.Sprintf("#%d", index)
	})

	l := t.links[index]
	switch {
	case !ok:
		return All()
	case rtnetlink.Number(body[8:])&unix.RTM_F_CLONED != 0, r.Table == unix.RT_TABLE_LOCAL,
		kind == unix.RTN_MULTICAST:
		return Change{} // A route exception, or a route that belongs to an address.
	case proto == abi.RouteProtoPod && !gone:
		return Change{} // The CNI plugin adds it.
	case proto == abi.RouteProtoPod && l.name != "":
		return Change{Pods: []string{l.name}}
	case proto == abi.RouteProtoPod:
		return Change{AllPods: true}
	}

	c := Change{Routes: []RouteEvent{{Route: r, Ours: proto == abi.RouteProtoNode, Gone: gone}}}
	if proto != abi.RouteProtoNode && !l.pod() && !l.tunnel() {
		c.Underlay = true
		c.Routing = r.Table == abi.TablePod
	}

	return c
}

// IsTunnel reports whether a link is a tunnel device. It checks the group, and the name for a
// device that does not have the group yet.
func IsTunnel(a *nl.LinkAttrs) bool {
	if a.Group == abi.TunnelGroup {
		return true
	}
	digits, ok := strings.CutPrefix(a.Name, abi.TunnelDevicePrefix)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}
