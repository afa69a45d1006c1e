package services_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// TestAddressesAnnouncedByANode: another program of one node answers ARP and neighbour discovery for
// addresses that no link has, as MetalLB's speaker does in layer 2 mode (docs/how-to/metallb.md). A
// client of the same network is served by pods of all nodes, pods reach the addresses, and new
// connections follow the addresses to another node.
func TestAddressesAnnouncedByANode(t *testing.T) {
	for _, routing := range hostRoutings {
		t.Run(routing, func(t *testing.T) { announcedByANode(t, routing) })
	}
}

func announcedByANode(t *testing.T, routing string) {
	ctx, l := serviceLab(t, routing)
	client, pods := namedPods(ctx, t, l, 1, "a", "b")
	web := publish(ctx, t, l, "web",
		corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}, pods...)
	var addrs []netip.Addr
	for _, p := range l.Family().Underlay(241) {
		addrs = append(addrs, p.Addr())
		l.Oracle.Update(func(r *leak.Rules) { r.Outside = append(r.Outside, p.Addr()) })
	}
	assign(ctx, t, l, web, addrs...)

	for i, n := range l.Nodes()[:2] {
		stop := announce(t, n, addrs)
		for _, a := range addrs {
			for _, proto := range []string{"tcp", "udp"} {
				to := netip.AddrPortFrom(a, servicePort)
				answers(ctx, t, l.Outside, traffic.Question{Proto: proto, To: to, Count: 40,
					Egress: true}, everyone("a", "b"))
				if i == 0 {
					answers(ctx, t, client, traffic.Question{Proto: proto, To: to, Count: 40},
						everyone("a", "b"))
				}
			}
			expectNeighbor(ctx, t, l.Outside, a, n)
		}
		stop()
	}
	noLeaksBetween(t, l)
}

// TestAnnouncedAddressesKeepClients: with externalTrafficPolicy Local, the node with the endpoint
// announces, and the endpoint sees the client's address.
func TestAnnouncedAddressesKeepClients(t *testing.T) {
	ctx, l := serviceLab(t, config.HostRoutingKernel)
	_, pods := namedPods(ctx, t, l, 1, "a", "b")
	web := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}, pods[1])
	addr := l.Family().Underlay(241)[0].Addr()
	l.Oracle.Update(func(r *leak.Rules) { r.Outside = append(r.Outside, addr) })
	assign(ctx, t, l, web, addr)
	stop := announce(t, l.Nodes()[1], []netip.Addr{addr})
	c := answers(ctx, t, l.Outside, traffic.Question{Proto: "tcp",
		To: netip.AddrPortFrom(addr, servicePort), Count: 20, Egress: true}, everyone("b"))
	client := l.Family().Underlay(addressplan.OutsideHost)[0].Addr().String()
	if len(c.Sources) != 1 || c.Sources[client] == 0 {
		t.Errorf("the endpoint saw the clients %v, want %s", c.Sources, client)
	}
	stop()
	noLeaksBetween(t, l)
}

// expectNeighbor checks that a host has the hardware address of a node for an address.
func expectNeighbor(ctx context.Context, t *testing.T, at *lab.Host, a netip.Addr, n *lab.Node) {
	t.Helper()
	out, err := at.Exec(ctx, "ip", "neigh", "show", a.String())
	if err != nil || !strings.Contains(string(out), hardwareOf(t, n).String()) {
		t.Errorf("%s is at %q, %v, want %s of %s", a, out, err, hardwareOf(t, n), n.Name)
	}
}

// hardwareOf returns the hardware address of a node's link.
func hardwareOf(t *testing.T, n *lab.Node) (mac net.HardwareAddr) {
	t.Helper()
	errtest.Must(t, n.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	}))
	return mac
}

// speaker answers for addresses on a node's link.
type speaker struct {
	link  *os.File // a packet socket
	mac   net.HardwareAddr
	addrs []netip.Addr
}

