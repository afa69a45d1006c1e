package hostnet

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

// lab is a node with two tunnel devices and an underlay link. The default routes use the underlay
// link, so that packets that are not closed leave by it.
//
//	veil0, veil1 (TUN)
//	under0 198.18.0.1/24 fd42:0:0:1::1/64 ── router 198.18.0.254 fd42:0:0:1::fe
type lab struct {
	t    testing.TB
	ns   *nettest.NS
	host *Host
	h    *nl.Handle
	// router is at the other end of the underlay link.
	router *nettest.NS
}

func newLab(t testing.TB) *lab {
	t.Helper()
	ns, router := nettest.NewNS(t), nettest.NewNS(t)
	nettest.Veth(t,
		nettest.End{NS: ns, Name: "under0", MTU: 1500,
			Addrs: prefixes("198.18.0.1/24", "fd42:0:0:1::1/64")},
		nettest.End{NS: router, Name: "router0", MTU: 1500,
			Addrs: prefixes("198.18.0.254/24", "fd42:0:0:1::fe/64")})
	nettest.AddRoute(t, ns, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("198.18.0.254"),
		"under0")
	nettest.AddRoute(t, ns, netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd42:0:0:1::fe"),
		"under0")
	nettest.TUN(t, ns, "veil0")
	nettest.TUN(t, ns, "veil1")
	l := &lab{t: t, ns: ns, h: ns.Handle(), router: router}
	ns.Run(t, func() (err error) {
		l.host, err = Open()
		return err
	})
	t.Cleanup(l.host.Close)
	return l
}

func (l *lab) read() State {
	l.t.Helper()
	var s State
	l.ns.Run(l.t, func() (err error) {
		s, err = l.host.Read()
		return err
	})
	return s
}

func (l *lab) tryApply(ops []Op) error {
	return l.ns.Do(func() error { return l.host.Apply(ops) })
}

// apply brings the kernel to w and returns what was done.
func (l *lab) apply(w Want) []Op {
	l.t.Helper()
	ops := Diff(l.read(), Plan(w))
	errtest.Must(l.t, l.tryApply(ops))
	return ops
}

// sync is like apply, but uses Sync.
func (l *lab) sync(w Want) (ops []Op) {
	l.t.Helper()
	l.ns.Run(l.t, func() (err error) {
		ops, err = l.host.Sync(Plan(w))
		return err
	})
	return ops
}

// assertIs fails the test when the kernel differs from w.
func (l *lab) assertIs(w Want) {
	l.t.Helper()
	have, want := l.read(), Plan(w)
	if ops := Diff(have, want); len(ops) > 0 {
		l.t.Fatalf("still to do: %s\nhave:\n%s", ops, have)
	}
	want.Devices = have.Devices // Diff has compared those that are wanted.
	if diff := cmp.Diff(want.String(), have.String()); diff != "" {
		l.t.Fatalf("the kernel is not as planned (-want +have):\n%s", diff)
	}
}

// probe is a packet that must not leave by the underlay.
type probe struct {
	dst  netip.Addr
	mark uint32
}

// closed returns packets that w must keep from the underlay.
func closed(w Want) map[probe]bool {
	out := map[probe]bool{}
	both := func(p netip.Prefix) {
		a := p.Addr().Next().Next()
		out[probe{a, 0}] = true
		out[probe{a, abi.PodMark}] = true
	}

	for _, r := range w.ClusterRanges {
		both(r)
	}

	for _, r := range w.ServiceRanges {
		both(r)
	}

	if slices.ContainsFunc(w.ClusterRanges, func(r netip.Prefix) bool { return r.Addr().Is4() }) {
		out[probe{netip.MustParseAddr(abi.PodGateway4), abi.PodMark}] = true
		out[probe{netip.MustParseAddr(abi.TunnelAddress4), abi.PodMark}] = true
	}

	for _, r := range w.ClosedRanges {
		out[probe{r.Addr().Next().Next(), abi.PodMark}] = true
	}

	for _, peer := range w.Peers {
		for _, p := range peer.PodPrefixes {
			both(p)
		}
		for _, a := range peer.NodeAddrs {
			out[probe{a, abi.PodMark}] = true
		}
	}

	for _, a := range w.NodeAddrs {
		out[probe{a, abi.PodMark}] = true
	}
	return out
}

