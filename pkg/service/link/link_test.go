package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
	"github.com/kubeveil/kubeveil/pkg/service/planner"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// linked is a host with the guard in force, a client outside and a pod:
//
//	client u0 198.19.0.9 ─── u0 198.19.0.1 host vpod1 198.18.1.254 ─── p0 198.18.1.5 pod
//	          fd42:9::9         fd42:9::1   │         fd42:1::fe         fd42:1::5
//	                                      veil0
type linked struct {
	*bpfmaps.Table
	*Links
	host, client, pod *nettest.NS
	far               *nettest.NS // see addFar
	dir               string
	g                 *guard.Guard
	records           Pods // the plugin's; nil: no pod has host ports
	hostRouting       bool
	tunnels           bool // Options.Tunnels
}

func newLinked(t *testing.T, withTCX bool) *linked {
	t.Helper()
	l := newGuarded(t)
	l.open(t, withTCX)
	return l
}

// newGuarded is like newLinked, without a table of services, whose programs take the longest to
// load.
func newGuarded(t *testing.T) *linked {
	t.Helper()
	nettest.NeedProgram(t, "nft")
	l := &linked{host: nettest.NewNS(t), client: nettest.NewNS(t), pod: nettest.NewNS(t),
		dir: nettest.BPFFS(t) + "/kubeveil"}
	end := func(ns *nettest.NS, name string, addrs ...string) nettest.End {
		return nettest.End{NS: ns, Name: name, Addrs: nettest.Prefixes(addrs...)}
	}

	for _, ns := range []*nettest.NS{l.host, l.client, l.pod} {
		nettest.Sysctl(t, ns, "ipv6/conf/default/accept_dad", "0") // no seconds without neighbours
	}

	nettest.Veth(t, end(l.client, "u0", "198.19.0.9/24", "fd42:9::9/64"),
		end(l.host, "u0", "198.19.0.1/24", "fd42:9::1/64"))
	nettest.Veth(t, end(l.pod, "p0", "198.18.1.5/24", "fd42:1::5/64"),
		end(l.host, "vpod1", "198.18.1.254/24", "fd42:1::fe/64"))
	nettest.TUN(t, l.host, "veil0")
	group(t, l.host, "vpod1", abi.PodGroup)
	group(t, l.host, "veil0", abi.TunnelGroup)
	nettest.AddRoute(t, l.pod, netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParseAddr("198.18.1.254"), "p0")
	nettest.AddRoute(t, l.pod, netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd42:1::fe"),
		"p0")
	nettest.Sysctl(t, l.host, "ipv4/ip_forward", "1")
	nettest.Sysctl(t, l.host, "ipv6/conf/all/forwarding", "1")
	l.host.Run(t, func() (err error) {
		if l.g, err = guard.Open(l.dir, servicetest.Quiet()); err != nil {
			return err
		}
		_, err = l.g.Apply(guard.Settings{Ranges: nettest.Prefixes("198.18.0.0/16", "fd42:1::/48"),
			NodeAddrs: nettest.Addrs("198.19.0.1", "fd42:9::1")})
		return err
	})

	t.Cleanup(func() { l.g.Close() })
	podAddrs(t, l.host, "vpod1", "198.18.1.5", "fd42:1::5", linkLocal(t, l.pod, "p0"))
	return l
}

func group(t *testing.T, ns *nettest.NS, name string, group uint32) {
	t.Helper()
	ns.OnLink(name, func(h *nl.Handle, l nl.Link) error { return h.LinkSetGroup(l, int(group)) })
}

// podAddrs lets a pod send from these addresses, as the plugin does.
func podAddrs(t *testing.T, ns *nettest.NS, link string, v4 string, v6 ...string) {
	t.Helper()
	elements := []string{fmt.Sprintf("%s { %q . %s }", abi.NFTPodSet4, link, v4)}
	for _, a := range v6 {
		elements = append(elements, fmt.Sprintf("%s { %q . %s }", abi.NFTPodSet6, link, a))
	}
	for _, e := range elements {
		ns.Exec(t, "nft", "add element inet "+abi.NFTPodTable+" "+e)
	}
}

// linkLocal returns the link-local address with which a link finds neighbours. Pods of the plugin
// have permanent neighbours instead.
func linkLocal(t *testing.T, ns *nettest.NS, name string) string {
	t.Helper()
	var found string
	nettest.Until(t, 5*time.Second, "a link-local address", func() bool {
		ns.Run(t, func() error {
			ifi, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			addrs, err := ifi.Addrs()
			for _, a := range addrs {
				if p, ok := a.(*net.IPNet); ok && p.IP.IsLinkLocalUnicast() {
					found = p.IP.String()
				}
			}
			return err
		})
		return found != ""
	})
	return found
}

