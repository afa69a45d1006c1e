package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// routed is a linked host with another pod, the backend of a service of each family:
//
//	host vpod2 198.18.3.254 ─── p0 198.18.3.6 other
//	           fd42:1:0:3::fe      fd42:1:0:3::6
type routed struct {
	*linked
	other *nettest.NS
}

// The address of other, and of its service for pods and for clients outside, of each family.
var (
	otherAt   = []string{"198.18.3.6", "fd42:1:0:3::6"}
	clusterAt = []string{"198.18.0.1", "fd42:1:ff::1"}
	outsideAt = []string{"198.19.0.66", "fd42:9::66"}
)

// newRouted attaches the programs, with host routing if hostRouting is set.
func newRouted(t *testing.T, withTCX, hostRouting bool) *routed {
	t.Helper()
	r := newUnattached(t)
	r.start(t, withTCX, hostRouting)
	return r
}

// newUnattached is like newRouted, without a table of services; see start.
func newUnattached(t *testing.T) *routed {
	t.Helper()
	r := &routed{newGuarded(t), nettest.NewNS(t)}
	nettest.Sysctl(t, r.other, "ipv6/conf/default/accept_dad", "0")
	nettest.Veth(t, nettest.End{NS: r.other, Name: "p0",
		Addrs: nettest.Prefixes("198.18.3.6/24", "fd42:1:0:3::6/64")},
		nettest.End{NS: r.host, Name: "vpod2",
			Addrs: nettest.Prefixes("198.18.3.254/24", "fd42:1:0:3::fe/64")})
	group(t, r.host, "vpod2", abi.PodGroup)
	for i, p := range nettest.Prefixes("0.0.0.0/0", "::/0") {
		nettest.AddRoute(t, r.other, p, nettest.Addrs("198.18.3.254", "fd42:1:0:3::fe")[i], "p0")
		vip := netip.MustParseAddr(outsideAt[i])
		nettest.AddRoute(t, r.client, netip.PrefixFrom(vip, vip.BitLen()),
			nettest.Addrs("198.19.0.1", "fd42:9::1")[i], "u0")
		// Real pods have no neighbours but the host.
		self := nettest.Prefixes("198.18.1.1/32", "fd42:1::1/128")[i]
		nettest.AddRoute(t, r.pod, self, nettest.Addrs("198.18.1.254", "fd42:1::fe")[i], "p0")
	}
	podAddrs(t, r.host, "vpod2", otherAt[0], otherAt[1], linkLocal(t, r.other, "p0"))
	tellSource(t, r.pod)
	tellSource(t, r.other)
	r.meet(t)
	return r
}

// start opens a table of services, attaches its programs, and puts other behind the services.
func (r *routed) start(t *testing.T, withTCX, hostRouting bool) {
	t.Helper()
	r.hostRouting = hostRouting
	r.open(t, withTCX)
	r.attachRouted(t, hostRouting)
	r.put(t, otherAt...)
}

// meet makes the host learn its neighbours, because it cannot resolve them while no packet passes
// netfilter.
func (r *routed) meet(t *testing.T) {
	t.Helper()
	for _, to := range []string{"198.18.1.5", "fd42:1::5", otherAt[0], otherAt[1]} {
		ask(t, r.host, "udp", to, "5353", "")
	}
}

// again closes this table and opens another one.
func (r *routed) again(t *testing.T, hostRouting bool) {
	t.Helper()
	r.hostRouting = hostRouting
	errtest.Must(t, r.Table.Close())
	r.openWith(t, r.config(), r.tcx)
	r.setSelf(t)
}

// reload replaces this table by another one.
func (r *routed) reload(t *testing.T, hostRouting bool) {
	t.Helper()
	r.again(t, hostRouting)
	r.attachRouted(t, hostRouting)
}

// attachRouted attaches the programs of the table.
func (r *routed) attachRouted(t *testing.T, hostRouting bool) {
	t.Helper()
	r.linked.attach(t)
	if hostRouting && !r.tcx {
		// The guard is at tcx wherever the kernel has it. Without tcx, services do not see it
		// there.
		errtest.Must(t, r.Map(mapRoutes).Put(r.index(t, "u0"), routeExit))
	}
}