// common returns the packets that are in both a and b.
func common(a, b map[probe]bool) map[probe]bool {
	out := map[probe]bool{}
	for p := range a {
		if b[p] {
			out[p] = true
		}
	}
	return out
}

// leak finds a probe that would leave by the underlay.
func (l *lab) leak(probes map[probe]bool) (p probe, hop nettest.Hop, found bool) {
	l.t.Helper()
	for p := range probes {
		hop, err := nettest.Lookup(l.h, p.dst, p.mark)
		errtest.Must(l.t, err)
		if hop.Device == "under0" {
			return p, hop, true
		}
	}
	return p, hop, false
}

// leaks reports whether a probe would leave by the underlay.
func (l *lab) leaks(probes map[probe]bool) bool {
	l.t.Helper()
	_, _, found := l.leak(probes)
	return found
}

// assertClosed fails the test when a probe would leave by the underlay.
func (l *lab) assertClosed(probes map[probe]bool, when string) {
	l.t.Helper()
	if p, hop, found := l.leak(probes); found {
		l.t.Fatalf("%s: %s mark %#x leaves in clear: %s\n%s", when, p.dst, p.mark, hop, l.read())
	}
}

// assertOuter fails the test when an outer packet to any address would enter a tunnel.
func (l *lab) assertOuter(probes map[probe]bool, when string) {
	l.t.Helper()
	for p := range probes {
		hop, err := nettest.Lookup(l.h, p.dst, abi.TunnelMark)
		errtest.Must(l.t, err)
		if strings.HasPrefix(hop.Device, "veil") {
			l.t.Fatalf("%s: an outer packet to %s enters a tunnel: %s", when, p.dst, hop)
		}
	}
}

// lookup returns where a packet would go: a device's name or "unreachable".
func (l *lab) lookup(dst string, mark uint32) string {
	l.t.Helper()
	hop, err := nettest.Lookup(l.h, netip.MustParseAddr(dst), mark)
	errtest.Must(l.t, err)
	if hop.Unreachable {
		return "unreachable"
	}
	return hop.Device
}

// peer returns peer number n (2 to 99), dual-stack.
func peer(n int) Peer {
	return Peer{
		Name: fmt.Sprintf("node-%d", n),
		PodPrefixes: prefixes(fmt.Sprintf("198.18.%d.0/24", 128+n),
			fmt.Sprintf("fd42:aaaa:0:%x::/64", n)),
		NodeAddrs: addrs(fmt.Sprintf("198.18.0.%d", n), fmt.Sprintf("fd42:0:0:1::%x", n)),
		Devices:   []string{"veil0"},
	}
}

// dual returns the Want of a dual-stack cluster with peers 2 and 3, and node 4 that has no key yet.
func dual() Want {
	narrow := peer(3)
	narrow.MTU = 1300
	return Want{
		Devices:       []TunnelDevice{{Name: "veil0", MTU: 1420}},
		Peers:         []Peer{peer(2), narrow},
		ClusterRanges: prefixes("198.18.128.0/17", "fd42:aaaa::/32"),
		ServiceRanges: prefixes("198.19.0.0/16", "fd42:bbbb::/108"),
		NodeAddrs: append(append(peer(2).NodeAddrs, peer(3).NodeAddrs...),
			peer(4).NodeAddrs...),
		SelfAddrs:  addrs("198.18.0.1", "fd42:0:0:1::1"),
		Masquerade: true,
		TunnelPort: 51820,
	}
}

// only returns w restricted to the family.
func only(w Want, v6 bool) Want {
	keepP := func(in []netip.Prefix) (out []netip.Prefix) {
		for _, p := range in {
			if p.Addr().Is6() == v6 {
				out = append(out, p)
			}
		}
		return out
	}
	keepA := func(in []netip.Addr) (out []netip.Addr) {
		for _, a := range in {
			if a.Is6() == v6 {
				out = append(out, a)
			}
		}
		return out
	}
	w.ClusterRanges, w.ServiceRanges = keepP(w.ClusterRanges), keepP(w.ServiceRanges)
	w.NodeAddrs, w.SelfAddrs = keepA(w.NodeAddrs), keepA(w.SelfAddrs)
	var peers []Peer
	for _, p := range w.Peers {
		p.PodPrefixes, p.NodeAddrs = keepP(p.PodPrefixes), keepA(p.NodeAddrs)
		peers = append(peers, p)
	}
	w.Peers = peers
	return w
}

var prefixes, addrs = nettest.Prefixes, nettest.Addrs
