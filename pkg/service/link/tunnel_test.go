package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// farAt are the addresses of far, a pod of another node, and hereAt those of pod.
var (
	farAt  = []string{"198.18.2.5", "fd42:1:0:2::5"}
	hereAt = []string{"198.18.1.5", "fd42:1::5"}
)

// newTunnelled is a routed host whose pods reach far by the tunnel, on the fast path. The pod other
// has the host ports of dnat.
func newTunnelled(t *testing.T, withTCX bool) *routed {
	t.Helper()
	r := newUnattached(t)
	r.addFar(t)
	tellSource(t, r.far)
	r.routeFar(t, "add")
	r.records, r.tunnels = recorded(), true
	r.start(t, withTCX, true)
	r.expectRoutes(t, "attached", map[string]uint8{"vpod1": wholePod, "veil0": routeTunnel})
	return r
}

// routeFar adds or deletes the routes of pods to far.
func (r *routed) routeFar(t *testing.T, do string) {
	t.Helper()
	r.ip(t, fmt.Sprintf("route %s 198.18.2.0/24 dev veil0 table %d", do, abi.TablePod),
		fmt.Sprintf("-6 route %s fd42:1:0:2::/64 dev veil0 table %d", do, abi.TablePod))
}

// seeUDP counts the datagrams of pods and tunnels in netfilter.
const seeUDP = `chain p { type filter hook prerouting priority -500;
	iifname { "vpod1", "vpod2", "veil0" } meta l4proto udp counter name "seen"; };`

// expectDatagrams sends between pod and far, in both directions, and checks whether netfilter met
// the datagrams.
func (r *routed) expectDatagrams(t *testing.T, when string, met bool) {
	t.Helper()
	for i := range farAt {
		for _, way := range []struct {
			from *nettest.NS
			to   string
		}{{r.pod, farAt[i]}, {r.far, hereAt[i]}} {
			r.nft(t, seeUDP)
			ask(t, way.from, "udp", way.to, "5353", "")
			if n := r.count(t, seen); (n > 0) != met || met && n != 2 {
				t.Errorf("%s: netfilter met %d datagrams of a question to %s", when, n, way.to)
			}
		}
	}
}

// tellSize sends a datagram of this size from pod.
func (r *routed) tellSize(t *testing.T, to string, size int) {
	t.Helper()
	r.pod.Run(t, func() error {
		c, err := net.Dial("udp", net.JoinHostPort(to, "5353"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(make([]byte, size))
		return err
	})
}

func TestDatagramsToOtherNodesTakeTheFastPath(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newTunnelled(t, withTCX)
		r.expectDatagrams(t, "on the fast path", false)

		for i, to := range farAt {
			r.nft(t, fmt.Sprintf(seeFrom, "vpod1", []string{"ip", "ip6"}[i], hereAt[i], "udp"))
			r.tellSize(t, to, 1500-[]int{28, 48}[i])
			ask(t, r.pod, "tcp", to, "8080", "") // which comes behind it
			r.expectSeen(t, "the largest datagram to "+to, false)
		}

		r.nft(t, seeAll)
		ask(t, r.pod, "tcp", farAt[0], "8080", "")
		r.expectSeen(t, "TCP", true)
	})
}

// TestRoutesOfPodsDecideAboutTunnels: the main table has routes into tunnels that pods do not have.
func TestRoutesOfPodsDecideAboutTunnels(t *testing.T) {
	nettest.NeedBPF(t)
	r := newTunnelled(t, true)
	r.routeFar(t, "del")
	r.nft(t, seeUDP)
	for _, to := range farAt {
		r.expectCounted(t, seen, r.pod, net.Dialer{}, "udp", to, "5353")
	}
}

func TestTunnelsAreOfTheFastPathOnlyForPodsThatAre(t *testing.T) {
	nettest.NeedBPF(t)
	r := newTunnelled(t, true)
	index := r.index(t, "vpod1")
	for _, how := range []uint8{0, routePod, routeFrom, routeWatch} {
		errtest.Must(t, r.setRoutes(index, how))
		r.expectDatagrams(t, fmt.Sprintf("a pod with %05b", how), true)
	}
	errtest.Must(t, r.setRoutes(index, wholePod))
	r.expectDatagrams(t, "a pod with all", false)

	detach := attachNext(t, r.index(t, "veil0"), r.host, ingress)
	r.linked.attach(t)
	r.expectRoutes(t, "another program at the tunnel", map[string]uint8{"veil0": 0})
	r.expectDatagrams(t, "another program at the tunnel", true)
	detach()

	r.reload(t, true)
	r.again(t, true)
	errtest.Must(t, r.StopTunnels())
	r.expectDatagrams(t, "without sites", false)
	r.tunnels = false
	r.again(t, true)
	errtest.Must(t, r.StopTunnels())
	r.expectRoutes(t, "before programs are attached",
		map[string]uint8{"vpod1": wholePod, "veil0": 0})
	r.expectDatagrams(t, "before programs are attached", true)
	r.reload(t, true)
	r.expectRoutes(t, "with sites", map[string]uint8{"vpod1": wholePod, "veil0": 0})
	r.expectDatagrams(t, "with sites", true)
}

