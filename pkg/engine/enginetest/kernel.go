package enginetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/engine/uapi"
)

// kernelLink is the name of a kernel's device in its namespace.
const kernelLink = "wg0"

// NewKernel returns a Node with a WireGuard device of the kernel, closed when the test ends. The
// link is in a new network namespace, but its UDP socket is in the namespace of the process. The
// test is skipped if the kernel has no WireGuard.
func NewKernel(t testing.TB) *TunDevice {
	t.Helper()
	ns := nettest.NewNS(t)
	here, err := nl.Open()
	errtest.Must(t, err)
	defer here.Close()

	// The UDP socket is in the namespace of the requesting netlink socket
	// (drivers/net/wireguard/device.c, wg_newlink).
	attrs := nl.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Namespace = kernelLink, MTU, nl.NsFd(ns.Fd())
	if err := here.LinkAdd(&nl.Wireguard{LinkAttrs: attrs}); errors.Is(err, unix.EOPNOTSUPP) {
		nettest.Skip(t, nettest.NoWireGuard, "the kernel has no WireGuard (CONFIG_WIREGUARD)")
	} else if err != nil {
		t.Fatal(err)
	}

	n := &TunDevice{receive: make(chan []byte, 1<<14), far: -1}
	n.key()
	var control *wgctrl.Client
	var tap *os.File
	ns.Run(t, func() error {
		if control, err = wgctrl.New(); err != nil {
			return err
		}
		tap, err = openTap(kernelLink)
		return err
	})
	n.Device = &kernel{ns, control}
	go n.readTap(tap)
	n.send = func(p []byte) error { return n.writeTap(ns, p) }
	t.Cleanup(func() {
		n.Close()
		tap.Close()
	})
	return n
}

// openTap sets a link up and opens a packet socket that reads the packets received by the link.
func openTap(name string) (*os.File, error) {
	h, err := nl.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, err
	}
	if err := h.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set link %s up: %w", name, err)
	}

	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL),
			Ifindex: link.Attrs().Index}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("read link %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

func (n *TunDevice) readTap(tap *os.File) {
	b := make([]byte, 1<<16)
	for {
		l, err := tap.Read(b)
		if err != nil {
			return
		}
		select {
		case n.receive <- append([]byte(nil), b[:l]...):
		default:
		}
	}
}

// writeTap sends a packet out of the link, so the device encrypts it.
func (n *TunDevice) writeTap(ns *nettest.NS, p []byte) error {
	protocol := uint16(unix.ETH_P_IP)
	if p[0]>>4 == 6 {
		protocol = unix.ETH_P_IPV6
	}
	return ns.Do(func() error {
		link, err := net.InterfaceByName(kernelLink)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, p, 0, &unix.SockaddrLinklayer{Protocol: bigEndian(protocol),
			Ifindex: link.Index})
	})
}

// kernel is a Device for a WireGuard device of the kernel.
type kernel struct {
	ns      *nettest.NS
	control *wgctrl.Client
}

func (k *kernel) IpcGetOperation(w io.Writer) error {
	d, err := k.control.Device(kernelLink)
	if err != nil {
		return err
	}
	s := uapi.DeviceState{PrivateKey: uapi.Key(d.PrivateKey), ListenPort: uint16(d.ListenPort),
		Mark: uint32(d.FirewallMark)}
	for _, p := range d.Peers {
		state := uapi.PeerState{Public: uapi.Key(p.PublicKey), LastHandshake: p.LastHandshakeTime,
			Sent: uint64(p.TransmitBytes), Received: uint64(p.ReceiveBytes)}
		if p.Endpoint != nil {
			state.Endpoint.Addr = p.Endpoint.AddrPort()
		}
		s.Peers = append(s.Peers, state)
	}
	return s.Write(w)
}

func (k *kernel) IpcSetOperation(r io.Reader) error {
	set, err := uapi.Parse(r)
	if err != nil {
		return err
	}
	c := wgtypes.Config{ReplacePeers: set.ReplacePeers, PrivateKey: (*wgtypes.Key)(set.PrivateKey)}
	if set.ListenPort != nil {
		port := int(*set.ListenPort)
		c.ListenPort = &port
	}

	for _, p := range set.Peers {
		peer := wgtypes.PeerConfig{PublicKey: wgtypes.Key(p.Public), Remove: p.Remove,
			UpdateOnly: p.UpdateOnly, PresharedKey: (*wgtypes.Key)(p.Preshared),
			PersistentKeepaliveInterval: p.Keepalive}
		if p.Endpoint != nil {
			peer.Endpoint = net.UDPAddrFromAddrPort(p.Endpoint.Addr)
		}
		for _, a := range p.Allowed {
			if a.Clear {
				peer.ReplaceAllowedIPs = true
				continue
			}
			if a.Remove {
				return errors.New("kernels before 6.16 remove no single allowed IP")
			}
			peer.AllowedIPs = append(peer.AllowedIPs, net.IPNet{IP: a.Prefix.Addr().AsSlice(),
				Mask: net.CIDRMask(a.Prefix.Bits(), a.Prefix.Addr().BitLen())})
		}
		c.Peers = append(c.Peers, peer)
	}
	return k.control.ConfigureDevice(kernelLink, c)
}

// Close removes the link.
func (k *kernel) Close() {
	k.control.Close()
	_ = k.ns.Do(func() error {
		return nl.OnLink(kernelLink, func(h *nl.Handle, l nl.Link) error { return h.LinkDel(l) })
	})
}
