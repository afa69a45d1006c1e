package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
)

const patience = 5 * time.Second

// node is a guarded host with a cable to another namespace:
//
//	host u0 198.19.0.1/24 fd42:9::1/64 ── u0 198.19.0.2/24 fd42:9::2/64 peer
type node struct {
	*nettest.Host
	peer *nettest.NS
	g    *Guard
}

func newNode(t *testing.T, hk hooks) *node {
	t.Helper()
	n := &node{Host: nettest.NewHost(t), peer: nettest.NewNS(t)}
	for _, ns := range []*nettest.NS{n.NS, n.peer} {
		withoutDAD(t, ns)
	}
	n.cable(t, "u0", "198.19.0.1/24", "198.19.0.2/24", "fd42:9::1/64", "fd42:9::2/64")
	n.Run(t, func() (err error) {
		n.g, err = open(hk)
		return err
	})
	t.Cleanup(func() { n.g.Close() })
	n.apply(t)
	return n
}

// withoutDAD makes link-local addresses of later links usable at once. While they are tentative, no
// neighbour is found for a packet that is forwarded.
func withoutDAD(t *testing.T, ns *nettest.NS) {
	t.Helper()
	nettest.Sysctl(t, ns, "ipv6/conf/default/accept_dad", "0")
}

func (n *node) cable(t *testing.T, name, host4, peer4, host6, peer6 string) {
	t.Helper()
	nettest.Veth(t, nettest.End{NS: n.NS, Name: name, Addrs: prefixes(host4, host6)},
		nettest.End{NS: n.peer, Name: name, Addrs: prefixes(peer4, peer6)})
}

func (n *node) apply(t *testing.T) []Op {
	t.Helper()
	var ops []Op
	n.Run(t, func() (err error) {
		ops, err = n.g.Apply(lab())
		return err
	})
	if odd := n.g.Unguarded(); len(odd) > 0 {
		t.Fatalf("unguarded: %q", odd)
	}
	return ops
}

func (n *node) counters(t *testing.T) map[string]uint64 {
	t.Helper()
	var c map[string]uint64
	n.Run(t, func() (err error) {
		c, err = n.g.Counters()
		return err
	})
	return c
}

// packetSocket opens an AF_PACKET socket on a link of ns.
func packetSocket(t *testing.T, ns interface{ Do(func() error) error }, link string, typ int) int {
	t.Helper()
	fd := -1
	err := ns.Do(func() error {
		s, err := unix.Socket(unix.AF_PACKET, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
			int(htons(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		fd = s
		ifi, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		return unix.Bind(s, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL),
			Ifindex: ifi.Index})
	})
	if err != nil {
		t.Fatalf("packet socket on %s: %v", link, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func htons(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// fate sends a packet and waits until it arrives or is counted. It returns the reason, or "" for a
// packet that arrived whole on the descriptor in.
func (n *node) fate(t *testing.T, send func() error, in int, body []byte) string {
	t.Helper()
	before := n.counters(t)
	if err := n.Do(send); err != nil && !errors.Is(err, unix.EPERM) &&
		!errors.Is(err, unix.ENOBUFS) {
		t.Fatalf("send: %v", err)
	}
	reason := "nothing happened to the packet"
	nettest.Until(t, patience, fmt.Sprintf("packet %x arrives or is counted", body), func() bool {
		for name, count := range n.counters(t) {
			if count > before[name] {
				reason = name
				return true
			}
		}
		if in >= 0 && received(in, body) {
			reason = ""
			return true
		}
		return false
	})
	return reason
}

// received reads the waiting packets and reports whether one of them ends with body.
func received(fd int, body []byte) bool {
	buf := make([]byte, 1<<14)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return false
		}
		if n >= len(body) && string(buf[n-len(body):n]) == string(body) {
			return true
		}
	}
}

// ipPacket returns a UDP packet without a checksum, with a mark of its own at its end.
func ipPacket(src, dst string, marker byte) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	var b []byte
	if s.Is4() {
		b = make([]byte, 12)
		b[0], b[3], b[8], b[9] = 0x45, 29, 64, 17
	} else {
		b = make([]byte, 8)
		b[0], b[5], b[6], b[7] = 0x60, 9, 17, 64
	}
	b = append(append(b, s.AsSlice()...), d.AsSlice()...)
	return append(b, 0x30, 0x39, 0x30, 0x39, 0, 9, 0, 0, marker)
}

// ether puts an Ethernet header with these types before a packet; all types but
// the last are tags.
func ether(packet []byte, types ...uint16) []byte {
	b := make([]byte, 12)
	b[0], b[6] = 2, 2
	for i, typ := range types {
		b = binary.BigEndian.AppendUint16(b, typ)
		if i < len(types)-1 {
			b = append(b, 0, 7)
		}
	}
	return append(b, packet...)
}

// cases of both families: an address outside, one of the ranges and how long a header is.
var wireFamilies = []struct {
	name         string
	typ          uint16
	out, inRange string
	header       int
	truncated    string
}{
	{"IPv4", unix.ETH_P_IP, "198.19.128.1", "198.18.5.5", 20, "ipv4_truncated"},
	{"IPv6", unix.ETH_P_IPV6, "fd42:ff::1", "fd42:1::5", 40, "ipv6_truncated"},
}

func TestWireFramesThatLeaveByEthernet(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		out, in := packetSocket(t, n, "u0", unix.SOCK_RAW),
			packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
		check := func(situation string, frame []byte, want string) {
			t.Helper()
			if got := n.fate(t, func() error {
				_, err := unix.Write(out, frame)
				return err
			}, in, frame); got != want {
				t.Errorf("%s: %x: got %q, want %q", situation, frame, got, want)
			}
		}
		for _, f := range wireFamilies {
			check(f.name+" from a range", ether(ipPacket(f.inRange, f.out, 1), f.typ),
				"src_in_range")
			check(f.name+" to a range", ether(ipPacket(f.out, f.inRange, 2), f.typ), "dst_in_range")
			check(f.name+" outside", ether(ipPacket(f.out, f.out, 3), f.typ), "")
			whole := ether(ipPacket(f.out, f.out, 4), f.typ)
			for l := 15; l < 14+f.header; l++ {
				check(f.name+" cut", whole[:l], f.truncated)
			}
		}
		check("ARP", ether(ipPacket("198.18.1.1", "198.18.1.1", 5), unix.ETH_P_ARP), "")
	})
}

