package hostnet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

const tunnelPort = 51820

// withVXLAN adds to the lab a VXLAN device. Its packets take the same path through the kernel as
// the packets of the kernel's WireGuard (udp_tunnel_xmit_skb), with the mark of their payload, from
// and to the port of tunnels:
//
//	vxlan0 198.18.7.1/24 ═ UDP, no DF ═ under0 ── router0 198.18.0.254
func (l *lab) withVXLAN() {
	l.t.Helper()
	nettest.NeedProgram(l.t, "ip")
	l.shell(fmt.Sprintf(`
		ip link add vxlan0 type vxlan id 7 remote 198.18.0.254 dstport %[1]d srcport %[1]d %[2]d
		echo 1 >/proc/sys/net/ipv6/conf/vxlan0/disable_ipv6 # or its neighbour discovery is sent through, when it likes
		ip link set vxlan0 mtu 1500 up
		ip addr add 198.18.7.1/24 dev vxlan0
		ip neigh add 198.18.7.2 lladdr 02:00:00:00:00:02 dev vxlan0`,
		tunnelPort, tunnelPort+1))
}

func (l *lab) shell(line string) {
	l.t.Helper()
	l.ns.Exec(l.t, "sh", "-ec", line)
}

// emit sends one datagram without DF, with a mark.
func (l *lab) emit(to string, mark uint32, size int) {
	l.t.Helper()
	l.ns.Run(l.t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
			unix.IP_PMTUDISC_DONT); err != nil {
			return err
		}
		return unix.Sendto(fd, make([]byte, size), 0,
			&unix.SockaddrInet4{Port: tunnelPort, Addr: netip.MustParseAddr(to).As4()})
	})
}

// outer returns the IPv4 packets with UDP that left by the underlay.
func outer(frames []nettest.Frame) (packets [][]byte) {
	for _, f := range frames {
		if f.Outgoing && len(f.Data) >= 34 && f.Data[12] == 8 && f.Data[13] == 0 &&
			f.Data[14+9] == unix.IPPROTO_UDP {
			packets = append(packets, f.Data[14:])
		}
	}
	return packets
}

func TestOuterPacketsStayWhole(t *testing.T) {
	nettest.NeedProgram(t, "nft")
	for _, tt := range []struct {
		name string
		// port is the port of the table; 0 means the control, which shows the kernel's own
		// behaviour.
		port int
		mark uint32
		size int // inside, of the datagram
		want []uint16
	}{
		{"small", tunnelPort, abi.TunnelMark, 100, []uint16{0x4000}},
		{"an odd length, which the checksum must not mind", tunnelPort, abi.TunnelMark, 101,
			[]uint16{0x4000}},
		{"with another mark beside", tunnelPort, abi.TunnelMark | 0x8000, 100, []uint16{0x4000}},
		{"not a tunnel's", tunnelPort, 0, 100, []uint16{0}},
		{"too long for the link", tunnelPort, abi.TunnelMark, 1472, nil},
		{"control: small", 0, abi.TunnelMark, 100, []uint16{0}},
		{"control: too long for the link is fragmented", 0, abi.TunnelMark, 1472,
			[]uint16{0x2000, 1480 / 8}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			want := dual()
			want.TunnelPort = tt.port
			l.apply(want)
			l.withVXLAN()
			capture := nettest.NewCapture(t, l.ns, nettest.SnifferOptions{Link: "under0"})
			l.emit("198.18.7.2", tt.mark, tt.size)

			// When this packet has arrived, the first has arrived too, or was dropped.
			l.emit("198.18.0.254", 0, 7)
			sentinel := func() bool {
				all := outer(capture.Frames())
				return len(all) > 0 && len(all[len(all)-1]) == 20+8+7
			}
			nettest.Until(t, 5*time.Second, "the packet that is sent last", sentinel)
			var flags []uint16

			packets := outer(capture.All(t))
			for _, p := range packets[:len(packets)-1] {
				flags = append(flags, binary.BigEndian.Uint16(p[6:]))
				if sum := checksum(p[:20]); sum != 0 {
					t.Errorf("the header's checksum is off by %#x: % x", sum, p[:20])
				}
			}

			if fmt.Sprint(flags) != fmt.Sprint(tt.want) {
				t.Errorf("flags and fragment offsets %#x, want %#x", flags, tt.want)
			}
		})
	}
}

