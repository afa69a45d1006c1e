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

// plug connects a host to the bridge by a veth pair: port is the name of the end at the bridge, and
// link the name of the end in the host. The oracle watches the port before it can carry a frame.
func (l *Lab) plug(ctx context.Context, h *Host, port, link string, addrs []netip.Prefix) error {
	if err := l.connect(ctx, h, port, link, fmt.Sprint(h.PID())); err != nil {
		return fmt.Errorf("plug %s in: %w", h.Name, err)
	}
	if !l.opts.Offloads {
		// Without offloads, the oracle sees frames as on a real wire, not larger GSO frames.
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

// connect makes the veth pair of plug, and the oracle watch it. netns is the network namespace of
// the end called link, as a process id or a path. The pair is removed with the host.
func (l *Lab) connect(ctx context.Context, h *Host, port, link, netns string) error {
	mtu := fmt.Sprint(l.opts.UnderlayMTU)
	err := l.bridge.IP(ctx,
		fmt.Sprintf("link add %s mtu %s type veth peer name %s mtu %s address %s netns %s", port,
			mtu, link, mtu, hardwareAddr(port), netns),
		fmt.Sprintf("link set %s master %s", port, BridgeLink),
	)
	if err != nil {
		return err
	}
	h.ports = append(h.ports, port)
	return l.Oracle.Watch(port)
}

// hardwareAddr returns the MAC address of a host's end. Like the address of a real network card, it
// is the same after a reboot.
func hardwareAddr(port string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(port))
	return append(net.HardwareAddr{0x02}, sum[:5]...) // locally administered, unicast
}

// unplug removes the ports of a host that has ended. The kernel would remove them too, with the
// host's network namespace, but too late: the lab may use the names again directly.
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

// port returns the name of the bridge's end of a host's link.
func port(host, link string) string {
	if link == "eth0" {
		return host
	}
	return host + "-" + link
}

// SetUnderlayMTU changes the MTU of a node's link to the underlay, and of the path to the node.
func (n *Node) SetUnderlayMTU(ctx context.Context, mtu int) error {
	if err := n.lab.SetPathMTU(ctx, n, mtu); err != nil {
		return err
	}
	return n.IP(ctx, fmt.Sprintf("link set eth0 mtu %d", mtu))
}

// vlanHeader is the number of bytes that a link accepts beyond its MTU in a forwarded frame, for a
// VLAN tag that may be in the frame (__is_skb_forwardable in include/linux/netdevice.h).
const vlanHeader = 4

// SetPathMTU makes the path to a node carry packets of at most mtu bytes. The node's own link keeps
// its MTU. Larger packets are lost without an ICMP error, as on paths that drop ICMP.
func (l *Lab) SetPathMTU(ctx context.Context, n *Node, mtu int) error {
	return l.bridge.IP(ctx,
		fmt.Sprintf("link set %s mtu %d", port(n.Name, "eth0"), mtu-vlanHeader),
		fmt.Sprintf("link set %s mtu %d", BridgeLink, max(mtu, l.opts.UnderlayMTU)),
	)
}

// Cap limits the rate towards each node with tbf. rate is in the format of tc(8), such as "1gbit".
// An empty rate removes the limit.
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

// Unplug disconnects a host from the underlay like an unplugged cable if out is set, otherwise it
// connects the host again. To other hosts, an unplugged host appears to have lost its power.
func (h *Host) Unplug(ctx context.Context, out bool) error {
	state := map[bool]string{true: "down", false: "up"}[out]
	return h.lab.bridge.IP(ctx, "link set "+port(h.Name, "eth0")+" "+state)
}

// AddLink adds another link to the underlay to a node, and returns its addresses, which the cluster
// does not know. The oracle watches the link.
func (n *Node) AddLink(ctx context.Context, link string) ([]netip.Prefix, error) {
	addrs := n.lab.opts.Family.Underlay(byte(addressplan.ExtraHost + n.Number))
	if err := n.lab.plug(ctx, n.Host, port(n.Name, link), link, addrs); err != nil {
		return nil, err
	}
	return addrs, nil
}

// AddLink adds an interface at the underlay to a pod, as another network plugin, such as Multus,
// would. It returns the interface's addresses. The oracle watches the link.
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

// addMore adds a link to another network to a node, before the link to the underlay, and addresses
// on lo, such as anycast or keepalived need. boot also adds a second IPv6 address on eth0.
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