// TestWireTagBesideThePacket forwards a frame that arrived with a VLAN tag. The kernel stores the
// tag outside the frame, and the guard must still take it into account.
//
//	peer u1 ── u1 host: redirected to u0 ── u0 peer
func TestWireTagBesideThePacket(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		n.cable(t, "u1", "198.19.1.1/24", "198.19.1.2/24", "fd42:a::1/64", "fd42:a::2/64")
		n.Run(t, func() error { return redirect(hk, "u1", "u0") })

		out, in := packetSocket(t, n.peer, "u1", unix.SOCK_RAW),
			packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
		for _, f := range wireFamilies {
			for _, c := range []struct {
				situation string
				src       string
				types     []uint16
				want      string
			}{
				{"one tag, outside", f.out, []uint16{unix.ETH_P_8021Q, f.typ}, ""},
				{"one tag, of a range", f.inRange, []uint16{unix.ETH_P_8021Q, f.typ},
					"src_in_range"},
				{"two tags, outside", f.out, []uint16{unix.ETH_P_8021AD, unix.ETH_P_8021Q, f.typ},
					""},
				{"two tags, of a range", f.inRange,
					[]uint16{unix.ETH_P_8021Q, unix.ETH_P_8021Q, f.typ}, "src_in_range"},
				{"three tags", f.out, []uint16{unix.ETH_P_8021AD, unix.ETH_P_8021Q,
					unix.ETH_P_8021Q, f.typ}, "vlan_depth"},
			} {
				packet := ipPacket(c.src, f.out, 1)
				frame := ether(packet, c.types...)
				if got := n.fate(t, func() error {
					_, err := unix.Write(out, frame)
					return err
				}, in, packet); got != c.want {
					t.Errorf("%s, %s: got %q, want %q", f.name, c.situation, got, c.want)
				}
			}
		}
	})
}

