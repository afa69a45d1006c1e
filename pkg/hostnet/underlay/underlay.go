package underlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// ErrNone is the error of Find if no link carries node traffic.
var ErrNone = errors.New("no link carries traffic between nodes: the node needs a route to " +
	"its peers, or a default route")

// Link is the link that carries the traffic between nodes.
type Link struct {
	// Name and Index identify the link to most nodes. If there is none, they identify the link of
	// the default route, or else the link with the node's own address. A link without a carrier is
	// used only if no link has a carrier.
	Name  string
	Index int
	// MTU is the smallest MTU, in bytes, of all links and configured routes that lead to a node or
	// a default gateway, and of links with an address of this node. Path MTUs that the kernel
	// learned from ICMP are ignored, because any host can forge them. pkg/pathmtu measures the
	// paths.
	MTU int
	// Addrs are the addresses of the link without link-local addresses, sorted.
	Addrs []netip.Addr
	// Assigned are the addresses of all links, sorted, because a node's address need not be on the
	// underlay link. Links of tunnels, pods and kube-proxy's IPVS mode, and loopback and link-local
	// addresses, are left out.
	Assigned []netip.Addr
	// Networks are the networks of the links of Assigned, in the kernel's order.
	Networks []Network
	// Gateways are the next hops of default routes and towards nodes, sorted.
	Gateways []netip.Addr
}

// Network is the network of one address of a link.
type Network struct {
	Link    string
	Network netip.Prefix
}

// Find returns the link that carries node traffic. nodes are the underlay addresses of peers, and
// self the addresses of this node. Either may be empty.
func Find(h *nl.Handle, ask *rtnetlink.Socket, nodes, self []netip.Addr) (Link, error) {
	links, err := h.LinkList()
	if err != nil {
		return Link{}, fmt.Errorf("list links: %w", err)
	}
	f := finder{byIndex: map[int]*nl.LinkAttrs{}, votes: map[int]int{}}
	for _, l := range links {
		f.byIndex[l.Attrs().Index] = l.Attrs()
	}
	if err := f.towards(ask, nodes); err != nil {
		return Link{}, err
	}
	if err := f.defaults(ask); err != nil {
		return Link{}, err
	}
	addrs, err := h.AddrList(nil, nl.FamilyAll)
	if err != nil {
		return Link{}, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && slices.Contains(self, ip.Unmap()) {
			f.link(a.LinkIndex, weightOwn)
		}
	}
	return f.result(addrs)
}

// Weights of evidence for a link. A default route outweighs any number of own addresses. A node
// that is reached over the link outweighs both. A carrier outweighs all.
const (
	weightOwn     = 1
	weightDefault = 1 << 8
	weightNode    = 1 << 16
	weightCarrier = 1 << 40
)

type finder struct {
	byIndex  map[int]*nl.LinkAttrs
	votes    map[int]int
	mtu      int
	gateways []netip.Addr
}

// link adds weight to a link, unless the link cannot carry outer packets, and its MTU to the
// result.
func (f *finder) link(index, weight int) {
	a := f.byIndex[index]
	if a == nil || index == loopbackIndex || a.Group == abi.TunnelGroup ||
		a.Group == abi.PodGroup {
		return
	}
	f.votes[index] += weight
	f.narrow(a.MTU)
}

// loopbackIndex is LOOPBACK_IFINDEX of every network namespace.
const loopbackIndex = 1

// ipvsLink is the link to which kube-proxy in IPVS mode assigns the addresses of services
// (pkg/proxy/ipvs of Kubernetes).
const ipvsLink = "kube-ipvs0"

func (f *finder) narrow(mtu int) {
	if mtu > 0 && (f.mtu == 0 || mtu < f.mtu) {
		f.mtu = mtu
	}
}

func (f *finder) gateway(b []byte) {
	if gw, ok := netip.AddrFromSlice(b); ok && !slices.Contains(f.gateways, gw.Unmap()) {
		f.gateways = append(f.gateways, gw.Unmap())
	}
}

// towards looks up the configured route of an outer packet to each node, and counts its next hops.
// Nodes without a route are skipped.
func (f *finder) towards(ask *rtnetlink.Socket, nodes []netip.Addr) error {
	return ask.LookUp(nodes, func(body []byte) { f.route(body, weightNode) })
}

// route counts every next hop of the route in body, the body of RTM_NEWROUTE.
func (f *finder) route(body []byte, weight int) {
	if len(body) < unix.SizeofRtMsg || body[7] != unix.RTN_UNICAST {
		return
	}

	index := 0
	var hops []byte
	for k, v := range rtnetlink.Attributes(body[unix.SizeofRtMsg:]) {
		switch k {
		case unix.RTA_METRICS:
			f.narrow(rtnetlink.Number(rtnetlink.Attribute(v, unix.RTAX_MTU)))
		case unix.RTA_GATEWAY:
			f.gateway(v)
		case unix.RTA_OIF:
			index = rtnetlink.Number(v)
		case unix.RTA_MULTIPATH:
			hops = v
		}
	}

	if hops == nil {
		f.link(index, weight)
	}

	for len(hops) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(hops))
		if size < unix.SizeofRtNexthop || size > len(hops) {
			return
		}
		f.gateway(rtnetlink.Attribute(hops[unix.SizeofRtNexthop:size], unix.RTA_GATEWAY))
		f.link(rtnetlink.Number(hops[4:]), weight)
		hops = hops[min(len(hops), rtnetlink.Align(size)):]
	}
}

// defaults counts the next hops of the default routes in table main.
func (f *finder) defaults(ask *rtnetlink.Socket) error {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var routes [][]byte
		err := ask.Dump(family, unix.RT_TABLE_MAIN, 0, unix.RTN_UNICAST, func() func([]byte) {
			routes = nil
			return func(body []byte) {
				if to := body[1]; to == 0 {
					routes = append(routes, slices.Clone(body))
				}
			}
		})
		if err := nl.Err(err); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) &&
			!errors.Is(err, nl.ErrNotFound) {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, body := range routes {
			f.route(body, weightDefault)
		}
	}
	return nil
}

func (f *finder) result(addrs []nl.Addr) (Link, error) {
	u := Link{MTU: f.mtu, Gateways: f.gateways}
	for index, votes := range f.votes {
		// The carrier is checked because the kernel keeps the routes of a link that lost its
		// carrier.
		if f.byIndex[index].RawFlags&unix.IFF_LOWER_UP != 0 {
			f.votes[index] = votes + weightCarrier
		}
	}

	for index, votes := range f.votes {
		if best := f.votes[u.Index]; votes > best || votes == best && index < u.Index {
			u.Index = index
		}
	}

	if u.Index == 0 {
		return Link{}, ErrNone
	}

	u.Name = f.byIndex[u.Index].Name
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		if l := f.byIndex[a.LinkIndex]; !ok || l == nil || l.Group == abi.TunnelGroup ||
			l.Group == abi.PodGroup || l.Name == ipvsLink || ip.IsLoopback() ||
			ip.IsLinkLocalUnicast() {
			continue
		}
		u.Assigned = append(u.Assigned, ip)
		ones, _ := a.Mask.Size()
		u.Networks = append(u.Networks, Network{f.byIndex[a.LinkIndex].Name,
			netip.PrefixFrom(ip, ones).Masked()})
		if a.LinkIndex == u.Index {
			u.Addrs = append(u.Addrs, ip)
		}
	}

	slices.SortFunc(u.Addrs, netip.Addr.Compare)
	slices.SortFunc(u.Assigned, netip.Addr.Compare)
	slices.SortFunc(u.Gateways, netip.Addr.Compare)
	return u, nil
}
