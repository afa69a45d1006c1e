package bpf

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// stickyKey and sticky are struct affinity_key and struct affinity of lib/service/affinity.h.
type stickyKey struct{ Group, Client uint64 }

type sticky struct {
	Used  uint64 // nanoseconds since boot
	Addr  [16]byte
	Port  [2]byte
	Flags uint16
	_     [4]byte
}

// stickyTo returns the packet programs with one service. The service has these pods as backends and
// a session affinity of one hour.
func stickyTo(t *testing.T, pods ...string) *ebpf.Collection {
	t.Helper()
	l := &lab{coll: packets(t)}
	l.serve(t, labService{name: "sticky", vips: []string{labAddrs[0].vip, labAddrs[1].vip},
		pods: pods, affinity: time.Hour})
	for i, a := range labAddrs {
		setSelf(t, l.coll, uint32(i), a.self)
	}
	return l.coll
}

// backendOf returns the backend of a connection from an external client.
func backendOf(t *testing.T, coll *ebpf.Collection, client, to netip.AddrPort) netip.Addr {
	t.Helper()
	out, _ := passed(t, coll, "service_in", segment(client, to, unix.IPPROTO_TCP, tcpSYN, ""), 0)
	_, _, _, dst, _ := splitIP(out[ethernet:], to.Addr().Is6())
	return dst
}

// TestAffinityIsOfAnAddress uses so many clients that all of them choose the same backend by chance
// only once in 2^31 runs. Their addresses differ in both halves.
func TestAffinityIsOfAnAddress(t *testing.T) {
	const clients = 32
	for i, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			coll, vip := stickyTo(t, "1", "2"), at(a.vip, 80)
			chosen := make(map[netip.Addr]int)
			for n := range clients {
				client := fmt.Sprintf([]string{"198.19.%d.%d", "fd42:ff:0:%d::%d"}[i], 130+n/8,
					1+n%8)
				first := backendOf(t, coll, at(client, 40000), vip)
				chosen[first]++
				for port := range uint16(8) {
					if got := backendOf(t, coll, at(client, 40001+port), vip); got != first {
						t.Errorf("%s went to %s, then to %s", client, first, got)
					}
				}
			}
			if n := len(allOf[stickyKey, sticky](t, coll, "service_outside")); n != clients ||
				len(chosen) != 2 {
				t.Errorf("%d clients are %d and chose %v", clients, n, chosen)
			}
		})
	}
}

// TestAffinityCountsFromItsLastUse has a client that returns after a while. Within the timeout it
// always gets its backend, and the entry is renewed. Then it gets either.
func TestAffinityCountsFromItsLastUse(t *testing.T) {
	for _, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			coll, vip, port := stickyTo(t, "1", "2"), at(a.vip, 80), uint16(40000)
			backendOf(t, coll, at(a.client, port), vip)
			all := allOf[stickyKey, sticky](t, coll, "service_outside")
			if len(all) != 1 {
				t.Fatalf("affinity entries after one client: %v, want one", all)
			}

			key := slices.Collect(maps.Keys(all))[0]
			had := all[key]
			had.Addr, had.Flags = netip.MustParseAddr(a.pod2).As16(), 0

			for _, c := range []struct {
				later time.Duration
				kept  bool
			}{{0, true}, {59 * time.Minute, true}, {61 * time.Minute, false}} {
				got := map[netip.Addr]bool{}
				for range 30 {
					entry := had
					entry.Used -= uint64(c.later)
					errtest.Must(t, coll.Maps["service_outside"].Put(key, entry))
					port++
					got[backendOf(t, coll, at(a.client, port), vip)] = true
					errtest.Must(t, coll.Maps["service_outside"].Lookup(key, &entry))
					if entry.Used < had.Used {
						t.Fatalf("%v later the entry was not renewed", c.later)
					}
				}
				if kept := len(got) == 1 && got[netip.MustParseAddr(a.pod2)]; kept != c.kept {
					t.Errorf("%s after the last use: went to %v", c.later, got)
				}
			}
		})
	}
}

// TestAffinityOfPodsAndOfOutsidersIsApart sends from a pod without programs at its sockets, and
// from a client outside. The map of one evicts no entry of the other.
func TestAffinityOfPodsAndOfOutsidersIsApart(t *testing.T) {
	for _, a := range labAddrs {
		t.Run(a.name, func(t *testing.T) {
			coll, vip := stickyTo(t, "1", "2"), at(a.vip, 80)
			expect := func(pods, outsiders int) {
				t.Helper()
				clients := allOf[stickyKey, sticky](t, coll, "service_clients")
				outside := allOf[stickyKey, sticky](t, coll, "service_outside")
				if len(clients) != pods || len(outside) != outsiders {
					t.Errorf("%d pods and %d outsiders are known, want %d and %d", len(clients),
						len(outside), pods, outsiders)
				}
			}

			backendOf(t, coll, at(a.client, 40000), vip)
			expect(0, 1)
			passed(t, coll, "service_pod_in",
				segment(at(a.pod1, 40000), vip, unix.IPPROTO_TCP, tcpSYN, ""), 0)
			expect(1, 1)
		})
	}
}

