package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// address adds an address to a link of this namespace and sets the link up.
func address(name string, addr netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: hostNet(addr)}); err != nil {
		return fmt.Errorf("address %s of %s: %w", addr, name, err)
	}
	return up(name)
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s up: %w", name, err)
	}
	return nil
}

// wire adds the links of a pod, and the routes to them and to the other node's pod, in the node's
// namespace and in the bare device's namespace.
func (n *node) wire(_ context.Context, w session.Wire) (any, error) {
	ns, err := openNetNS(w.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := addVeth(ns, w.Clear); err != nil {
		return nil, err
	}
	if w.Bare != nil {
		if err := n.inBare(func() error { return addVeth(ns, *w.Bare) }); err != nil {
			return nil, err
		}
		if err := n.addPeer(w.Peer); err != nil {
			return nil, err
		}
	}
	via, err := nextHop(w.Via)
	if err != nil {
		return nil, err
	}
	via.Dst = hostNet(w.Other)
	if err := netlink.RouteReplace(&via); err != nil {
		return nil, fmt.Errorf("route %s via %s: %w", w.Other, w.Via, err)
	}
	return struct{}{}, nil
}

// routeProto is the protocol of the suite's routes on links that it did not make, so that
// removeLinks finds them. In rtnetlink(7), numbers from 5 on are free.
const routeProto = 219

// nextHop returns a route without destination to node: directly, or through a router as in clouds.
func nextHop(node netip.Addr) (netlink.Route, error) {
	routes, err := netlink.RouteGet(node.AsSlice())
	if err != nil || len(routes) == 0 {
		return netlink.Route{}, fmt.Errorf("route to node %s: %w", node, err)
	}
	gw := routes[0].Gw
	if gw == nil {
		gw = node.AsSlice()
	}
	return netlink.Route{LinkIndex: routes[0].LinkIndex, Gw: gw, Flags: int(netlink.FLAG_ONLINK),
		Protocol: routeProto}, nil
}

// addVeth makes a veth pair between this namespace and the pod, with addresses and routes at both
// ends, as the reference plugin ptp does.
func addVeth(ns *os.File, l session.Link) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("link %s of the pod: %w", l.Pod, err)
		}
	}()
	if err := removeLink(l.Host); err != nil {
		return err
	}

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = l.Host, l.MTU
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: l.Pod, PeerMTU: uint32(l.MTU),
		PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add %s: %w", l.Host, err)
	}
	if err := address(l.Host, l.Gateway); err != nil {
		return err
	}
	host, err := netlink.LinkByName(l.Host)
	if err != nil {
		return err
	}

	err = netlink.RouteReplace(&netlink.Route{LinkIndex: host.Attrs().Index, Dst: hostNet(l.Addr),
		Scope: netlink.SCOPE_LINK})
	if err != nil {
		return fmt.Errorf("route %s on the node: %w", l.Addr, err)
	}

	return addPodEnd(ns, l)
}

func addPodEnd(ns *os.File, l session.Link) error {
	return netns.DoFd(int(ns.Fd()), ns.Name(), func() error {
		if err := address(l.Pod, l.Addr); err != nil {
			return err
		}
		link, err := netlink.LinkByName(l.Pod)
		if err != nil {
			return err
		}
		index, src := link.Attrs().Index, net.IP(l.Addr.AsSlice())
		err = netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: hostNet(l.Gateway),
			Scope: netlink.SCOPE_LINK, Src: src})
		if err != nil {
			return fmt.Errorf("route to the gateway: %w", err)
		}
		for _, to := range l.Routes {
			if err := netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: hostNet(to),
				Gw: l.Gateway.AsSlice(), Src: src}); err != nil {
				return fmt.Errorf("route %s: %w", to, err)
			}
		}
		return nil
	})
}

func (n *node) unwire(context.Context, struct{}) (any, error) {
	return struct{}{}, errors.Join(n.dropBare(), removeLinks())
}

// removeLinks removes the suite's links and routes from the node's own namespace. The kernel then
// removes the links' other ends in pods.
func removeLinks() error {
	var errs []error
	for _, name := range []string{session.BareDevice, session.HostClearLink} {
		errs = append(errs, removeLink(name))
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
		&netlink.Route{Protocol: routeProto}, netlink.RT_FILTER_PROTOCOL)
	errs = append(errs, err)
	for _, r := range routes {
		errs = append(errs, netlink.RouteDel(&r))
	}
	return errors.Join(errs...)
}

func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// openNetNS opens the network namespace with that inode. It looks for a process in the namespace.
func openNetNS(inode uint64) (*os.File, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	want := fmt.Sprintf("net:[%d]", inode)
	for _, path := range paths {
		if target, err := os.Readlink(path); err != nil || !strings.EqualFold(target, want) {
			continue
		}
		return os.Open(path)
	}
	return nil, fmt.Errorf("no process has the network namespace %d", inode)
}
