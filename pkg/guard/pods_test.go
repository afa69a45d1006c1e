package guard

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// addPod adds to the node a pod behind p0, whose addresses are in the sets:
//
//	pod p0 198.18.5.5 fd42:1::5 ── p0 host
func (n *node) addPod(t *testing.T) *nettest.NS {
	t.Helper()
	pod := nettest.NewNS(t)
	withoutDAD(t, pod)
	nettest.Veth(t, nettest.End{NS: n.NS, Name: "p0",
		Addrs: prefixes("198.18.5.1/24", "fd42:1::1/64")},
		nettest.End{NS: pod, Name: "p0", Addrs: prefixes("198.18.5.5/24", "fd42:1::5/64")})
	for _, to := range prefixes("198.19.0.0/16", "198.18.9.0/24") {
		nettest.AddRoute(t, pod, to, addrs("198.18.5.1")[0], "p0")
	}
	for _, to := range prefixes("fd42:9::/64", "fd42:1:0:9::/64") {
		nettest.AddRoute(t, pod, to, addrs("fd42:1::1")[0], "p0")
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		nettest.Sysctl(t, n.NS, name, "1")
	}
	n.Run(t, func() error {
		if err := setGroup("p0", abi.PodGroup); err != nil {
			return err
		}
		return admit()
	})
	n.apply(t) // takes the programs off the link, which is a pod's now
	return pod
}

// admit puts the pod's addresses into the sets, as the plugin does.
func admit() error {
	return runNFT(
		`add element inet kubeveil_pods pods4 { "p0" . 198.18.5.5 }; add element inet kubeveil_pods pods6 { "p0" . fd42:1::5 }`)
}

// seen adds a table that comes after ours and counts packets of the pod to port 7777 with this
// mark. It returns a function that reads the count.
func (n *node) seen(t *testing.T, mark uint32) func() int {
	t.Helper()
	n.Run(t, func() error {
		return runNFT(fmt.Sprintf("table inet count { counter marked { }; chain c { type filter hook "+
			"prerouting priority -200; "+
			"iifname p0 meta mark %#x udp dport 7777 counter name marked; }; }", mark))
	})
	return func() int { return n.count(t, "count", "marked") }
}

// countOf returns the packets of a counter in another program's table.
func countOf(table, name string) (packets int, err error) {
	out, err := nettest.Output("nft", "list", "counter", "inet", table, name)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(out, "packets ")
	_, err = fmt.Sscan(rest, &packets)
	return packets, err
}

// forged are sources that do not belong to the pod, by destination. (IPv6 sources that claim to be
// IPv4 end before every hook, in ipv6_rcv.)
var forged = map[string][]string{
	"198.19.0.2": {"198.18.5.6", "198.19.0.1", "198.19.77.1", "169.254.1.9", "0.0.0.0"},
	"fd42:9::2":  {"fd42:1::6", "fd42:9::1", "fd42:77::1", "fe80::9", "::"},
}

// forge sends each forged packet by a packet socket of the pod, and checks that it is dropped for
// the reason.
func (n *node) forge(t *testing.T, pod *nettest.NS, reason string) {
	t.Helper()
	out := packetSocket(t, pod, "p0", unix.SOCK_RAW)
	var host *net.Interface
	n.Run(t, func() (err error) {
		host, err = net.InterfaceByName("p0")
		return err
	})
	for to, sources := range forged {
		for i, from := range sources {
			typ := uint16(unix.ETH_P_IP)
			if strings.Contains(to, ":") {
				typ = unix.ETH_P_IPV6
			}
			before := n.counters(t)[reason]
			frame := ether(summed(ipPacket(from, to, byte(i))), typ)
			copy(frame, host.HardwareAddr)
			errtest.Must(t, errtest.Of(unix.Write(out, frame)))
			nettest.Until(t, patience, from+" to "+to+" is counted as "+reason,
				func() bool { return n.counters(t)[reason] > before })
		}
	}
}

// summed returns an IPv4 packet with its header's checksum, without which it ends before every
// hook.
func summed(packet []byte) []byte {
	if packet[0]>>4 == 4 {
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(packet[i:]))
		}
		binary.BigEndian.PutUint16(packet[10:], ^uint16(sum>>16+sum&0xffff))
	}
	return packet
}

