package hostnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/hostnet/flowtable"
)

func TestDiffReplacesFlowTablesOnlyWhenItMust(t *testing.T) {
	flows := flowtable.Text()
	want := State{Flows: flows}
	wider := deviceOp{Device{Name: "veil0", MTU: 1420}, Device{Name: "veil0", MTU: 1300}}
	tunnel := []flowtable.Join{{Table: abi.NFTFlowTableTCP, Link: "veil0", MTU: 1420},
		{Table: abi.NFTFlowTableUDP, Link: "veil0", MTU: 1420}}
	pod := flowtable.Join{Table: abi.NFTFlowTableUDP, Link: "vpod1", MTU: 1420}

	narrow := flowtable.Join{Table: abi.NFTFlowTableUDP, Link: "vpod1", MTU: 1300}
	for _, tc := range []struct {
		name    string
		have    State
		want    State
		devices []deviceOp
		ops     []string
	}{
		{name: "nothing wanted, nothing there"},
		{"not there", State{Joins: append(tunnel, pod)}, want, nil,
			[]string{"replace nft tables [kubeveil_flows_tcp kubeveil_flows_udp]"}},
		{"another", State{Flows: flows[1:]}, want, nil,
			[]string{"replace nft tables [kubeveil_flows_tcp kubeveil_flows_udp]"}},
		{"there", State{Flows: flows, Joins: tunnel, Joined: tunnel}, want, nil, nil},
		{"a new link", State{Flows: flows, Joins: append(tunnel, pod), Joined: tunnel}, want, nil,
			[]string{"add links [vpod1] to the flow tables"}},
		{"a link in it that has left its pod",
			State{Flows: flows, Joins: tunnel, Joined: append(tunnel, pod)}, want, nil,
			[]string{"replace nft tables [kubeveil_flows_tcp kubeveil_flows_udp]"}},
		{"a pod's MTU", State{Flows: flows, Joins: append(tunnel, narrow),
			Joined: append(tunnel, pod)}, want, nil,
			[]string{"replace nft tables [kubeveil_flows_tcp kubeveil_flows_udp]"}},
		{"a tunnel's MTU", State{Flows: flows, Joins: tunnel, Joined: tunnel}, want,
			[]deviceOp{wider},
			[]string{"replace nft tables [kubeveil_flows_tcp kubeveil_flows_udp]"}},
		{"no longer wanted", State{Flows: flows}, State{}, nil,
			[]string{"delete nft table kubeveil_flows_tcp", "delete nft table kubeveil_flows_udp"}},
	} {
		var got []string
		for _, op := range diffFlows(tc.have, tc.want, tc.devices) {
			got = append(got, op.String())
		}
		if !slices.Equal(got, tc.ops) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.ops)
		}
	}
}

// TestJoinsAreBounded has more pods than a flow table can have links. The links that are in the
// flow table stay.
func TestJoinsAreBounded(t *testing.T) {
	var links []nl.Link
	add := func(name string, group uint32) {
		attrs := nl.NewLinkAttrs()
		attrs.Name, attrs.Group, attrs.MTU = name, group, 1420
		links = append(links, &nl.Tuntap{LinkAttrs: attrs})
	}
	for i := range flowtable.MaxPods + 20 {
		add(fmt.Sprintf("vpod%03d", i), abi.PodGroup)
	}
	add("veil0", abi.TunnelGroup)
	last := flowtable.Join{Table: abi.NFTFlowTableUDP,
		Link: fmt.Sprintf("vpod%03d", flowtable.MaxPods+19), MTU: 1420}
	_, joins, joined := flowtable.New(nil).Read(links, []*nft.Table{{Name: abi.NFTFlowTableUDP,
		Devices: []string{last.Link}}})
	if !slices.Contains(joins, last) || joined[0] != last {
		t.Errorf("%v, which had joined, is to leave for another; joined are %v", last, joined)
	}
	if n := len(joins); n != flowtable.MaxPods+2 {
		t.Errorf("%d are to join, want %d pods and the tunnel twice", n, flowtable.MaxPods)
	}
}

// flowLab is a node with two pods and a tunnel, which is a veth here, and does not encrypt:
//
//	pod   198.18.129.5 ── vpod0 ┐                    ┌ under0 ── router0 (captured)
//	                            ├ node ── veil0 ── far: 198.18.130.5, answers what it gets
//	other 198.18.129.6 ── vpod1 ┘
type flowLab struct {
	*lab
	pod, other, far *nettest.NS
	want            Want
}

var farAddrs = addrs("198.18.130.5", "fd42:aaaa:0:2::5")

