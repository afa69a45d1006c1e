package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// plug connects a host to the bridge by a veth: port is its name at the bridge, link its name in
// the host. The oracle watches the port before it can carry a frame.
func (l *Lab) plug(ctx context.Context, h *Host, port, link string, addrs []netip.Prefix) error {
	if err := l.connect(ctx, h, port, link, fmt.Sprint(h.PID())); err != nil {
		return fmt.Errorf("plug %s in: %w", h.Name, err)
	}
	if !l.opts.Offloads {
		// Frames leave the host as they would be on a wire: no super-frames to the oracle.
		off := []string{"-K", link, "tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation",
			"off"}
		if _, err := labhost.Output(h.NetOnly(ctx, "ethtool", off...)); err != nil {
			return fmt.Errorf("plug %s in: %w", h.Name, err)
		}
	}
	if err := l.bridge.IP(ctx, "link set "+port+" up"); err != nil {
		return err
	}
	return h.IP(ctx, append(labhost.AddrLines(link, addrs), "link set "+link+" up")...)
}

// connect makes the veth of plug, with its end link in the network namespace netns, a process id or
// a path, and lets the oracle watch it. It ends with the host.
func (l *Lab) connect(ctx context.Context, h *Host, port, link, netns string) error {
	mtu := fmt.Sprint(l.opts.UnderlayMTU)
	err := l.bridge.IP(ctx,
		fmt.Sprintf("link add %s mtu %s type veth peer name %s mtu %s address %s netns %s", port,
			mtu, link, mtu, hardwareAddr(port), netns),
		fmt.Sprintf("link set %s master %s", port, bridgeLink),
	)
	if err != nil {
		return err
	}
	h.ports = append(h.ports, port)
	return l.Oracle.Watch(port)
}

// hardwareAddr returns the MAC address of a host's end: like a machine's, the same after a reboot.
func hardwareAddr(port string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(port))
	return append(net.HardwareAddr{0x02}, sum[:5]...) // locally administered, unicast
}

// unplug removes ports of a host that has ended. The kernel removes them too, with the host's
// network namespace, but later; the names are needed again at once.
func (l *Lab) unplug(ports []string) error {
	if len(ports) == 0 {
		return nil
	}
	return l.bridge.Do(func() error {
		for _, name := range ports {
			link, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkDel(link)
			}
			var gone netlink.LinkNotFoundError
			if err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("unplug %s: %w", name, err)
			}
		}
		return nil
	})
}

// port is the bridge's side of a host's link.
func port(host, link string) string {
	if link == "eth0" {
		return host
	}
	return host + "-" + link
}

// SetUnderlayMTU changes the MTU of a node's own link to the underlay and lets the bridge carry it.
func (n *Node) SetUnderlayMTU(ctx context.Context, mtu int) error {
	if err := n.lab.SetPathMTU(ctx, n, mtu); err != nil {
		return err
	}
	return n.IP(ctx, fmt.Sprintf("link set eth0 mtu %d", mtu))
}

// vlanHeader is the number of bytes that a link accepts beyond its MTU in a forwarded frame, for a
// VLAN tag that may be in the frame (__is_skb_forwardable in include/linux/netdevice.h).
const vlanHeader = 4

// SetPathMTU makes the path to a node carry packets of at most that many bytes, while the node's
// own link keeps its MTU: larger ones are lost without a word, as where ICMP is dropped.
func (l *Lab) SetPathMTU(ctx context.Context, n *Node, mtu int) error {
	return l.bridge.IP(ctx,
		fmt.Sprintf("link set %s mtu %d", port(n.Name, "eth0"), mtu-vlanHeader),
		fmt.Sprintf("link set %s mtu %d", bridgeLink, max(mtu, l.opts.UnderlayMTU)),
	)
}

// Cap limits the rate towards each node with tbf, for example "1gbit"; empty ends the limit.
func (l *Lab) Cap(ctx context.Context, rate string) error {
	for _, n := range l.Nodes() {
		p := port(n.Name, "eth0")
		args := []string{"qdisc", "replace", "dev", p, "root", "tbf", "rate", rate, "burst",
			"128kb", "latency", "20ms"}
		if rate == "" {
			args = []string{"qdisc", "del", "dev", p, "root"}
		}
		if _, err := labhost.Output(l.bridge.NetOnly(ctx, "tc", args...)); err != nil {
			return fmt.Errorf("cap the link of %s: %w", n.Name, err)
		}
	}
	return nil
}

// Unplug takes the underlay from a host, or returns it, like a cable. To all others it is as if the
// host had no power.
func (h *Host) Unplug(ctx context.Context, out bool) error {
	state := map[bool]string{true: "down", false: "up"}[out]
	return h.lab.bridge.IP(ctx, "link set "+port(h.Name, "eth0")+" "+state)
}

// AddLink returns a node another link to the underlay, watched too, with addresses that are not
// known to the cluster.
func (n *Node) AddLink(ctx context.Context, link string) ([]netip.Prefix, error) {
	addrs := n.lab.opts.Family.Underlay(byte(addressplan.ExtraHost + n.Number))
	if err := n.lab.plug(ctx, n.Host, port(n.Name, link), link, addrs); err != nil {
		return nil, err
	}
	return addrs, nil
}

// AddLink adds to a pod an interface at the underlay outside of CNI, as another plugin beside it
// does, watched too. It returns the interface's addresses.
func (p *Pod) AddLink(ctx context.Context, link string) ([]netip.Prefix, error) {
	l, name := p.Node.lab, port(p.Node.Name, link)
	if err := l.connect(ctx, p.Node.Host, name, link, p.NetNS()); err != nil {
		return nil, fmt.Errorf("add link %s to pod %s: %w", link, p.ID, err)
	}
	if err := l.bridge.IP(ctx, "link set "+name+" up"); err != nil {
		return nil, err
	}
	addrs := l.opts.Family.Underlay(byte(addressplan.ExtraHost + p.Node.Number))
	for _, line := range append(labhost.AddrLines(link, addrs), "link set "+link+" up") {
		if _, err := p.Exec(ctx, "ip", strings.Fields(line)...); err != nil {
			return nil, fmt.Errorf("add link %s to pod %s: %w", link, p.ID, err)
		}
	}
	return addrs, nil
}

// addMore adds to a node a link to another network, registered before the one to the underlay, and
// addresses on lo, as for anycast or keepalived. To that boot adds a second IPv6 address on eth0.
func (n *Node) addMore(ctx context.Context) error {
	f, last := n.lab.opts.Family, byte(n.Number)
	other := addressplan.Pick(f, addressplan.At(addressplan.Other4, last),
		addressplan.At(addressplan.Other6, last))
	if err := n.lab.plug(ctx, n.Host, port(n.Name, "mgmt0"), "mgmt0", other); err != nil {
		return err
	}
	return n.IP(ctx, labhost.AddrLines("lo", addressplan.Pick(f, addressplan.At(addressplan.Loop4,
		last), addressplan.At(addressplan.Loop6, last)))...)
}
