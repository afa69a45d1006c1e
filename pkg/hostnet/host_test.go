package hostnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

func TestApplyTwiceChangesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		want Want
	}{
		{"dual-stack", dual()},
		{"ipv4 only", only(dual(), false)},
		{"ipv6 only", only(dual(), true)},
		{"no device yet", func() Want { w := dual(); w.Devices, w.Peers = nil, nil; return w }()},
		{"networks of nodes closed", func() Want {
			w := dual()
			w.ClosedRanges = prefixes("198.18.0.0/24", "fd42:0:0:1::/64")
			return w
		}()},
		{"no masquerading", func() Want { w := dual(); w.Masquerade = false; return w }()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.apply(tt.want)
			l.assertIs(tt.want)
			if ops := l.apply(tt.want); len(ops) > 0 {
				t.Errorf("second apply did: %s", ops)
			}

			l.assertClosed(closed(tt.want), "applied")
			l.assertOuter(closed(tt.want), "applied")
		})
	}
}

func TestWherePacketsGo(t *testing.T) {
	l := newLab(t)
	l.apply(dual())
	const pod, outer = abi.PodMark, abi.TunnelMark
	for _, tt := range []struct {
		name string
		dst  string
		mark uint32
		want string
	}{
		{"pod to a peer's pod", "198.18.130.9", pod, "veil0"},
		{"pod to a peer's pod, ipv6", "fd42:aaaa:0:2::9", pod, "veil0"},
		{"pod to an unassigned pod address", "198.18.200.9", pod, "unreachable"},
		{"pod to an unassigned pod address, ipv6", "fd42:aaaa:0:99::9", pod, "unreachable"},
		{"pod to a peer", "198.18.0.2", pod, "veil0"},
		{"pod to a peer, ipv6", "fd42:0:0:1::2", pod, "veil0"},
		{"pod to a node without a key", "198.18.0.4", pod, "unreachable"},
		{"pod to a node without a key, ipv6", "fd42:0:0:1::4", pod, "unreachable"},
		{"pod to its node", "198.18.0.1", pod, "lo"},
		{"pod to its node, ipv6", "fd42:0:0:1::1", pod, "lo"},
		{"pod to an untranslated service", "198.19.0.1", pod, "unreachable"},
		{"pod to outside", "198.18.5.5", pod, "under0"},
		{"pod to outside, ipv6", "fd42:9::1", pod, "under0"},
		{"host to a peer's pod", "198.18.130.9", 0, "veil0"},
		{"host to an unassigned pod address", "198.18.200.9", 0, "unreachable"},
		{"host to a service, before it is translated", "198.19.0.1", 0, "veil0"},
		{"host to a service, before it is translated, ipv6", "fd42:bbbb::1", 0, "veil0"},
		{"host to a node", "198.18.0.2", 0, "under0"},
		{"outer packet to a peer", "198.18.0.2", outer, "under0"},
		{"outer packet to an endpoint in a pod prefix", "198.18.130.9", outer, "unreachable"},
		{"outer packet to an endpoint in a pod prefix, ipv6", "fd42:aaaa:0:2::9", outer,
			"unreachable"},
		{"outer packet to a service address", "198.19.0.1", outer, "unreachable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := l.lookup(tt.dst, tt.mark); got != tt.want {
				t.Errorf("%s mark %#x goes to %s, want %s", tt.dst, tt.mark, got, tt.want)
			}
		})
	}

	for dst, want := range map[string]string{"198.18.130.9": "198.18.0.1",
		"fd42:aaaa:0:2::9": "fd42:0:0:1::1", "198.19.0.1": "198.18.0.1",
		"fd42:bbbb::1": "fd42:0:0:1::1"} {
		hop, err := nettest.Lookup(l.h, netip.MustParseAddr(dst), 0)
		errtest.Must(t, err)
		if hop.Source.String() != want {
			t.Errorf("source towards %s is %s, want %s", dst, hop.Source, want)
		}
	}
}