func newFlowLab(t *testing.T) *flowLab {
	t.Helper()
	nettest.NeedProgram(t, "nft")
	l := &flowLab{lab: newLab(t), pod: nettest.NewNS(t), other: nettest.NewNS(t),
		far: nettest.NewNS(t), want: dual()}
	l.want.Flowtable = true
	l.run("ip link del veil0")
	nettest.Veth(t,
		nettest.End{NS: l.ns, Name: "veil0",
			Addrs: prefixes("198.18.131.1/30", "fd42:aaaa:0:3::1/64")},
		nettest.End{NS: l.far, Name: "eth0", Addrs: prefixes("198.18.131.2/30",
			"fd42:aaaa:0:3::2/64", "198.18.130.5/32", "fd42:aaaa:0:2::5/128")})
	nettest.AddRoute(t, l.far, netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParseAddr("198.18.131.1"), "eth0")
	nettest.AddRoute(t, l.far, netip.MustParsePrefix("::/0"),
		netip.MustParseAddr("fd42:aaaa:0:3::1"), "eth0")

	for i, ns := range []*nettest.NS{l.pod, l.other} {
		link := fmt.Sprintf("vpod%d", i)
		gw4, gw6 := fmt.Sprintf("198.18.129.%d", 17+4*i), fmt.Sprintf("fd42:aaaa:0:1:%d::1", i+1)
		own4, own6 := fmt.Sprintf("198.18.129.%d", 5+i), fmt.Sprintf("fd42:aaaa:0:1::%d", 5+i)
		nettest.Veth(t,
			nettest.End{NS: l.ns, Name: link, Addrs: prefixes(gw4+"/32", gw6+"/80")},
			nettest.End{NS: ns, Name: "eth0", Addrs: prefixes(own4+"/24", own6+"/64")})
		nettest.AddRoute(t, ns, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(gw4),
			"eth0")
		nettest.AddRoute(t, ns, netip.MustParsePrefix("::/0"), netip.MustParseAddr(gw6), "eth0")
		l.run(fmt.Sprintf(`ip link set %[1]s group %[2]d
			for t in main %[3]d; do ip route add %[4]s/32 dev %[1]s table $t; ip -6 route add %[5]s/128 dev %[1]s table $t; done`,
			link, abi.PodGroup, abi.TablePod, own4, own6))
	}

	// These rules stand in for pkg/guard.
	l.run(fmt.Sprintf(`nft -f - <<EOF
		table inet marker {
			counter forged { }
			counter inward { }
			counter outward { }
			chain pre {
				type filter hook prerouting priority -300;
				iifname "vpod0" ip saddr != 198.18.129.5 counter name forged drop
				iifname "vpod1" ip saddr != 198.18.129.6 counter name forged drop
				iifname { "vpod0", "vpod1", "veil0" } meta mark set %#x
			}
			chain forward {
				type filter hook forward priority -300;
				iifname "veil0" meta l4proto { tcp, udp } counter name inward
				oifname "veil0" meta l4proto { tcp, udp } counter name outward
			}
		}
EOF`, abi.PodMark))

	for _, far := range farAddrs {
		answer(t, l.far, far)
	}

	l.sync(l.want)
	if l.host.flows.None() != nil {
		nettest.Skip(t, nettest.NoFlowtable, l.host.flows.None().Error())
	}

	l.settle()
	return l
}

// run runs a script on the node.
func (l *flowLab) run(script string) string {
	l.t.Helper()
	return l.ns.Exec(l.t, "sh", "-ec", script)
}

// settle calls Sync until there are no more changes, like the agent does because of Watch.
func (l *flowLab) settle() {
	l.t.Helper()
	nettest.Until(l.t, 5*time.Second, "all is as wanted", func() bool {
		l.host.Forget()
		return len(l.sync(l.want)) == 0
	})
}

// counter returns the packets of a counter of the table marker.
func (l *flowLab) counter(name string) int {
	l.t.Helper()
	var list struct {
		Nftables []struct{ Counter *struct{ Packets int } }
	}
	errtest.Must(l.t, json.Unmarshal([]byte(l.run("nft -j list counter inet marker "+name)),
		&list))
	for _, o := range list.Nftables {
		if o.Counter != nil {
			return o.Counter.Packets
		}
	}
	l.t.Fatalf("no counter %s", name)
	return 0
}