// announce makes a node answer for addresses on its link until stop. It first sends unsolicited
// advertisements, by which the hosts there replace the node that they know.
func announce(t *testing.T, n *lab.Node, addrs []netip.Addr) (stop func()) {
	t.Helper()
	s := &speaker{mac: hardwareOf(t, n), addrs: addrs}
	errtest.Must(t, n.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			int(all))
		if err != nil {
			return err
		}
		s.link = os.NewFile(uintptr(fd), "packets of "+n.Name)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: all})
	}))

	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for _, a := range addrs {
		if a.Is4() {
			s.send(t, s.arp(arpRequest, a, broadcast, a)) // a gratuitous one
		} else {
			s.send(t, s.advertisement(t, a, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1},
				netip.MustParseAddr("ff02::1")))
		}
	}

	done := make(chan error, 1)
	go func() { done <- s.answer(t) }()
	return func() {
		s.link.Close()
		errtest.Must(t, <-done)
	}
}

func (s *speaker) send(t *testing.T, frame []byte) {
	if _, err := s.link.Write(frame); err != nil && !errors.Is(err, fs.ErrClosed) {
		t.Errorf("send a frame: %v", err)
	}
}

// answer answers questions for the addresses until the socket is closed.
func (s *speaker) answer(t *testing.T) error {
	buf := make([]byte, 1<<16)
	for {
		n, err := s.link.Read(buf)
		if errors.Is(err, fs.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a frame: %w", err)
		}
		if reply := s.replyTo(t, buf[:n]); reply != nil {
			s.send(t, reply)
		}
	}
}

const (
	arpRequest, arpReply = 1, 2
	ethernetHeader       = 14
	ipv6Header           = 40
)

// replyTo returns the answer to a frame, or nil if it does not ask for an address.
func (s *speaker) replyTo(t *testing.T, f []byte) []byte {
	if len(f) < ethernetHeader+28 {
		return nil
	}
	from, p := net.HardwareAddr(f[6:12]), f[ethernetHeader:]

	switch binary.BigEndian.Uint16(f[12:]) {
	case unix.ETH_P_ARP:
		dst := netip.AddrFrom4([4]byte(p[24:28]))
		if p[7] == arpRequest && slices.Contains(s.addrs, dst) {
			return s.arp(arpReply, dst, from, netip.AddrFrom4([4]byte(p[14:18])))
		}
	case unix.ETH_P_IPV6:
		if len(p) < ipv6Header+24 || p[6] != unix.IPPROTO_ICMPV6 ||
			p[ipv6Header] != byte(ipv6.ICMPTypeNeighborSolicitation) {
			return nil
		}
		if dst := netip.AddrFrom16([16]byte(p[ipv6Header+8:])); slices.Contains(s.addrs,
			dst) {
			return s.advertisement(t, dst, from, netip.AddrFrom16([16]byte(p[8:24])))
		}
	}
	return nil
}

// arp returns a frame of ARP (RFC 826) that names a as the node's.
func (s *speaker) arp(op byte, a netip.Addr, to net.HardwareAddr, dst netip.Addr) []byte {
	return slices.Concat(to, s.mac, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, op},
		s.mac, a.AsSlice(), to, dst.AsSlice())
}

// advertisement returns a frame with a neighbour advertisement (RFC 4861, section 4.4) of a.
func (s *speaker) advertisement(t *testing.T, a netip.Addr, to net.HardwareAddr,
	dst netip.Addr) []byte {
	flags := byte(0x20) // override
	if !dst.IsMulticast() {
		flags |= 0x40 // solicited
	}
	body := slices.Concat([]byte{flags, 0, 0, 0}, a.AsSlice(), []byte{2, 1}, s.mac)
	m := icmp.Message{Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: body}}
	b, err := m.Marshal(icmp.IPv6PseudoHeader(a.AsSlice(), dst.AsSlice()))
	if err != nil {
		t.Error(err)
	}
	return slices.Concat(to, s.mac, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(b)),
		unix.IPPROTO_ICMPV6, 255}, a.AsSlice(), dst.AsSlice(), b)
}