// memoryOf returns sizes of the LRU maps. The flow tables together have this many entries.
func memoryOf(flows uint32) bpfmaps.Memory {
	return bpfmaps.Memory{Clients: 1024, Outside: 1024, Replies: 1024, Sends: 1024,
		TCP: flows / 2, Opening: flows / 4, UDP: flows / 4, Quotas: 1024}
}

// config returns the configuration of a table without the programs at sockets, which these tests do
// not attach. The verifier takes most of their time. A new namespace has links without Ethernet
// where the kernel has modules such as sit.
func (l *linked) config() bpfmaps.Config {
	return bpfmaps.Config{Dir: l.dir, Limits: servicetest.Limits, Links: true,
		Only: []string{hook.ProgIn, hook.ProgInL3, hook.ProgOut, hook.ProgOutL3, hook.ProgPodIn,
			hook.ProgPodOut, hook.ProgTunnelIn, hook.ProgTunnelOut},
		Log: servicetest.Quiet(), Memory: memoryOf(1024)}
}

func (l *linked) open(t *testing.T, withTCX bool) {
	t.Helper()
	l.openWith(t, l.config(), withTCX)
	t.Cleanup(func() { l.Table.Close() })
	l.setSelf(t)
}

// openWith opens a table that will attach at tcx or at clsact. It attaches nothing.
func (l *linked) openWith(t *testing.T, c bpfmaps.Config, withTCX bool) {
	t.Helper()
	l.host.Run(t, func() (err error) {
		l.Table, err = bpfmaps.Open(c)
		return err
	})
	links := New(l.Table, Options{HostRouting: l.hostRouting, Tunnels: l.tunnels, Pods: l.records,
		Log: servicetest.Quiet()})
	t.Cleanup(func() { links.CloseConntrack() })
	l.Links = links
	if withTCX && !l.tcx {
		l.Table.Close()
		nettest.Skip(t, nettest.NoTCX, "before Linux 6.6")
	}
	l.tcx = withTCX
}

func (l *linked) setSelf(t *testing.T) {
	t.Helper()
	if err := l.SetSelf(nettest.Prefixes("198.18.1.0/24", "fd42:1::/64"),
		nettest.Addrs("198.19.0.1", "fd42:9::1")); err != nil {
		t.Fatal(err)
	}
}

func (l *linked) attach(t *testing.T) []string {
	t.Helper()
	var changed []string
	l.host.Run(t, func() (err error) {
		changed, err = l.AttachLinks()
		return err
	})
	slices.Sort(changed)
	return changed
}

// bothHooks runs a test with tcx, if the kernel has it, and with clsact.
func bothHooks(t *testing.T, fn func(t *testing.T, withTCX bool)) {
	nettest.NeedBPF(t)
	t.Run("tcx", func(t *testing.T) { fn(t, true) })
	t.Run("clsact", func(t *testing.T) { fn(t, false) })
}

var attachedLinks = []string{
	"attached service_in at u0 ingress",
	"attached service_pod_in at vpod1 ingress", "attached service_pod_out at vpod1 egress",
	"attached service_tun_in at veil0 ingress", "attached service_tun_out at veil0 egress",
}

func TestLinksGetTheirProgramsOnce(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		if diff := cmp.Diff(attachedLinks, l.attach(t)); diff != "" {
			t.Error(diff)
		}
		if again := l.attach(t); len(again) > 0 {
			t.Errorf("the second AttachLinks changed %v", again)
		}
		l.open(t, withTCX)
		if again := l.attach(t); len(again) > 0 {
			t.Errorf("AttachLinks changed %v after a restart", again)
		}
		l.host.Run(t, func() error {
			// The guard has nothing to correct: it is first.
			ops, err := l.g.Apply(guard.Settings{Ranges: nettest.Prefixes("198.18.0.0/16",
				"fd42:1::/48"), NodeAddrs: nettest.Addrs("198.19.0.1", "fd42:9::1")})
			if len(ops) > 0 {
				t.Errorf("the guard changed %v", ops)
			}
			return err
		})
	})
}

func TestRemoveLeavesTheGuardOnLinks(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.attach(t)
		var left []string
		l.host.Run(t, func() error {
			h, links, err := nl.OpenLinks()
			if err != nil {
				return err
			}
			defer h.Close()

			for _, link := range links {
				if _, err := detachLink(h, hook.New(l.tcx), link); err != nil {
					return err
				}
			}

			for _, link := range links {
				qdiscs, err := h.QdiscList(link)
				if err != nil {
					return err
				}
				for _, q := range qdiscs {
					if q.Type() == "clsact" {
						left = append(left, link.Attrs().Name)
					}
				}
			}

			return nil
		})

		slices.Sort(left)
		if slices.Contains(left, "vpod1") || slices.Contains(left, "veil0") {
			t.Errorf("an empty clsact is left at %v", left)
		}
		if again := l.attach(t); len(again) != len(attachedLinks) {
			t.Errorf("after removal only %v were attached", again)
		}
	})
}