// answer runs an echo server for UDP and TCP on port 9 of far until the test ends.
func answer(t *testing.T, ns *nettest.NS, far netip.Addr) {
	t.Helper()
	ctx := t.Context()
	var lc net.ListenConfig
	at := netip.AddrPortFrom(far, 9).String()
	ns.Run(t, func() error {
		p, err := lc.ListenPacket(ctx, "udp", at)
		if err != nil {
			return err
		}

		t.Cleanup(func() { p.Close() })
		s, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			return err
		}

		t.Cleanup(func() { s.Close() })
		go echoPackets(p)
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				context.AfterFunc(ctx, func() { c.Close() })
				go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
			}
		}()

		return nil
	})
}

func echoPackets(p net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = p.WriteTo(buf[:n], from)
	}
}

func (l *flowLab) dial(network string, far netip.Addr) net.Conn {
	l.t.Helper()
	var c net.Conn
	l.pod.Run(l.t, func() (err error) {
		ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
		defer cancel()
		c, err = (&net.Dialer{Control: neverFragment}).DialContext(ctx, network,
			netip.AddrPortFrom(far, 9).String())
		return err
	})
	l.t.Cleanup(func() { c.Close() })
	return c
}

// neverFragment makes a write that is larger than the path fail with EMSGSIZE.
func neverFragment(_, _ string, c syscall.RawConn) (err error) {
	_ = c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
			unix.IP_PMTUDISC_DO)
		if family, e := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); e == nil &&
			family == unix.AF_INET6 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
				unix.IPV6_PMTUDISC_DO)
		}
	})
	return err
}

// exchange sends a message and waits for the answer, n times. It returns the number of answers.
func exchange(c net.Conn, n int, text string, patience time.Duration) (answered int) {
	buf := make([]byte, len(text))
	for range n {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte(text)); err != nil {
			continue
		}
		if _, err := io.ReadFull(c, buf); err == nil && string(buf) == text {
			answered++
		}
	}
	return answered
}

// TestFlowsTakeTheShortWay sends through the flow table, and reads which packets pass the rules and
// the wire.
func TestFlowsTakeTheShortWay(t *testing.T) {
	l := newFlowLab(t)
	capture := nettest.NewCapture(t, l.ns, nettest.SnifferOptions{Link: "under0"})
	const n = 500
	short := func(t *testing.T, c net.Conn) {
		t.Helper()
		if got := exchange(c, 100, "warming up", time.Second); got != 100 {
			t.Fatalf("%d of 100 answered", got)
		}
		inward, outward := l.counter("inward"), l.counter("outward")
		if got := exchange(c, n, "canary inside", time.Second); got != n {
			t.Errorf("%d of %d answered", got, n)
		}
		if inward = l.counter("inward") - inward; inward > n/10 {
			t.Errorf("%d of %d packets from the tunnel passed the rules one by one", inward, n)
		}
		outward = l.counter("outward") - outward
		if _, tcp := c.(*net.TCPConn); !tcp && outward > n/10 || tcp && outward < n {
			t.Errorf("%d of %d packets from the pod passed the rules one by one", outward, n)
		}
	}
	for _, network := range []string{"udp", "tcp"} {
		for _, far := range farAddrs {
			t.Run(network+" to "+far.String(), func(t *testing.T) {
				c := l.dial(network, far)
				short(t, c)

				without := l.want
				without.Peers = nil
				l.sync(without)
				if got := exchange(c, 3, "canary without a route", 100*time.Millisecond); got != 0 {
					t.Errorf("%d answered without a route", got)
				}
				l.sync(l.want)
				// A TCP connection retransmits unanswered data, so the answers would have to be
				// read first.
				if network == "udp" {
					nettest.Until(t, 10*time.Second, "the flow goes on", func() bool {
						return exchange(c, 1, "canary again", time.Second) == 1
					})
					short(t, c)
				}
			})
		}
	}

	t.Run("forged by another pod", func(t *testing.T) {
		c := l.dial("udp", farAddrs[0])
		short(t, c)
		port := c.LocalAddr().(*net.UDPAddr).Port
		heard := nettest.NewCapture(t, l.far, nettest.SnifferOptions{Link: "eth0"})
		before := l.counter("forged")
		l.other.Run(t, func() error {
			return sendForged(netip.MustParseAddr("198.18.129.5"), farAddrs[0], port,
				"canary forged")
		})
		nettest.Until(t, 5*time.Second, "the forged packet is counted",
			func() bool { return l.counter("forged") > before })
		if exchange(c, 1, "canary after", time.Second) != 1 {
			t.Error("the pod's own flow ended")
		}
		for _, f := range heard.All(t) {
			if strings.Contains(string(f.Data), "canary forged") {
				t.Errorf("another pod's packet took the way of the flow: % x", f.Data)
			}
		}
	})

	t.Run("its connection is deleted", func(t *testing.T) {
		c := l.dial("udp", farAddrs[0])
		short(t, c)
		before := l.counter("outward")
		l.ns.Run(t, nettest.ForgetConnections)
		if exchange(c, 1, "canary of a new connection", time.Second) != 1 ||
			l.counter("outward") == before {
			t.Error("what follows is still of the connection that was deleted")
		}
	})

	for _, far := range farAddrs {
		t.Run("a lower MTU, "+far.String(), func(t *testing.T) {
			c := l.dial("udp", far)
			short(t, c)
			narrow := l.want
			narrow.Devices = []TunnelDevice{{Name: "veil0", MTU: 1300}}
			l.sync(narrow)
			defer func() { l.sync(l.want); l.settle() }()
			large := strings.Repeat("x", 1320)
			nettest.Until(t, 5*time.Second, "the sender is told", func() bool {
				_ = exchange(c, 1, "small", 100*time.Millisecond)
				_, err := c.Write([]byte(large))
				return errors.Is(err, unix.EMSGSIZE)
			})
		})
	}

	t.Run("the tunnel goes", func(t *testing.T) {
		var conns []net.Conn
		for _, far := range farAddrs {
			c := l.dial("udp", far)
			short(t, c)
			conns = append(conns, c)
		}
		l.run("ip link del veil0")
		for _, c := range conns {
			if got := exchange(c, 3, "canary without a tunnel", 100*time.Millisecond); got != 0 {
				t.Errorf("%d answered without a tunnel", got)
			}
		}
	})
	for _, f := range capture.All(t) {
		if strings.Contains(string(f.Data), "canary") {
			t.Errorf("a packet left in clear: % x", f.Data)
		}
	}
}

