package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// The bare device has its own network namespace, with the node's ends of the pods' bare links.
// There, neither the guard's programs nor kube-proxy's rules see its packets, so bare measures only
// WireGuard. Its encrypted datagrams still leave by the node's own link, because a device keeps its
// socket in the namespace where it was made (drivers/net/wireguard/device.c, creating_net). The
// namespace and everything in it are removed when the session ends.

// tunnel makes the bare device in a new namespace, as an administrator would by hand, and returns
// its public key. It first removes an earlier bare device.
func (n *node) tunnel(_ context.Context, a session.Tunnel) (any, error) {
	if err := errors.Join(n.dropBare(), removeLink(session.BareDevice)); err != nil {
		return nil, err
	}
	var err error
	if n.bare, err = netns.New(); err != nil {
		return nil, err
	}

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = session.BareDevice, a.MTU
	if like, err := netlink.LinkByName(a.Like); err == nil {
		attrs.TxQLen = like.Attrs().TxQLen
	}
	device := &netlink.Wireguard{LinkAttrs: attrs}
	if err := netlink.LinkAdd(device); err != nil {
		return nil, fmt.Errorf("add WireGuard device %s: %w", attrs.Name, err)
	}
	if err := netlink.LinkSetNsFd(device, int(n.bare.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("move WireGuard device %s to a new namespace: %w",
			attrs.Name, err), removeLink(attrs.Name))
	}

	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}

	err = n.inBare(func() error {
		if err := configure(wgtypes.Config{PrivateKey: &key, ListenPort: &a.Port}); err != nil {
			return err
		}
		if err := up(session.BareDevice); err != nil {
			return err
		}
		return forward(a.Service, a.Endpoint)
	})

	return key.PublicKey().String(), err
}

// inBare runs fn in the bare device's namespace.
func (n *node) inBare(fn func() error) error {
	if n.bare == nil {
		return errors.New("no bare device exists yet")
	}
	return netns.DoFd(int(n.bare.Fd()), "of the bare device", fn)
}

// dropBare removes the bare device's namespace and everything in it.
func (n *node) dropBare() error {
	if n.bare == nil {
		return nil
	}
	f := n.bare
	n.bare = nil
	// Remove the links now, because the port and the pod's end must be free at once. The kernel
	// removes the rest of the namespace some time later (net/core/net_namespace.c, cleanup_net).
	links := netns.DoFd(int(f.Fd()), "of the bare device", func() error {
		return errors.Join(removeLink(session.BareDevice), removeLink(session.HostBareLink))
	})
	return errors.Join(links, f.Close())
}

func configure(c wgtypes.Config) error {
	client, err := wgctrl.New()
	if err != nil {
		return err
	}
	if err := client.ConfigureDevice(session.BareDevice, c); err != nil {
		return errors.Join(fmt.Errorf("configure %s: %w", session.BareDevice, err), client.Close())
	}
	return client.Close()
}

// kubeProxyRules has the number of rules that packets of an established connection pass at each
// hook of kube-proxy in mode nftables. Each rule checks whether the connection is new
// (k8s.io/kubernetes/pkg/proxy/nftables/proxier.go, nftablesBaseChains and nftablesJumpChains).
var kubeProxyRules = []struct {
	name  string
	hook  *nftables.ChainHook
	prio  *nftables.ChainPriority
	rules int
}{
	{"filter-prerouting-pre-dnat", nftables.ChainHookPrerouting,
		nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 10), 1},
	{"filter-forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, 2},
}

// forward enables forwarding in this namespace. It adds the rules that kube-proxy has on the node
// for any network: a rule that translates the service to its endpoint, an empty chain for SNAT, and
// the rules that check for each packet whether its connection is new. So connections are tracked on
// both nodes, as with Kubeveil, and the difference between ours and bare is the cost of Kubeveil.
func forward(service, endpoint netip.Addr) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return err
	}

	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: session.BareDevice})
	chain := func(name string, typ nftables.ChainType, hook *nftables.ChainHook,
		prio *nftables.ChainPriority) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Table: table, Name: name, Type: typ, Hooknum: hook,
			Priority: prio})
	}
	prerouting := chain("nat-prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting,
		nftables.ChainPriorityNATDest)
	chain("nat-postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		nftables.ChainPriorityNATSource)
	const destination = 16 // of an IPv4 header, RFC 791 section 3.1
	c.AddRule(&nftables.Rule{Table: table, Chain: prerouting, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination,
			Len: net.IPv4len},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: service.AsSlice()},
		&expr.Immediate{Register: 1, Data: endpoint.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}})

	for _, k := range kubeProxyRules {
		in := chain(k.name, nftables.ChainTypeFilter, k.hook, k.prio)
		for range k.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: []expr.Any{
				&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
					Mask: binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW),
					Xor:  make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
				&expr.Counter{},
			}})
		}
	}

	if err := c.Flush(); err != nil {
		return fmt.Errorf("rules for service %v: %w", service, err)
	}
	return nil
}

func (n *node) addPeer(p session.Peer) error {
	key, err := wgtypes.ParseKey(p.PublicKey)
	if err != nil {
		return fmt.Errorf("public key of the peer: %w", err)
	}
	peer := wgtypes.PeerConfig{PublicKey: key, Endpoint: net.UDPAddrFromAddrPort(p.Endpoint),
		ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{*hostNet(p.Pod)}}
	return n.inBare(func() error {
		if err := configure(wgtypes.Config{ReplacePeers: true,
			Peers: []wgtypes.PeerConfig{peer}}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(session.BareDevice)
		if err != nil {
			return err
		}
		err = netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index,
			Dst: hostNet(p.Pod), Scope: netlink.SCOPE_LINK})
		if err != nil {
			return fmt.Errorf("route %s into %s: %w", p.Pod, session.BareDevice, err)
		}
		return nil
	})
}
