package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
)

// genPart returns w with other peers and node addresses, which often share an address or a prefix.
func genPart(t *rapid.T, w Want) Want {
	addrs := func(label string) []netip.Addr {
		out := rapid.SliceOfNDistinct(rapid.SampledFrom([]netip.Addr{
			netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.21"),
			netip.MustParseAddr("198.18.0.22"), netip.MustParseAddr("198.18.0.23"),
			netip.MustParseAddr("fd42::21"), netip.MustParseAddr("fd42::22"),
		}), 0, 3, rapid.ID[netip.Addr]).Draw(t, label)
		slices.SortFunc(out, netip.Addr.Compare)
		return out
	}

	w.Peers = nil
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 0, 5, rapid.ID[int]).Draw(t,
		"peers") {
		p := Peer{Name: fmt.Sprint("node-", n), NodeAddrs: addrs("addresses"),
			PodPrefixes: rapid.SliceOfNDistinct(rapid.SampledFrom([]netip.Prefix{
				netip.MustParsePrefix("198.18.130.0/24"), netip.MustParsePrefix("198.18.131.0/24"),
				netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("fd42:aaaa:0:2::/64"),
			}), 0, 2, rapid.ID[netip.Prefix]).Draw(t, "prefixes"),
			MTU: rapid.SampledFrom([]int{0, 1300}).Draw(t, "mtu")}
		if rapid.IntRange(0, 4).Draw(t, "reachable") > 0 {
			p.Devices = []string{"veil0"}
		}
		w.Peers = append(w.Peers, p)
	}
	slices.SortFunc(w.Peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	w.NodeAddrs = addrs("node addresses")
	return w
}

// genOthers returns w with other fields besides the peers and node addresses. Some of their
// addresses and ranges are a peer's addresses and prefixes.
func genOthers(t *rapid.T, w Want) Want {
	ranges := func(label string, of ...string) (out []netip.Prefix) {
		for _, r := range prefixes(of...) {
			if rapid.Bool().Draw(t, label) {
				out = append(out, r)
			}
		}
		return out
	}
	w.Devices = rapid.SampledFrom([][]TunnelDevice{nil, {{Name: "veil0", MTU: 1420}},
		{{Name: "veil0"}, {Name: "veil1", MTU: 1300}}}).Draw(t, "devices")
	w.ClusterRanges = ranges("cluster range", "198.18.128.0/17", "fd42:aaaa::/32")
	w.ServiceRanges = ranges("service range", "198.19.0.0/16", "203.0.113.0/28", "fd42:bbbb::/108")
	w.ClosedRanges = ranges("closed range", "198.18.0.22/32", "198.18.130.0/24", "169.254.0.0/16",
		"fe80::/10")
	w.SelfAddrs = nil
	for _, a := range addrs("198.18.0.1", "198.18.0.23", "fd42::21") {
		if rapid.Bool().Draw(t, "self") {
			w.SelfAddrs = append(w.SelfAddrs, a)
		}
	}
	w.Masquerade = rapid.Bool().Draw(t, "masquerade")
	w.ReflectMarks = rapid.Bool().Draw(t, "reflect marks")
	w.Flowtable = rapid.Bool().Draw(t, "flowtable")
	w.TunnelPort = rapid.SampledFrom([]int{0, 51820, 51821}).Draw(t, "port")
	return w
}

// Plan and Diff of everything are the oracle of what is planned for changed peers alone.
func TestPlanOfChangedPeersEqualsPlanOfAll(t *testing.T) {
	alone, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := dual()
		if rapid.Bool().Draw(t, "one family") {
			w.ClusterRanges, w.ServiceRanges = prefixes("198.18.128.0/17"), nil
			w.SelfAddrs = nil
		}
		w = genPart(t, w)
		h := &Host{have: &State{Routes: Plan(w).Routes}}
		for range 20 {
			next := genPart(t, w)
			if rapid.IntRange(0, 2).Draw(t, "keeps") > 0 { // most peers
				next.Peers = slices.Clone(w.Peers)
				if len(next.Peers) > 0 {
					next.Peers[0].MTU = 1300 - next.Peers[0].MTU
				}
			}

			if rapid.IntRange(0, 4).Draw(t, "others change") == 0 {
				next = genOthers(t, next)
			}

			was, is := Plan(w), Plan(next)
			all++
			ops, routes, ok := h.planPart(w, next)
			if ok {
				alone++
				same := next
				same.Peers, same.NodeAddrs = w.Peers, w.NodeAddrs
				if !same.equal(w) {
					t.Fatalf("planned for few peers, although more changed from\n%+v\nto\n%+v", w,
						next)
				}
			} else {
				h.destinations = nil
				ops, routes = Diff(was, is), is.Routes
			}
			if !slices.Equal(routes, is.Routes) {
				t.Fatalf("from %+v\nto %+v:\n%v\nwant\n%v", w, next, routes, is.Routes)
			}
			if got, want := fmt.Sprint(ops), fmt.Sprint(Diff(was, is)); got != want {
				t.Fatalf("from %+v\nto %+v:\n%s\nwant\n%s", w, next, got, want)
			}
			h.have.Routes, w = routes, next
		}
	})
	if t.Logf("%d of %d plans of changed peers alone", alone, all); 10*alone < all {
		t.Errorf("%d of %d plans of changed peers alone: the test shows little", alone, all)
	}
}

// BenchmarkOneMovedPeer measures the plan of routes after one peer of 10,000 moved.
func BenchmarkOneMovedPeer(b *testing.B) {
	const n = 10000
	with := func(moved, place int) Want {
		w := dual()
		w.ClusterRanges = prefixes("100.64.0.0/10", "fd42:aaaa::/32")
		w.Peers, w.NodeAddrs = nil, nil
		for i := range n {
			at := i
			if i == moved {
				at = place
			}
			a := netip.AddrFrom4([4]byte{198, 18, byte(at / 250), byte(1 + at%250)})
			pods := netip.AddrFrom4([4]byte{100, byte(64 + at/256), byte(at), 0})
			w.Peers = append(w.Peers, Peer{Name: fmt.Sprintf("node-%05d", i),
				Devices: []string{"veil0"}, NodeAddrs: []netip.Addr{a},
				PodPrefixes: []netip.Prefix{netip.PrefixFrom(pods, 24),
					netip.MustParsePrefix(fmt.Sprintf("fd42:aaaa:0:%x::/64", at))}})
			w.NodeAddrs = append(w.NodeAddrs, a)
		}
		slices.SortFunc(w.NodeAddrs, netip.Addr.Compare)
		return w
	}
	wants := []Want{with(500, n), with(500, n+1)}
	routes := [][]rtnetlink.Route{Plan(wants[0]).Routes, Plan(wants[1]).Routes}

	b.Run("all", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			diffRoutes(routes[i%2], Plan(wants[1-i%2]).Routes)
		}
	})
	b.Run("changed", func(b *testing.B) {
		h := &Host{have: &State{Routes: routes[0]}}
		for i := 0; b.Loop(); i++ {
			ops, next, ok := h.planPart(wants[i%2], wants[1-i%2])
			if !ok || len(ops) == 0 {
				b.Fatalf("%d changes of changed peers alone: %t", len(ops), ok)
			}
			h.have.Routes = next
		}
	})
}