// Each packet of a pod gets its mark, also if it had another one, and has the pod's source address.
func TestPodIsMarkedAndSendsFromItsOwnAddresses(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare string
	}{
		{"from the veth", "true"},
		{"by an ifb, as the bandwidth plugin sends it",
			"ip link add b0 type ifb && ip link set b0 up && tc qdisc add dev p0 ingress && " +
				"tc filter add dev p0 parent ffff: protocol all u32 match u32 0 0 action mirred " +
				"egress redirect dev b0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bothHooks(t, func(t *testing.T, hk hooks) {
				n := newNode(t, hk)
				pod := n.addPod(t)
				n.Run(t, func() error {
					if err := nettest.Command("sh", "-c", tt.prepare); err != nil {
						return err
					}
					return runNFT(fmt.Sprintf("table inet before { chain c { type filter hook "+
						"prerouting priority -320; iifname p0 meta mark set %#x; }; }",
						abi.TunnelMark|1))
				})

				seen := n.seen(t, abi.PodMark|1)
				for i, to := range []string{"198.19.0.1", "fd42:9::1"} {
					errtest.Must(t, udp(pod, "", to, 0))
					nettest.Until(t, patience, "packet to "+to+" is marked",
						func() bool { return seen() == i+1 })
				}

				n.forge(t, pod, chains.Spoofed)
				if got := seen(); got != 2 {
					t.Errorf("%d packets passed, want 2", got)
				}
			})
		})
	}
}

// If a link is in the group of pods and a set has no address of it, its packets of that family are
// dropped.
func TestLinkWithoutAddressesIsMute(t *testing.T) {
	n := newNode(t, clsact)
	pod := n.addPod(t)
	v4, v6 := "198.19.0.1", "fd42:9::1"
	seen := n.seen(t, abi.PodMark)
	count := 0
	for _, step := range []struct {
		flush        string
		passes, mute []string
	}{
		{"pods6", []string{v4}, []string{v6}},
		{"pods4", nil, []string{v4, v6}},
	} {
		n.Run(t, func() error { return runNFT("flush set inet kubeveil_pods " + step.flush) })
		for _, to := range step.passes {
			errtest.Must(t, udp(pod, "", to, 0))
			count++
			nettest.Until(t, patience, to+" passes", func() bool { return seen() == count })
		}
		for _, to := range step.mute {
			n.loses(t, "a packet to "+to, chains.Spoofed, pod, to, 0)
		}
	}
}

// If another program changed the rules, they are restored. The pods' addresses and the counters
// stay.
func TestRulesOfPodsAreReplacedAroundTheirAddresses(t *testing.T) {
	n := newNode(t, clsact)
	pod := n.addPod(t)
	n.forge(t, pod, chains.Spoofed)
	before := n.counters(t)[chains.Spoofed]

	seen := n.seen(t, abi.PodMark)
	for i, damage := range []string{
		"flush chain inet kubeveil_pods prerouting",
		"delete chain inet kubeveil_pods prerouting",
		"delete chain inet kubeveil_pods prerouting; add chain inet kubeveil_pods prerouting { " +
			"type filter hook input priority 7; }",
	} {
		n.Run(t, func() error { return runNFT(damage) })
		if got, want := fmt.Sprint(texts(n.apply(t))),
			"[write nftables table kubeveil_pods: chain prerouting]"; got != want {
			t.Errorf("%s: Apply did %s, want %s", damage, got, want)
		}
		if ops := n.apply(t); len(ops) != 0 {
			t.Errorf("second Apply did %v", ops)
		}
		errtest.Must(t, udp(pod, "", "198.19.0.1", 0))
		nettest.Until(t, patience, "a packet after "+damage, func() bool { return seen() == i+1 })
	}

	if got := n.counters(t)[chains.Spoofed]; got < before {
		t.Errorf("counted %d, before %d", got, before)
	}
}

// If only the table of pods is missing, all packets of pods are dropped.
func TestWithoutTheirTablePodsAreMute(t *testing.T) {
	n := newNode(t, clsact)
	pod := n.addPod(t)
	n.Run(t, func() error { return runNFT("delete table inet kubeveil_pods") })
	for _, to := range []string{"198.19.0.1", "198.19.0.2", "198.19.77.1", "fd42:9::1",
		"fd42:9::2"} {
		n.loses(t, "a packet to "+to, chains.Unmarked, pod, to, 0)
	}
	n.forge(t, pod, chains.Unmarked)
	n.apply(t)
	n.loses(t, "a packet before the addresses are back", chains.Spoofed, pod, "198.19.0.1", 0)
}

