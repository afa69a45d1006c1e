package link

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
	"github.com/kubeveil/kubeveil/pkg/service/servicetest"
)

// routesOf returns what host routing may do at a link of the host.
func (r *routed) routesOf(t *testing.T, link string) uint8 {
	t.Helper()
	var how uint8
	if err := r.Map(mapRoutes).Lookup(r.index(t, link), &how); err != nil &&
		!errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return how
}

func (r *routed) expectRoutes(t *testing.T, when string, want map[string]uint8) {
	t.Helper()
	for link, how := range want {
		if got := r.routesOf(t, link); got != how {
			t.Errorf("%s: at %s %04b may be done, want %04b", when, link, got, how)
		}
	}
}

// wholePod is what host routing may do at a pod's link without limits.
const wholePod = routePod | routePeer | routeFrom

func (r *routed) tc(t *testing.T, args string) {
	t.Helper()
	r.host.Exec(t, nettest.NeedProgram(t, "tc"), strings.Fields(args)...)
	r.linked.attach(t)
}

// limited returns the number of packets that the limit of the pod other has passed.
func (r *routed) limited(t *testing.T) uint32 {
	t.Helper()
	qdiscs, err := r.host.Handle().QdiscList(r.host.Link("vpod2"))
	errtest.Must(t, err)
	for _, q := range qdiscs {
		if q.Type() == "tbf" {
			return q.Attrs().Statistics.Basic.Packets
		}
	}
	t.Fatal("vpod2 has no limit")
	return 0
}

func TestLimitsOfPodsSeeTheirPackets(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.nft(t, seeAll)
		r.expectRoutes(t, "without limits", map[string]uint8{"vpod1": wholePod, "vpod2": wholePod,
			"u0": routeExit, "veil0": 0})
		r.tc(t, "qdisc add dev vpod2 root tbf rate 1gbit burst 64kb limit 1mb")
		r.expectRoutes(t, "with a limit to what it gets",
			map[string]uint8{"vpod1": wholePod, "vpod2": routePod | routeFrom})

		for i, to := range otherAt {
			for port, to := range map[string]string{"5353": to, "53": clusterAt[i]} {
				before := r.limited(t)
				ask(t, r.pod, "udp", to, port, "")
				if now := r.limited(t); now == before {
					t.Errorf("the limit did not see what was sent to %s", to)
				}
			}
		}

		r.expectSeen(t, "with a limit to what it gets", false)
		r.tc(t, "qdisc del dev vpod2 root")
		r.expectRoutes(t, "without it", map[string]uint8{"vpod2": wholePod})
		if !withTCX {
			return // clsact takes the place of a limit on a pod's sent traffic
		}

		r.tc(t, "qdisc add dev vpod1 ingress")
		r.expectRoutes(t, "with a limit to what it sends", map[string]uint8{"vpod1": 0})
		for _, to := range otherAt {
			ask(t, r.pod, "udp", to, "5353", "")
			r.expectSeen(t, "with a limit to what it sends", true)
		}
	})
}

// TestOthersAtPodsLinksSeeTheirPackets attaches programs and filters to a pod's link, at either
// side, as other software may.
func TestOthersAtPodsLinksSeeTheirPackets(t *testing.T) {
	bothHooks(t, func(t *testing.T, withTCX bool) {
		r := newRouted(t, withTCX, true)
		r.tc(t, "qdisc replace dev vpod2 clsact") // clsact alone has no program of others
		for dir, want := range map[direction]uint8{ingress: 0, egress: wholePod &^ routePeer} {
			r.expectRoutes(t, "without others", map[string]uint8{"vpod2": wholePod})
			r.tc(t, fmt.Sprintf("filter add dev vpod2 %s pref 99 protocol all u32 match u32 0 0",
				dir))
			r.expectRoutes(t, fmt.Sprintf("with a filter %s", dir), map[string]uint8{"vpod2": want})
			r.tc(t, fmt.Sprintf("filter del dev vpod2 %s pref 99", dir))
			if !withTCX {
				continue
			}
			r.expectRoutes(t, "without it", map[string]uint8{"vpod2": wholePod})
			detach := attachNext(t, r.index(t, "vpod2"), r.host, dir)
			r.linked.attach(t)
			r.expectRoutes(t, fmt.Sprintf("with a program %s", dir),
				map[string]uint8{"vpod2": want})
			detach()
			r.linked.attach(t)
		}
	})
}

// TestOthersBehindOursAtUplinksSeeTheirPackets adds a program, or a filter, to the link of a client
// whose connection has the fast path. The connection goes on.
func TestOthersBehindOursAtUplinksSeeTheirPackets(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRouted(t, true, true)
	nettest.Sysctl(t, r.host, "netfilter/nf_conntrack_tcp_be_liberal", "1")
	for i, add := range []func() (remove func()){
		func() func() { return attachNext(t, r.index(t, "u0"), r.host, ingress) },
		func() func() {
			r.tc(t, "qdisc replace dev u0 clsact")
			r.tc(t, "filter add dev u0 ingress pref 99 protocol all u32 match u32 0 0")
			return func() { r.tc(t, "filter del dev u0 ingress pref 99") }
		},
	} {
		r.expectRoutes(t, "alone", map[string]uint8{"u0": routeExit})
		c := hold(t, r.client, outsideAt[i], "80")
		r.nft(t, seeAll)
		errtest.Must(t, errtest.Of(servicetest.Converse(c)))
		r.expectSeen(t, "alone", false)

		remove := add()
		r.linked.attach(t)
		r.expectRoutes(t, "with another", map[string]uint8{"u0": 0})
		r.nft(t, seeAll)
		errtest.Must(t, errtest.Of(servicetest.Converse(c)))
		r.expectSeen(t, "with another", true)
		remove()
		r.linked.attach(t)
	}
}