// TestRandomChangesOfPeersOpenNothing adds, removes and changes peers at random. After each op it
// checks that every packet that must not leave by the underlay before and after the change is still
// kept from it.
func TestRandomChangesOfPeersOpenNothing(t *testing.T) {
	l := newLab(t)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	last := Want{}
	for step := range 40 {
		w := randomWant(rng)
		keep := common(closed(last), closed(w))
		ops := Diff(l.read(), Plan(w))
		for i, op := range ops {
			if err := l.tryApply([]Op{op}); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			l.assertClosed(keep, fmt.Sprintf("step %d, after op %d of %d, %s", step, i, len(ops),
				op))
			if step > 0 {
				l.assertOuter(keep, fmt.Sprintf("step %d, after op %d of %d, %s", step, i, len(ops),
					op))
			}
		}
		l.assertIs(w)
		l.assertClosed(closed(w), fmt.Sprintf("after step %d", step))
		last = w
	}
}

func randomWant(rng *rand.Rand) Want {
	w := dual()
	w.Devices = append(w.Devices, TunnelDevice{Name: "veil1", MTU: 1400 + rng.IntN(20)})
	w.Peers, w.NodeAddrs = nil, nil

	for n := 2; n < 8; n++ {
		p := peer(n)
		switch rng.IntN(5) {
		case 0: // Not known.
		case 1: // Known, without a key.
			w.NodeAddrs = append(w.NodeAddrs, p.NodeAddrs...)
		default:
			p.Devices = []string{[]string{"veil0", "veil1"}[rng.IntN(2)]}
			p.MTU = []int{0, 0, 1300}[rng.IntN(3)]
			w.Peers = append(w.Peers, p)
			w.NodeAddrs = append(w.NodeAddrs, p.NodeAddrs...)
		}
	}

	if rng.IntN(3) == 0 {
		w.ClusterRanges = append(w.ClusterRanges, prefixes("198.18.64.0/18")...)
	}
	if rng.IntN(4) == 0 {
		w.ServiceRanges = prefixes("198.19.0.0/17", "fd42:bbbb::/104")
	}
	if rng.IntN(6) == 0 {
		w.Devices, w.Peers = nil, nil
	}

	w.Masquerade = rng.IntN(2) == 0
	w.ReflectMarks = rng.IntN(2) == 0
	shuffle(w.Peers)
	return w
}

// TestFailureAtEachStep makes each op fail once, alone and with all later ops. It checks that
// nothing opens, that the error names the op, and that the next apply repairs the state.
func TestFailureAtEachStep(t *testing.T) {
	boom := errors.New("boom")
	from := dual()
	to := dual()
	to.Devices = append(to.Devices, TunnelDevice{Name: "veil1", MTU: 1400})
	moved := peer(2)
	moved.Devices = []string{"veil1"}
	to.Peers = []Peer{moved, peer(4)} // 3 goes, 4 gets a key, 5 is new without one.
	to.NodeAddrs = append(append(peer(2).NodeAddrs, peer(4).NodeAddrs...), peer(5).NodeAddrs...)
	to.ClusterRanges = append(to.ClusterRanges, prefixes("198.18.64.0/18")...)
	to.Masquerade, to.ReflectMarks = false, true
	keep := common(closed(from), closed(to))

	l := newLab(t)
	l.apply(from)
	for _, crash := range []bool{false, true} {
		for i := 0; ; i++ {
			l.apply(from)
			ops := Diff(l.read(), Plan(to))
			if i == len(ops) {
				break
			}
			failed, seen := ops[i].String(), 0
			l.host.inject = func(op Op) error {
				seen++
				if seen-1 == i || crash && seen-1 > i {
					return boom
				}
				return nil
			}
			err := l.tryApply(ops)
			l.host.inject = nil
			if !errors.Is(err, boom) || !strings.Contains(err.Error(), failed) {
				t.Fatalf("op %d: error %v does not name %q", i, err, failed)
			}
			l.assertClosed(keep, fmt.Sprintf("failed op %d %s (and all that follow: %t)", i, failed,
				crash))
			l.assertOuter(keep, fmt.Sprintf("failed op %d %s", i, failed))
			l.apply(to)
			l.assertIs(to)
		}
	}
}