// put makes these pods the backends of the service.
func (r *routed) put(t *testing.T, backends ...string) {
	t.Helper()
	p, err := planner.New("node-1", servicetest.Limits)
	errtest.Must(t, err)
	s, err := r.State()
	errtest.Must(t, err)
	p.Adopt(s)
	svc := servicetest.Named("web", clusterAt...)
	endpoints := servicetest.SliceOf("web", backends...)
	svc.LoadBalancerIPs = nettest.Addrs(outsideAt...)
	servicetest.Place(&endpoints, "node-1")
	p.PutService(svc)
	p.PutSlice(endpoints)
	errtest.Must(t, r.Apply(p.Plan()))
}

// nft makes a table of another program on the host, with the counters "seen" and "stopped" for its
// rules.
func (r *routed) nft(t *testing.T, chains string) {
	t.Helper()
	r.host.Exec(t, "nft", "table inet others\ndelete table inet others\ntable inet others { "+
		"counter seen { }; counter stopped { }; "+chains+" }")
}

// Chains of another program: one that lets nothing through, and one that counts packets in
// netfilter.
const (
	stopAll = `chain f { type filter hook forward priority 0; counter name "stopped" drop; };`
	seeAll  = `chain p { type filter hook prerouting priority -500; meta l4proto { tcp, udp } counter name "seen"; };`
	seeFrom = `chain p { type filter hook prerouting priority -500; iifname %q %s saddr %s meta l4proto %s counter name "seen"; };`

	seen, stopped = "seen", "stopped"
)

var packets = regexp.MustCompile(`packets (\d+)`)

func (r *routed) count(t *testing.T, counter string) int {
	t.Helper()
	return countIn(t, r.host, counter)
}

// countIn returns the value of a counter of the table of another program in a network namespace.
func countIn(t *testing.T, ns *nettest.NS, counter string) int {
	t.Helper()
	out := ns.Exec(t, "nft", "list counter inet others "+counter)
	found := packets.FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("counter %s: %s", counter, out)
	}
	n, err := strconv.Atoi(found[1])
	errtest.Must(t, err)
	return n
}

// ask returns the source that a pod sees, as tellSource reports it. Without an answer the test
// fails.
func ask(t *testing.T, ns *nettest.NS, network, to, port, want string) {
	t.Helper()
	ns.Run(t, func() error {
		c, err := net.DialTimeout(network, net.JoinHostPort(to, port), servicetest.Patience)
		if err != nil {
			return err
		}
		defer c.Close()
		source, err := servicetest.Converse(c)
		if err == nil && want != "" && !strings.HasPrefix(source, want) {
			return fmt.Errorf("%s %s sees %s, want %s", network, to, source, want)
		}
		return err
	})
}

// from returns a dialer with this source. If hops is not 0, its sockets have this TTL or hop limit
// and receive ICMP errors.
func from(source string, hops int) net.Dialer {
	d := net.Dialer{Timeout: servicetest.Patience}
	if source != "" {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
	}
	if hops > 0 {
		d.Control = func(network, _ string, c syscall.RawConn) error {
			var errs []error
			err := c.Control(func(fd uintptr) {
				level, limit, told := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_RECVERR
				if strings.HasSuffix(network, "6") {
					level, limit, told = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS,
						unix.IPV6_RECVERR
				}
				errs = append(errs, unix.SetsockoptInt(int(fd), level, limit, hops),
					unix.SetsockoptInt(int(fd), level, told, 1))
			})
			return errors.Join(append(errs, err)...)
		}
	}
	return d
}

// expectCounted checks that packets of a client are counted, answered or not.
func (r *routed) expectCounted(t *testing.T, counter string, ns *nettest.NS, d net.Dialer,
	network, to, port string) {
	t.Helper()
	before := r.count(t, counter)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- ns.Do(func() error {
			c, err := d.DialContext(ctx, network, net.JoinHostPort(to, port))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("?\n"))
			return err
		})
	}()

	nettest.Until(t, 10*time.Second, counter+" counts what is sent to "+to,
		func() bool { return r.count(t, counter) > before })
	stop()
	err := <-done
	if counter == stopped && network == "tcp" && err == nil {
		t.Errorf("%s is reached", to)
	}
	if network == "udp" && err != nil {
		t.Error(err)
	}
}