// While all of nftables is flushed, pods' packets to nodes are dropped by their input link, and
// their packets out of the cluster by their source. Packets for another node's pods enter the
// tunnel.
//
//	pod ── p0 host u0 ── peer (another node, and the way out)
//	            host v0 (tunnel) ── peer 198.18.9.9 fd42:1:0:9::9
func TestWithoutAnyTableNothingOfPodsIsInClear(t *testing.T) {
	bothHooks(t, func(t *testing.T, hk hooks) {
		n := newNode(t, hk)
		pod := n.addPod(t)
		n.cable(t, "v0", "198.18.9.1/24", "198.18.9.9/24", "fd42:1:0:9::1/64", "fd42:1:0:9::9/64")
		n.Run(t, func() error { return setGroup("v0", abi.TunnelGroup) })

		for _, to := range prefixes("198.19.77.0/24", "fd42:77::/64") {
			gw := addrs("198.19.0.2")[0]
			if to.Addr().Is6() {
				gw = addrs("fd42:9::2")[0]
			}
			nettest.AddRoute(t, n.NS, to, gw, "u0")
		}

		nettest.AddRoute(t, pod, prefixes("fd42:77::/64")[0], addrs("fd42:1::1")[0], "p0")
		n.apply(t)
		n.Run(t, func() error { return runNFT("flush ruleset") })
		sniffer := packetSocket(t, n.peer, "u0", unix.SOCK_RAW)

		for to, reason := range map[string]string{
			"198.19.0.2": "pod_mark_lost", "fd42:9::2": "pod_mark_lost",
			"198.19.77.1": "src_in_range", "fd42:77::1": "src_in_range",
		} {
			n.loses(t, "a packet to "+to, reason, pod, to, 0)
		}

		if received(sniffer, []byte("kubeveil")) {
			t.Error("a packet of the pod left in clear")
		}

		for _, to := range []string{"198.18.9.9", "fd42:1:0:9::9"} {
			wantReceived(t, n, pod, to)
		}

		if received(sniffer, []byte("kubeveil")) {
			t.Error("a packet for another node's pod left in clear")
		}
	})
}

// wantReceived sends from the pod and waits until a socket of the peer has it.
func wantReceived(t *testing.T, n *node, pod *nettest.NS, to string) {
	t.Helper()
	var c *net.UDPConn
	n.peer.Run(t, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(to), Port: 7777})
		return err
	})
	defer c.Close()
	errtest.Must(t, udp(pod, "", to, 0))
	errtest.Must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, _, err := c.ReadFromUDP(make([]byte, 64)); err != nil {
		t.Errorf("packet to %s: %v", to, err)
	}
}

// Packets that the kernel of each network namespace with IPv6 sends by itself are dropped, with a
// counter apart from forged sources.
func TestLinkLocalPacketsOfPodsAreCountedApart(t *testing.T) {
	n := newNode(t, clsact)
	pod := n.addPod(t)
	out := packetSocket(t, pod, "p0", unix.SOCK_RAW)
	for _, tt := range []struct {
		name, from string
		typ        byte // of ICMPv6
		routerHop  bool // a hop-by-hop header with a router alert comes first, RFC 2711
		reason     string
	}{
		{"router solicitation", "fe80::9", 133, false, chains.PodLinkLocal},
		{"router solicitation without an address", "::", 133, false, chains.PodLinkLocal},
		{"multicast listener report", "fe80::9", 143, true, chains.PodLinkLocal},
		{"multicast listener report without an address", "::", 143, true, chains.PodLinkLocal},
		{"multicast listener report, version 1", "fe80::9", 131, true, chains.PodLinkLocal},
		{"duplicate address detection", "::", 135, false, chains.PodLinkLocal},
		{"neighbour advertisement", "fe80::9", 136, false, chains.PodLinkLocal},
		{"router advertisement", "fe80::9", 134, false, chains.Spoofed},
		{"redirect", "fe80::9", 137, false, chains.Spoofed},
		{"echo request", "fe80::9", 128, false, chains.Spoofed},
		{"neighbour solicitation from another pod's address", "fd42:1::6", 135, false, chains.Spoofed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := n.counters(t)

			frame := ether(icmp6(tt.from, tt.typ, tt.routerHop), unix.ETH_P_IPV6)
			copy(frame, []byte{0x33, 0x33, 0, 0, 0, 1})
			errtest.Must(t, errtest.Of(unix.Write(out, frame)))
			var after map[string]uint64
			nettest.Until(t, patience, "it is counted as "+tt.reason, func() bool {
				after = n.counters(t)
				return after[tt.reason] > before[tt.reason]
			})
			// The pod's kernel may send such packets of its own meanwhile.
			if tt.reason == chains.PodLinkLocal && after[chains.Spoofed] != before[chains.Spoofed] {
				t.Errorf("%s rose from %d to %d", chains.Spoofed, before[chains.Spoofed], after[chains.Spoofed])
			}
		})
	}
}

// icmp6 returns an IPv6 packet to all nodes of the link with an ICMPv6 message of 24 bytes.
func icmp6(from string, typ byte, routerAlert bool) []byte {
	var before []byte
	next := byte(unix.IPPROTO_ICMPV6)
	if routerAlert {
		before, next = []byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0}, unix.IPPROTO_HOPOPTS
	}
	packet := append(make([]byte, 40), before...)
	packet = append(packet, append([]byte{typ}, make([]byte, 23)...)...)
	packet[0], packet[6], packet[7] = 6<<4, next, 255
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
	src, dst := netip.MustParseAddr(from).As16(), netip.MustParseAddr("ff02::1").As16()
	copy(packet[8:], src[:])
	copy(packet[24:], dst[:])
	return packet
}