func TestWireFramesThatArriveByEthernet(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		out := packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
		for _, f := range wireFamilies {
			for _, c := range []struct {
				situation string
				frame     []byte
				want      string
			}{
				{"from a range", ether(ipPacket(f.inRange, f.out, 1), f.typ), "src_in_range"},
				{"to a range", ether(ipPacket(f.out, f.inRange, 1), f.typ), "dst_in_range"},
				{"from a range, tagged", ether(ipPacket(f.inRange, f.out, 1), unix.ETH_P_8021Q,
					f.typ), "src_in_range"},
				{"from a range, two tags", ether(ipPacket(f.inRange, f.out, 1), unix.ETH_P_8021AD,
					unix.ETH_P_8021Q, f.typ), "src_in_range"},
				{"three tags", ether(ipPacket(f.out, f.out, 1), unix.ETH_P_8021AD, unix.ETH_P_8021Q,
					unix.ETH_P_8021Q, f.typ), "vlan_depth"},
				{"cut", ether(ipPacket(f.out, f.out, 1), f.typ)[:14+f.header-1], f.truncated},
				{"cut after a byte", ether(ipPacket(f.out, f.out, 1), f.typ)[:15], f.truncated},
			} {
				if got := n.fate(t, func() error {
					_, err := unix.Write(out, c.frame)
					return err
				}, -1, c.frame); got != c.want {
					t.Errorf("%s %s: got %q, want %q", f.name, c.situation, got, c.want)
				}
			}
		}
	})
}

// TestWireLinkWithoutEthernet uses a TUN that does not belong to a tunnel.
func TestWireLinkWithoutEthernet(t *testing.T) {
	nettest.NeedTUN(t)
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		var tun int
		n.Run(t, func() (err error) {
			tun, err = openTUN("tt0")
			return err
		})
		t.Cleanup(func() { unix.Close(tun) })
		if ops := n.apply(t); len(ops) != 3 {
			t.Fatalf("Apply did %v, want both programs attached to the new link, and its mark", ops)
		}

		raw := packetSocket(t, n, "tt0", unix.SOCK_RAW)
		for _, f := range wireFamilies {
			both := func(situation string, packet []byte, want string) {
				t.Helper()
				if got := n.fate(t, func() error {
					_, err := unix.Write(raw, packet)
					return err
				}, tun, packet); got != want {
					t.Errorf("%s, leaving, %s: %x: got %q, want %q", f.name, situation, packet, got,
						want)
				}
				if want == "" {
					return // what the node does with what arrives is not seen here
				}
				if got := n.fate(t, func() error {
					_, err := unix.Write(tun, packet)
					return err
				}, -1, packet); got != want {
					t.Errorf("%s, arriving, %s: %x: got %q, want %q", f.name, situation, packet,
						got, want)
				}
			}
			both("outside", ipPacket(f.out, f.out, 1), "")
			both("from a range", ipPacket(f.inRange, f.out, 2), "src_in_range")
			both("to a range", ipPacket(f.out, f.inRange, 3), "dst_in_range")
			for l := 1; l < f.header; l++ {
				both("cut", ipPacket(f.out, f.out, 4)[:l], f.truncated)
			}
		}
	})
}

// openTUN makes a TUN, up, and returns its descriptor.
func openTUN(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return fd, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fd, fmt.Errorf("make %s: %w", name, err)
	}
	return fd, nl.OnLink(name, func(h *nl.Handle, l nl.Link) error { return h.LinkSetUp(l) })
}

// TestWireHeaderInAFragment sends frames of which the kernel has only the Ethernet header in one
// piece. The guard must read on.
func TestWireHeaderInAFragment(t *testing.T) {
	n := newNode(t, clsact) // behind refuseOnePiece
	needTCX(t)
	for _, ns := range []*nettest.NS{n.NS, n.peer} {
		ns.Run(t, func() error { return setMTU("u0", 9000) })
	}

	n.Run(t, func() error { return refuseOnePiece("u0") })
	out, in := packetSocket(t, n, "u0", unix.SOCK_RAW), packetSocket(t, n.peer, "u0", unix.SOCK_RAW)
	errtest.Must(t, unix.SetsockoptInt(out, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))

	for _, f := range wireFamilies {
		for _, c := range []struct{ situation, src, dst, want string }{
			{"outside", f.out, f.out, ""},
			{"from a range", f.inRange, f.out, "src_in_range"},
			{"to a range", f.out, f.inRange, "dst_in_range"},
		} {
			// Longer than a page, or it is copied into one piece.
			frame := append(ether(ipPacket(c.src, c.dst, 1), f.typ), make([]byte, 5000)...)
			// struct virtio_net_hdr: hdr_len is 14, the length of the first contiguous part.
			hdr := binary.NativeEndian.AppendUint16([]byte{0, 0}, 14)
			msg := append(append(hdr, make([]byte, 6)...), frame...)
			if got := n.fate(t, func() error { _, err := unix.Write(out, msg); return err }, in,
				frame); got != c.want {
				t.Errorf("%s %s: got %q, want %q", f.name, c.situation, got, c.want)
			}
		}
	}
}