func TestNothingLeavesByLinksWithoutTheGuard(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRouted(t, true, true)
	r.ip(t, "link add u1 type veth peer name u1p")
	defer attachNext(t, r.index(t, "u1"), r.host, egress)()
	r.linked.attach(t)
	r.expectRoutes(t, "the guard has not seen u1", map[string]uint8{"u0": routeExit, "u1": 0})
	r.host.Run(t, func() error {
		_, err := r.g.Apply(guard.Settings{Ranges: nettest.Prefixes("198.18.0.0/16", "fd42:1::/48"),
			NodeAddrs: nettest.Addrs("198.19.0.1", "fd42:9::1")})
		return err
	})
	r.linked.attach(t)
	r.expectRoutes(t, "it has", map[string]uint8{"u1": routeExit})
}

// attachNext attaches a program to tcx that passes every packet to the next one.
func attachNext(t *testing.T, index uint32, ns *nettest.NS, dir direction) (detach func()) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "another", Type: ebpf.SchedCLS,
		License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, -1), asm.Return(),
		}})
	errtest.Must(t, err)
	var at link.Link
	ns.Run(t, func() (err error) {
		at, err = link.AttachTCX(link.TCXOptions{Interface: int(index), Program: prog,
			Attach: dir.TCX()})
		return err
	})
	return func() {
		errtest.Must(t, errors.Join(at.Close(), prog.Close()))
	}
}

// TestNewPodsHaveTheFastPathOnceTheyAreFinished: a pod's limits are set after its link exists.
func TestNewPodsHaveTheFastPathOnceTheyAreFinished(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRouted(t, true, true)
	h := r.host.Handle()
	appear := func(name string) {
		attrs := nl.NewLinkAttrs()
		attrs.Name, attrs.Group = name, abi.PodGroup
		errtest.Must(t, h.LinkAdd(&nl.Veth{LinkAttrs: attrs, PeerName: name + "p"}))
	}

	becomes := func(link string, want uint8) {
		nettest.Until(t, 10*time.Second, fmt.Sprintf("%s has %04b", link, want),
			func() bool { return r.routesOf(t, link) == want })
	}
	stop := r.watch(t, "u0", time.Hour)
	appear("vpod3")
	appear("vpod4") // seen behind it
	nettest.Until(t, 10*time.Second, "vpod4 has programs", func() (has bool) {
		r.host.Run(t, func() error {
			ours, err := hook.Ours(h, hook.New(r.tcx),
				hook.Point{Index: int(r.index(t, "vpod4")), Dir: ingress})
			has = len(ours) > 0
			hook.CloseAll(ours)
			return err
		})
		return has
	})
	r.expectRoutes(t, "before the patience ends",
		map[string]uint8{"vpod1": wholePod, "vpod3": 0, "vpod4": 0, "u0": routeExit})
	stop()
	stop = r.watch(t, "u0", time.Millisecond)

	appear("vpod5")
	for _, link := range []string{"vpod3", "vpod4", "vpod5"} {
		becomes(link, wholePod)
	}

	gone := r.index(t, "vpod3")
	r.ip(t, "link del vpod3")
	appear("vpod6")
	nettest.Until(t, 10*time.Second, "a link that is gone is forgotten", func() bool {
		var how uint8
		return errors.Is(r.Map(mapRoutes).Lookup(gone, &how), ebpf.ErrKeyNotExist)
	})
	stop()
}

// TestLateLimitsEndTheFastPath sets a limit, and attaches programs of others, long after the pods
// got the fast path. The kernel reports limits, but no programs.
func TestLateLimitsEndTheFastPath(t *testing.T) {
	nettest.NeedBPF(t)
	r := newRouted(t, true, true)
	becomes := func(link string, want uint8) {
		t.Helper()
		nettest.Until(t, 10*time.Second, fmt.Sprintf("%s has %04b", link, want),
			func() bool { return r.routesOf(t, link) == want })
	}
	tc := func(args string) {
		t.Helper()
		r.host.Exec(t, nettest.NeedProgram(t, "tc"), strings.Fields(args)...)
	}

	stop := r.watch(t, "u0", time.Millisecond)
	becomes("vpod1", wholePod)
	becomes("vpod2", wholePod)
	tc("qdisc add dev vpod2 root tbf rate 1gbit burst 64kb limit 1mb")
	becomes("vpod2", routePod|routeFrom)
	tc("qdisc del dev vpod2 root")
	becomes("vpod2", wholePod)
	stop()

	r.recheck = 10 * time.Millisecond
	stop = r.watch(t, "u0", time.Hour)
	for _, late := range []struct {
		link string
		dir  direction
		want uint8
	}{{"vpod1", ingress, 0}, {"vpod2", egress, routePod | routeFrom}, {"u0", ingress, 0}} {
		detach := attachNext(t, r.index(t, late.link), r.host, late.dir)
		defer detach()
		becomes(late.link, late.want)
	}
	stop()
}