// TestTunnelsThatCannotBeReadLoseTheFastPath: the kernel has no link of a negative index, which is
// not the error of a link that is gone.
func TestTunnelsThatCannotBeReadLoseTheFastPath(t *testing.T) {
	nettest.NeedBPF(t)
	r := newTunnelled(t, true)
	veil0 := r.host.Link("veil0")
	veil0.Attrs().MasterIndex = -1
	r.host.Run(t, func() error {
		r.routeLinks(r.host.Handle(), []nl.Link{veil0}, true)
		return nil
	})
	r.expectRoutes(t, "unread", map[string]uint8{"veil0": 0})

	r.Links.tunnels = false
	if can, err := r.routes(nil, nil, veil0, hook.ProgTunnelIn); can != 0 || err != nil {
		t.Errorf("with sites, nothing need be read: %04b, %v", can, err)
	}
}

func TestForgedDatagramsToTunnelsMeetNetfilter(t *testing.T) {
	nettest.NeedBPF(t)
	r := newTunnelled(t, true)
	for _, source := range []string{otherAt[0], "198.19.7.7", otherAt[1], "fd42:9::77"} {
		a := netip.MustParseAddr(source)
		nettest.AddAddr(t, r.pod, "p0", netip.PrefixFrom(a, a.BitLen()))
		to, family := farAt[0], "ip"
		if a.Is6() {
			to, family = farAt[1], "ip6"
		}
		r.nft(t, fmt.Sprintf(seeFrom, "vpod1", family, source, "udp"))
		r.expectCounted(t, seen, r.pod, from(source, 0), "udp", to, "5353")
	}
	r.nft(t, seeUDP)
	for _, to := range farAt {
		r.expectCounted(t, seen, r.pod, from("", 1), "udp", to, "5353")
	}
}

// TestHostPortsForOtherNodes has netfilter redirect datagrams of far to a pod, whose answers must
// then pass netfilter.
func TestHostPortsForOtherNodes(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newTunnelled(t, withTCX)
		r.nft(t, dnat)
		for i, to := range nodeAt {
			ask(t, r.far, "udp", to, "9000", "")
			ask(t, r.far, "udp", otherAt[i], "5353", "") // by the same port of the pod
		}
		if n := r.hostPortsUsed(t); n != 2 {
			t.Errorf("%d pods used host ports, want far by each family", n)
		}
		r.expectDatagrams(t, "other pods", false)
	})
}

// TestHostPortsThatNoProgramSaw: far used a host port before the tunnel was on the fast path.
func TestHostPortsThatNoProgramSaw(t *testing.T) {
	nettest.NeedBPF(t)
	r := newTunnelled(t, true)
	r.tunnels = false
	r.reload(t, true)
	r.nft(t, dnat)
	for _, to := range nodeAt {
		ask(t, r.far, "udp", to, "9000", "")
	}
	r.tunnels = true
	r.reload(t, true)
	for i, to := range otherAt {
		key := dnatKey{Client: netip.MustParseAddr(farAt[i]).As16(),
			Pod: netip.MustParseAddr(to).As16(), Proto: unix.IPPROTO_UDP,
			Port: service.PortOf(netip.MustParseAddrPort("[::]:5353"))}
		var used uint32
		if err := r.Map(mapDNAT).Lookup(key, &used); err != nil {
			t.Errorf("the use by %s is not known: %v", farAt[i], err)
		}
	}
}

// TestSendersToTunnelsAreToldOfTheMTU sends datagrams that the route has no room for. Their sender
// gets the route's MTU by an ICMP error, and EMSGSIZE from then on.
func TestSendersToTunnelsAreToldOfTheMTU(t *testing.T) {
	nettest.NeedBPF(t)
	const narrow = 1296
	r := newTunnelled(t, true)
	r.routeFar(t, "del")
	rule := fmt.Sprintf("rule add fwmark %#x/%#x table %d", abi.PodMark, abi.PodMark, abi.TablePod)
	route := fmt.Sprintf("dev veil0 table %d mtu lock %d", abi.TablePod, narrow)
	r.ip(t, "route add 198.18.2.0/24 "+route, "-6 route add fd42:1:0:2::/64 "+route, rule,
		"-6 "+rule)
	r.nft(t, seeUDP)
	for _, to := range farAt {
		ask(t, r.pod, "udp", to, "5353", "")
	}
	r.expectDatagrams(t, "small datagrams", false)

	for i, to := range farAt {
		full := narrow - []int{28, 48}[i]
		c := dialWhole(t, r.pod, netip.AddrPortFrom(netip.MustParseAddr(to), 5353))
		before := r.count(t, seen)
		if _, err := c.Write(make([]byte, full)); err != nil || r.count(t, seen) != before {
			t.Errorf("the largest datagram to %s met netfilter, or %v", to, err)
		}
		nettest.Until(t, servicetest.Patience, "the sender to "+to+" has the route's MTU",
			func() bool {
				c.send(full + 1)
				return c.pathMTU(t) == narrow
			})
		c.control(t, func(fd int) error {
			code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if got := unix.Errno(code); err == nil && got != unix.EMSGSIZE {
				t.Errorf("the ICMP error about the datagram to %s became %v", to, got)
			}
			return err
		})
		if _, err := c.Write(make([]byte, full+1)); !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("a larger datagram to %s: %v, want %v", to, err, unix.EMSGSIZE)
		}
		if _, err := c.Write(make([]byte, full)); err != nil {
			t.Errorf("the largest datagram to %s: %v", to, err)
		}
	}
}
