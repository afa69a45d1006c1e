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

// address adds an address to a link of this namespace and sets it up.
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

// wire returns the pod its links and both namespaces the routes to them and to the other node's.
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

// routeProto marks the routes of the suite that do not go with a link of its own (rtnetlink(7):
// numbers from 5 on are free).
const routeProto = 219

// nextHop returns how this node reaches the other: directly, or by a router, as in clouds.
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

// addVeth makes a veth into the pod with the routes of both ends, as the reference plugin ptp does.
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

// removeLinks removes the suite's links and routes from the node's own namespace, and with them
// their other ends in pods.
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

// openNetNS finds the network namespace with this inode by the processes in it.
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