func TestRepairsWhatIsFlushedByHand(t *testing.T) {
	nettest.NeedProgram(t, "ip")
	nettest.NeedProgram(t, "nft")
	for _, tt := range []struct {
		name    string
		command string
		// open reports whether pods' packets may meet the underlay until the repair. Only the guard
		// covers that time.
		open bool
	}{
		{"tunnel down", "ip link set veil0 down", false},
		{"tunnel routes of pods", "ip route flush table 30309 metric 1024; ip -6 route flush " +
			"table 30309 metric 1024", false},
		{"tunnel routes of the host", "ip route flush table main metric 1024; ip -6 route flush " +
			"table main proto 118 metric 1024", false},
		{"table of pods", "ip route flush table 30309; ip -6 route flush table 30309", true},
		{"rules", "ip rule flush; ip rule add pref 32766 lookup main; ip -6 rule flush; ip -6 " +
			"rule add pref 32766 lookup main", true},
		{"masquerading", "nft delete table inet kubeveil_nat", false},
		{"a rule added to our nft table",
			"nft add rule inet kubeveil_nat postrouting counter accept", false},
		{"table of outer packets", "nft delete table inet kubeveil_outer", false},
		{"DF of outer packets", "nft flush chain inet kubeveil_outer output", false},
		{"device settings", "ip link set veil0 mtu 1300 group 0 txqueuelen 9", false},
		{"forwarding", "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 0 > " +
			"/proc/sys/net/ipv6/conf/all/forwarding", false},
		{"routes of our protocol that are not ours",
			"ip route add 198.18.250.0/24 via 198.18.0.253 dev under0 table 30309 proto 118; " +
				"ip route add 198.18.251.0/24 table 30309 proto 118 nexthop via " +
				"198.18.0.252 nexthop " +
				"via 198.18.0.253; " +
				"ip route add blackhole 198.18.252.0/24 table 30309 proto 118; ip -6 route add " +
				"fd42:dddd::/64 via fd42:0:0:1::fd dev under0 table 30309 proto 118", false},
		{"lo down and up", "ip link set lo down; ip link set lo up", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.apply(dual())
			l.shell(tt.command)

			// The cases with open set are the control, which shows that the test detects a leak.
			if tt.open && !l.leaks(closed(dual())) {
				t.Error("nothing leaves by the underlay though what closes was flushed")
			}
			if !tt.open {
				l.assertClosed(closed(dual()), "flushed")
			}
			if ops := l.apply(dual()); len(ops) == 0 {
				t.Error("nothing was repaired")
			}

			l.assertIs(dual())
			l.assertClosed(closed(dual()), "repaired")
		})
	}
}

// foreign lists the routes, rules and nft tables of other owners.
func (l *lab) foreign() string {
	l.t.Helper()
	var b strings.Builder
	for _, family := range []int{nl.FamilyV4, nl.FamilyV6} {
		routes, err := l.h.RouteListFiltered(family, &nl.Route{}, nl.FilterTable)
		errtest.Must(l.t, err)

		for _, r := range routes {
			// Routes of the kernel for addresses that appear by themselves are left out.
			if r.Protocol != abi.RouteProtoNode && r.Protocol != unix.RTPROT_KERNEL {
				fmt.Fprintln(&b, r)
			}
		}

		rules, err := l.h.RuleList(family)
		errtest.Must(l.t, err)

		for _, r := range rules {
			if r.Protocol != abi.RouteProtoNode {
				fmt.Fprintf(&b, "%+v\n", r)
			}
		}
	}

	l.ns.Run(l.t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := c.ListTables()
		for _, table := range tables {
			if table.Name != abi.NFTNatTable && table.Name != abi.NFTOuterTable {
				fmt.Fprintln(&b, table.Name, table.Family)
			}
		}
		return err
	})

	return b.String()
}