// Options of IPv4 (RFC 791): none, and a record of two routers.
var (
	noOperation = []byte{1, 1, 1, 0}
	recordRoute = []byte{7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0}
)

// withOptions returns a dialer whose packets have these options of IPv4.
func withOptions(options []byte) net.Dialer {
	return net.Dialer{Timeout: servicetest.Patience, Control: func(_, _ string,
		c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, string(options))
		})
		return errors.Join(err, set)
	}}
}

// TestPacketsWithOptionsMeetNetfilter: the kernel refuses options or fills them in.
func TestPacketsWithOptionsMeetNetfilter(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		ways := []way{
			{from: r.pod, to: []string{otherAt[0]}, tcp: "8080", udp: "5353"},
			{from: r.pod, to: []string{clusterAt[0]}, tcp: "80", udp: "53"},
			{from: r.client, to: []string{outsideAt[0]}, tcp: "80", udp: "53"},
		}
		r.nft(t, seeAll)
		for _, w := range ways {
			ask(t, w.from, "tcp", w.to[0], w.tcp, "")
			ask(t, w.from, "udp", w.to[0], w.udp, "")
		}
		r.expectSeen(t, "packets without options", false)
		for _, options := range [][]byte{noOperation, recordRoute} {
			for _, w := range ways {
				for network, port := range map[string]string{"udp": w.udp, "tcp": w.tcp} {
					r.askWith(t, withOptions(options), w.from, network,
						net.JoinHostPort(w.to[0], port))
					what := fmt.Sprintf("%s to %s with options %v", network, w.to[0], options)
					r.expectSeen(t, what, true)
				}
			}
		}
	})
}

// askWith makes a client use this dialer. Without an answer the test fails.
func (r *routed) askWith(t *testing.T, d net.Dialer, from *nettest.NS, network, to string) {
	t.Helper()
	from.Run(t, func() error {
		c, err := d.Dial(network, to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = servicetest.Converse(c)
		return err
	})
}

// way is a client, the address to which it connects, the ports of TCP and UDP, and the client that
// the backend must see.
type way struct {
	from     *nettest.NS
	to       []string
	tcp, udp string
	source   []string
}

// expectPast puts a chain in force that stops all packets in netfilter. Without host routing no
// packet gets through. With host routing all packets do, in both directions.
func expectPast(t *testing.T, pick func(*testing.T, *routed) way) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, false)
		w := pick(t, r)
		r.nft(t, stopAll)
		for _, to := range w.to {
			r.expectCounted(t, stopped, w.from, net.Dialer{}, "tcp", to, w.tcp)
			r.expectCounted(t, stopped, w.from, net.Dialer{}, "udp", to, w.udp)
		}
		r.reload(t, true)
		r.nft(t, stopAll)
		for i, to := range w.to {
			ask(t, w.from, "tcp", to, w.tcp, w.source[i])
			ask(t, w.from, "udp", to, w.udp, w.source[i])
		}
		if n := r.count(t, stopped); n > 0 {
			t.Errorf("%d packets met netfilter", n)
		}
	})
}

func TestPodsOfANodeReachEachOtherPastNetfilter(t *testing.T) {
	expectPast(t, func(_ *testing.T, r *routed) way {
		return way{r.pod, otherAt, "8080", "5353", []string{"198.18.1.5:", "[fd42:1::5]:"}}
	})
}

func TestClientsOutsideReachAPodPastNetfilter(t *testing.T) {
	expectPast(t, func(_ *testing.T, r *routed) way {
		return way{r.client, outsideAt, "80", "53", []string{"198.19.0.9:", "[fd42:9::9]:"}}
	})
}

func TestPodsReachAServicePastNetfilter(t *testing.T) {
	expectPast(t, func(_ *testing.T, r *routed) way {
		return way{r.pod, clusterAt, "80", "53", []string{"198.18.1.5:", "[fd42:1::5]:"}}
	})
}

func TestPodsReachThemselvesPastNetfilter(t *testing.T) {
	expectPast(t, func(t *testing.T, r *routed) way {
		r.put(t, "198.18.1.5", "fd42:1::5")
		return way{r.pod, clusterAt, "80", "53", []string{"198.18.1.1:", "[fd42:1::1]:"}}
	})
}