func TestRemoveTakesLinksAndPins(t *testing.T) {
	nettest.NeedBPF(t)
	l := newLinked(t, true)
	l.attach(t)
	l.Table.Close()

	remove := func() (removed []string) {
		l.host.Run(t, func() (err error) {
			removed, err = Remove(l.dir)
			return err
		})
		return removed
	}
	for _, left := range []bool{true, false} {
		removed := remove()
		at := slices.Contains(removed, "program of services at u0 ingress")
		pin := slices.Contains(removed, "pin "+l.dir+"/"+bpfmaps.MapTCP)
		if at != left || pin != left {
			t.Errorf("removed %v, want programs and pins only the first time", removed)
		}
	}
	if removed, err := Remove(l.dir + "/nowhere"); err != nil || removed != nil {
		t.Errorf("Remove without a table removed %v, %v", removed, err)
	}
}

// TestNewLinksAreServed adds a pod's link while links are watched.
func TestNewLinksAreServed(t *testing.T) {
	l := newLinked(t, true)
	stop := l.watch(t, "u9", l.patience)
	nettest.Veth(t, nettest.End{NS: l.host, Name: "u9"},
		nettest.End{NS: nettest.NewNS(t), Name: "u9"})
	h, link := l.host.Handle(), l.host.Link("u9")

	nettest.Until(t, 10*time.Second, "the new link has a program", func() bool {
		served := false
		l.host.Run(t, func() error {
			ours, err := hook.Ours(h, hook.New(true),
				hook.Point{Index: link.Attrs().Index, Dir: ingress})
			served = len(ours) > 0
			hook.CloseAll(ours)
			return err
		})
		return served
	})

	stop()
}

// TestClientOutsideWithTheGuardInForce runs with everything in force that drops packets: nftables
// and programs.
func TestClientOutsideWithTheGuardInForce(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		l := newLinked(t, withTCX)
		l.serve(t)
		if out, err := visit(l.client, "198.19.0.1:30080"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("before programs are attached the node answers %q, %v", out, err)
		}
		l.attach(t)
		l.expectServed(t)
	})
}

// serve makes the pod the backend of port 30080 of the host, and of port 80 of a balancer's
// addresses.
func (l *linked) serve(t *testing.T, vips ...string) {
	t.Helper()
	p, err := planner.New("node-1", servicetest.Limits)
	errtest.Must(t, err)
	s := servicetest.Named("web")
	s.Ports[0].NodePort, s.LoadBalancerIPs = 30080, nettest.Addrs(vips...)
	p.SetNodeAddrs(nettest.Addrs("198.19.0.1", "fd42:9::1"))
	p.PutService(s)
	endpoints := servicetest.SliceOf("web", "198.18.1.5", "fd42:1::5")
	servicetest.Place(&endpoints, "node-1")
	p.PutSlice(endpoints)
	errtest.Must(t, l.Apply(p.Plan()))
	listen(t, l.pod)
}

func (l *linked) expectServed(t *testing.T) {
	t.Helper()
	for _, to := range []string{"198.19.0.1:30080", "[fd42:9::1]:30080"} {
		out, err := visit(l.client, to)
		if err != nil || !strings.HasPrefix(out, "pod sees ") {
			t.Errorf("%s answers %q, %v; the guard dropped %v", to, out, err, l.dropped(t))
		}
	}
}

// watch watches links until stop, which changes the group of the link bell to end the wait.
func (l *linked) watch(t *testing.T, bell string, patience time.Duration) (stop func()) {
	l.patience = patience
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.host.Do(func() error { return l.WatchLinks(ctx) }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		group(t, l.host, bell, 7)
		errtest.Check(t, <-done)
	})
	t.Cleanup(stop) // before what closes the maps, also after Fatal
	return stop
}

func (l *linked) dropped(t *testing.T) map[string]uint64 {
	t.Helper()
	var counts map[string]uint64
	l.host.Run(t, func() (err error) {
		counts, err = l.g.Counters()
		return err
	})
	for name, n := range counts {
		if n == 0 {
			delete(counts, name)
		}
	}
	return counts
}

func listen(t *testing.T, ns *nettest.NS) {
	t.Helper()
	ns.Run(t, func() error {
		tcp, err := net.Listen("tcp", ":8080")
		if err != nil {
			return err
		}
		t.Cleanup(func() { tcp.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "pod sees %s", c.RemoteAddr())
				c.Close()
			}
		}()
		return nil
	})
}

func visit(ns *nettest.NS, to string) (string, error) {
	var out []byte
	err := ns.Do(func() error {
		c, err := net.DialTimeout("tcp", to, 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		out, err = io.ReadAll(c)
		return err
	})
	return string(out), err
}