func TestForeignStateIsUntouched(t *testing.T) {
	l := newLab(t)
	l.shell(`
			ip route add 198.18.130.128/25 via 198.18.0.254 proto static
			ip route add 198.18.128.0/17 via 198.18.0.254 metric 77
			ip route add 198.18.131.5/32 dev veil1 table 30309 proto 119
			ip -6 route add fd42:aaaa:0:2::5/128 dev veil1 table 30309 proto 119
			ip route add 198.18.140.0/24 dev veil0 table 999 proto 118
			ip rule add pref 90 fwmark 0x4000/0x4000 lookup 999
			ip rule add pref 100 from 198.18.7.0/24 lookup 999
			ip -6 rule add pref 5000 lookup 999
			nft add table inet other`)

	before := l.foreign()
	l.apply(dual())
	if diff := cmp.Diff(before, l.foreign()); diff != "" {
		t.Errorf("foreign state after apply (-before +after):\n%s", diff)
	}

	var took []string
	l.ns.Run(t, func() (err error) {
		took, err = l.host.Remove()
		return err
	})
	if len(took) != len(Plan(dual()).Routes)+len(Plan(dual()).Rules)+2 {
		t.Errorf("remove took:\n%s", strings.Join(took, "\n"))
	}
	if diff := cmp.Diff(before, l.foreign()); diff != "" {
		t.Errorf("foreign state after remove (-before +after):\n%s", diff)
	}
	if s := l.read(); len(s.Routes)+len(s.Rules)+len(s.NAT)+len(s.Outer) > 0 {
		t.Errorf("remove left:\n%s", s)
	}

	l.ns.Run(t, func() (err error) {
		took, err = l.host.Remove()
		return err
	})
	if len(took) > 0 {
		t.Errorf("second remove took: %s", took)
	}
}

func TestForeignRouteInTheWayIsAnError(t *testing.T) {
	l := newLab(t)
	l.ns.Run(t, func() error {
		return exec.Command("ip", "-6", "route", "add", "fd42:aaaa:0:2::/64", "via",
			"fd42:0:0:1::fe", "metric", "1024").Run()
	})
	err := l.tryApply(Diff(l.read(), Plan(dual())))
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "fd42:aaaa:0:2::/64") {
		t.Fatalf("apply: %v, want an ErrForeign that names the route", err)
	}
	if got := l.lookup("198.18.130.9", abi.PodMark); got != "veil0" {
		t.Errorf("the rest was not applied: a peer's pod is %s", got)
	}
}

func TestMissingDeviceLeavesEverythingClosed(t *testing.T) {
	l := newLab(t)
	w := dual()
	w.Devices[0].Name = "veil9"
	for i := range w.Peers {
		w.Peers[i].Devices = []string{"veil9"}
	}
	err := l.tryApply(Diff(l.read(), Plan(w)))
	if !errors.Is(err, nl.ErrNotFound) || !strings.Contains(err.Error(), "veil9") {
		t.Fatalf("apply: %v, want one that names the missing device", err)
	}
	l.assertClosed(closed(w), "device missing")
	nettest.TUN(t, l.ns, "veil9")
	l.apply(w)
	l.assertIs(w)
}

func TestUnassignedSourceIsNamed(t *testing.T) {
	l := newLab(t)
	w := dual()
	w.SelfAddrs = addrs("198.18.0.77", "fd42:0:0:1::77")
	err := l.tryApply(Diff(l.read(), Plan(w)))
	if err == nil || !strings.Contains(err.Error(), "198.18.0.77 assigned") ||
		!strings.Contains(err.Error(), "fd42:0:0:1::77 assigned") {
		t.Fatalf("apply: %v, want an error that names the sources", err)
	}
	l.assertClosed(closed(w), "source missing")
	nettest.AddAddr(t, l.ns, "under0", prefixes("198.18.0.77/24", "fd42:0:0:1::77/64")...)
	l.apply(w)
	l.assertIs(w)
}