// TestAffinityIsOfANamespace uses clients of one cgroup in so many network namespaces that all
// clients of a family choose the same backend by chance only once in 2^18 runs.
func TestAffinityIsOfANamespace(t *testing.T) {
	const callers = 20
	services := []string{"198.18.0.2", "fd42::2"}
	if os.Getenv(serviceChildEnv) != "" {
		for range callers {
			ns := nettest.NewNS(t)
			nettest.AddAddr(t, ns, "lo", nettest.Prefixes("198.18.1.1/32", "198.18.1.2/32",
				"fd42:1::1/128", "fd42:1::2/128")...)
			for _, addr := range services {
				first := backendIn(t, ns, addr)
				for range 8 {
					if got := backendIn(t, ns, addr); got != first {
						t.Errorf("%s went to %s, then to %s", addr, first, got)
					}
				}
			}
		}
		return
	}

	coll, dir := attached(t)
	writeServices(t, coll)
	if out, err := again(t, dir)(); err != nil {
		t.Fatalf("in the cgroup: %v\n%s", err, out)
	}

	chosen, all := make(map[netip.Addr]int), allOf[stickyKey, sticky](t, coll, "service_clients")
	for _, s := range all {
		chosen[netip.AddrFrom16(s.Addr).Unmap()]++
	}

	if len(all) != callers*len(services) || len(chosen) != 2*len(services) {
		t.Errorf("%d callers of %d services are %d clients and chose %v", callers, len(services),
			len(all), chosen)
	}
}

// backendIn connects a datagram socket of a namespace, where backends have their addresses, and
// returns the backend. A packet to one of a host's own addresses has that address as its source
// too.
func backendIn(t *testing.T, ns *nettest.NS, addr string) netip.Addr {
	t.Helper()
	var c net.Conn
	ns.Run(t, func() (err error) {
		c, err = net.Dial("udp", net.JoinHostPort(addr, "53"))
		return err
	})
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

// TestChoicesAreEven fails if one of ten backends is 5 standard deviations away from its share,
// which happens by chance once in 170,000 runs.
func TestChoicesAreEven(t *testing.T) {
	const choices = 30_000
	backends := nettest.Addrs("198.18.1.1", "198.18.1.2", "198.18.1.3", "198.18.1.4", "198.18.1.5",
		"198.18.1.6", "198.18.1.7")
	services := map[string][]netip.Addr{"198.18.0.1": backends[:3], "198.18.0.2": backends}
	if os.Getenv(serviceChildEnv) != "" {
		ns := nettest.NewNS(t)
		fd := -1
		ns.Run(t, func() (err error) {
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		})
		defer unix.Close(fd)

		for _, b := range backends {
			nettest.AddAddr(t, ns, "lo", netip.PrefixFrom(b, 32))
		}

		for addr, own := range services {
			chosen := make(map[netip.Addr]int)
			for range choices {
				chosen[chosenBy(t, fd, addr)]++
			}
			share := 1 / float64(len(own))
			deviation := math.Sqrt(choices * share * (1 - share))
			for _, b := range own {
				if math.Abs(float64(chosen[b])-choices*share) > 5*deviation {
					t.Errorf("%s has %d of %d choices, want %.0f and at most %.0f more or less", b,
						chosen[b], choices, choices*share, 5*deviation)
				}
			}
			if len(chosen) != len(own) {
				t.Errorf("%s went to %v", addr, chosen)
			}
		}

		return
	}

	coll, dir := attached(t)
	p := newPlanner(t)
	for addr, own := range services {
		name := service.Name{Namespace: "test", Name: addr}
		p.PutService(service.Service{Name: name, ClusterIPs: nettest.Addrs(addr),
			Ports: []service.Port{{Name: "web", Protocol: service.UDP, Port: 80}}})
		slice := service.Slice{Service: name, Name: "1",
			Ports: []service.SlicePort{{Name: "web", Protocol: service.UDP, Port: 8080}}}
		for _, b := range own {
			slice.Endpoints.Append(
				service.Endpoint{Addr: b, Ready: true, Serving: true})
		}
		p.PutSlice(slice)
	}

	c := p.Plan()
	writeRuns(t, coll, c.Runs)
	batch(t, coll.Maps["service_fronts"], c.Frontends.Keys, c.Frontends.Values)
	if out, err := again(t, dir)(); err != nil {
		t.Fatalf("in the cgroup: %v\n%s", err, out)
	}
}