// expectSeen checks whether netfilter has seen packets since the last call.
func (r *routed) expectSeen(t *testing.T, what string, want bool) {
	t.Helper()
	if n := r.count(t, seen); (n > 0) != want {
		t.Errorf("%s: netfilter met %d packets", what, n)
	}
	r.nft(t, seeAll)
}

// forgetNeighbor removes the neighbour of an address from a link of the host.
func (r *routed) forgetNeighbor(t *testing.T, link, addr string) {
	t.Helper()
	h := r.host.Handle()
	err := h.NeighDel(&nl.Neigh{LinkIndex: int(r.index(t, link)), IP: net.ParseIP(addr)})
	errtest.Must(t, err)
}

func TestWhatHasNoPlainWayMeetsNetfilter(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.addFar(t)
		tellSource(t, r.far)
		r.nft(t, seeAll)

		for i, to := range otherAt {
			ask(t, r.pod, "udp", to, "5353", "")
			ask(t, r.client, "tcp", outsideAt[i], "80", "")
			r.expectSeen(t, "what has one", false)
			// after this, none of its packets are still on their way
			ask(t, r.pod, "udp", []string{"198.18.2.5", "fd42:1:0:2::5"}[i], "5353", "")
			r.expectSeen(t, "a pod of another node", true)
			r.expectCounted(t, seen, r.pod, net.Dialer{}, "udp",
				[]string{"198.19.0.9", "fd42:9::9"}[i], "5353")
			r.expectCounted(t, seen, r.pod, from("", 1), "udp", to, "5353")
			r.forgetNeighbor(t, "vpod2", to)
			r.nft(t, seeAll)
			ask(t, r.pod, "udp", to, "5353", "")
			r.expectSeen(t, "a pod whose address on the link is not known", true)
		}

		r.host.Run(t, func() error {
			_, err := r.g.Apply(guard.Settings{Ranges: nettest.Prefixes("198.18.0.0/16",
				"fd42:1::/48"), NodeAddrs: nettest.Addrs("198.19.0.1", "fd42:9::1", "198.19.0.9",
				"fd42:9::9")})
			return err
		})

		for i, to := range outsideAt {
			for network, port := range map[string]string{"tcp": "80", "udp": "53"} {
				r.nft(t, fmt.Sprintf(seeFrom, "u0", []string{"ip", "ip6"}[i],
					[]string{"198.19.0.9", "fd42:9::9"}[i], network))
				r.expectCounted(t, seen, r.client, net.Dialer{}, network, to, port)
			}
		}

		local := linkLocal(t, r.pod, "p0")
		r.nft(t, fmt.Sprintf(seeFrom, "vpod1", "ip6", local, "udp"))
		r.expectCounted(t, seen, r.pod, net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(local),
			Zone: "p0"}}, "udp", otherAt[1], "5353")

		// These addresses come last, because the pod chooses them as its source if they are nearer.
		for _, source := range []string{"198.18.3.7", "198.19.7.7", "fd42:1:0:3::7", "fd42:9::77"} {
			a := netip.MustParseAddr(source)
			nettest.AddAddr(t, r.pod, "p0", netip.PrefixFrom(a, a.BitLen()))
			to, family := otherAt[0], "ip"
			if a.Is6() {
				to, family = otherAt[1], "ip6"
			}
			r.nft(t, fmt.Sprintf(seeFrom, "vpod1", family, source, "udp"))
			r.expectCounted(t, seen, r.pod, from(source, 0), "udp", to, "5353")
		}
	})
}

func TestSendersAreToldThatHopsAreUsedUp(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		for _, to := range otherAt {
			for hops, want := range map[int]error{1: unix.EHOSTUNREACH, 2: nil} {
				r.pod.Run(t, func() error {
					d := from("", hops)
					c, err := d.Dial("udp", net.JoinHostPort(to, "5353"))
					if err != nil {
						return err
					}
					defer c.Close()
					if _, err := servicetest.Converse(c); !errors.Is(err, want) {
						t.Errorf("%s with %d hops: %v, want %v", to, hops, err, want)
					}
					return nil
				})
			}
		}
	})
}