// checksum returns the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// A forged ICMP error does not lower the path MTU for the tunnel's packets.
func TestForgedTooBigIsNotBelieved(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	for _, tt := range []struct {
		name, host, router string
		forge              func(l *lab, host, router netip.Addr, port, mtu uint16)
	}{
		{"ipv4", "198.18.0.1", "198.18.0.254", forge4},
		{"ipv6", "fd42:0:0:1::1", "fd42:0:0:1::fe", forge6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.apply(dual())
			host, router := netip.MustParseAddr(tt.host), netip.MustParseAddr(tt.router)

			const other = tunnelPort + 7
			for _, port := range []int{tunnelPort, other} {
				l.ns.Run(t, func() error {
					c, err := net.ListenUDP("udp", &net.UDPAddr{IP: host.AsSlice(), Port: port})
					if err == nil {
						t.Cleanup(func() { c.Close() })
					}
					return err
				})
			}

			believed := func() string {
				var out []byte
				l.ns.Run(t, func() (err error) {
					out, err = exec.Command("ip", "route", "get", tt.router).Output()
					return err
				})
				_, mtu, _ := strings.Cut(string(out), " mtu ")
				value, _, _ := strings.Cut(strings.TrimSpace(mtu), " ")
				return value
			}

			// The second is the control. It comes after the first, and does not raise the MTU that
			// the first lowered.
			tt.forge(l, host, router, tunnelPort, 1300)
			tt.forge(l, host, router, other, 1400)
			nettest.Until(t, 5*time.Second, "an error about another socket to be believed",
				func() bool { return believed() != "" })
			if mtu := believed(); mtu != "1400" {
				t.Errorf("mtu of the route is %q, want 1400: what was said of the tunnel's "+
					"packets was believed", mtu)
			}
		})
	}
}

// forge4 sends, from the router, the error that a datagram of the host from that port was too big
// (RFC 1191).
func forge4(l *lab, host, router netip.Addr, port, mtu uint16) {
	quoted := make([]byte, 28)
	quoted[0], quoted[8], quoted[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(quoted[2:], 1500)
	copy(quoted[12:], host.AsSlice())
	copy(quoted[16:], router.AsSlice())
	binary.BigEndian.PutUint16(quoted[20:], port)
	binary.BigEndian.PutUint16(quoted[22:], port)
	packet := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...)
	binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	l.fromRouter(unix.AF_INET, unix.IPPROTO_ICMP, packet, &unix.SockaddrInet4{Addr: host.As4()})
}

// forge6 is forge4 over IPv6 (RFC 4443 section 3.2); the kernel fills in the checksum.
func forge6(l *lab, host, router netip.Addr, port, mtu uint16) {
	quoted := make([]byte, 48)
	quoted[0], quoted[6], quoted[7] = 0x60, unix.IPPROTO_UDP, 64
	copy(quoted[8:], host.AsSlice())
	copy(quoted[24:], router.AsSlice())
	binary.BigEndian.PutUint16(quoted[40:], port)
	binary.BigEndian.PutUint16(quoted[42:], port)
	packet := append([]byte{2, 0, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...)
	l.fromRouter(unix.AF_INET6, unix.IPPROTO_ICMPV6, packet, &unix.SockaddrInet6{Addr: host.As16()})
}

func (l *lab) fromRouter(family, proto int, packet []byte, to unix.Sockaddr) {
	l.t.Helper()
	l.router.Run(l.t, func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, to)
	})
}