// sendForged sends a UDP packet over IPv4 with a forged source.
func sendForged(src, dst netip.Addr, port int, text string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	udp := []byte{byte(port >> 8), byte(port), 0, 9, 0, byte(8 + len(text)), 0, 0}
	header := []byte{0x45, 0, 0, byte(28 + len(text)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	packet := slices.Concat(header, src.AsSlice(), dst.AsSlice(), udp, []byte(text))
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: dst.As4()})
}

func TestFlowtableFollowsLinks(t *testing.T) {
	l := newFlowLab(t)
	links := func() (udp []string) {
		for _, j := range l.read().Joined {
			if j.Table == abi.NFTFlowTableUDP {
				udp = append(udp, j.Link)
			}
		}
		return udp
	}
	if got := links(); !slices.Equal(got, []string{"veil0", "vpod0", "vpod1"}) {
		t.Fatalf("in the flow table are %v", got)
	}

	l.run("ip link del vpod1")
	l.settle()
	if got := links(); !slices.Equal(got, []string{"veil0", "vpod0"}) {
		t.Errorf("after a pod is gone: %v", got)
	}

	l.run(fmt.Sprintf("ip link add vpod2 group %d type dummy", abi.PodGroup))
	l.settle()
	if got := links(); !slices.Equal(got, []string{"veil0", "vpod0", "vpod2"}) {
		t.Errorf("with a new pod: %v", got)
	}

	for i := range flowtable.MaxPods {
		l.run(fmt.Sprintf("ip link add vpod0000000%04d group %d type dummy", i, abi.PodGroup))
	}

	l.settle()
	if got := links(); len(got) != flowtable.MaxPods+1 || !slices.Contains(got, "vpod2") {
		t.Errorf("with too many pods: %d links, %v", len(got), got)
	}
	errtest.Check(t, l.host.FlowtableProblem())

	l.ns.Run(t, l.host.StopFlows)
	l.settle()
	if err := l.ns.Do(func() error { _, err := l.host.Remove(); return err }); err != nil {
		t.Fatal(err)
	}
	if tables := l.run("nft list tables"); strings.Contains(tables, "kubeveil_flows") {
		t.Errorf("left after Remove: %s", tables)
	}
}

// TestFlowtableWhereTheKernelHasNone checks that without flow tables everything else works and the
// reason is reported. It passes on every kernel.
func TestFlowtableWhereTheKernelHasNone(t *testing.T) {
	l := newLab(t)
	w := dual()
	w.Flowtable = true
	for _, op := range l.sync(w) {
		if _, flows := op.(flowsOp); flows && l.host.flows.None() != nil {
			t.Errorf("done, where nothing can be: %s", op)
		}
	}
	l.host.Forget()
	if ops := l.sync(w); l.host.FlowtableProblem() != nil && len(ops) > 0 {
		t.Errorf("tried again: %v", ops)
	}
	if !strings.Contains(fmt.Sprint(l.host.FlowtableProblem(), l.read().Flows), "low") {
		t.Error("there is neither a flow table nor a reason")
	}
}
