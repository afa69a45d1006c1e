package guard

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// relay is a node between two others, with tunnels to both and a pod:
//
//	peer u0 ── u0 (tunnel) host u1 (tunnel) ── u1 third
//	198.19.0.2 fd42:9::2                       198.19.0.65 fd42:9:1::2
//
// The peer has a pod, 198.18.9.9 fd42:1:0:9::9. Other programs translate the host's own addresses
// to third's address, and masquerade.
type relay struct {
	tunnelled
	third *nettest.NS
}

func (n relay) settings() Settings {
	s := lab()
	s.NodeAddrs = append(s.NodeAddrs, addrs("198.19.0.65", "fd42:9:1::2")...)
	s.PodPrefixes = prefixes("198.18.7.0/24", "fd42:1:0:7::/64")
	return s
}

func newRelay(t *testing.T) relay {
	t.Helper()
	n := relay{newTunnelled(t), nettest.NewNS(t)}
	withoutDAD(t, n.third)

	nettest.Veth(t, nettest.End{NS: n.NS, Name: "u1",
		Addrs: prefixes("198.19.0.64/31", "fd42:9:1::1/64")},
		nettest.End{NS: n.third, Name: "u1", Addrs: prefixes("198.19.0.65/31", "fd42:9:1::2/64")})
	nettest.AddAddr(t, n.third, "u1", prefixes("198.19.0.77/32", "fd42:9:1::77/128")...)
	nettest.AddAddr(t, n.peer, "u0", prefixes("198.18.9.9/32", "fd42:1:0:9::9/128")...)

	for _, r := range []struct {
		ns            *nettest.NS
		dst, gw, link string
	}{
		{n.NS, "198.18.9.9/32", "198.19.0.2", "u0"}, {n.NS, "fd42:1:0:9::9/128", "fd42:9::2", "u0"},
		{n.NS, "198.19.0.77/32", "198.19.0.65", "u1"},
		{n.peer, "198.19.0.65/32", "198.19.0.1", "u0"},
		{n.peer, "198.19.0.77/32", "198.19.0.1", "u0"},
		{n.peer, "fd42:9:1::/64", "fd42:9::1", "u0"},
	} {
		nettest.AddRoute(t, r.ns, netip.MustParsePrefix(r.dst), netip.MustParseAddr(r.gw), r.link)
	}

	for _, name := range []string{"ipv4/conf/all/rp_filter", "ipv4/conf/u1/rp_filter"} {
		nettest.Sysctl(t, n.third, name, "0")
	}

	n.Run(t, func() error {
		if err := setGroup("u1", abi.TunnelGroup); err != nil {
			return err
		}
		return runNFT("table inet others { chain post { type nat hook postrouting priority 100; " +
			"oifname { u0, u1 } masquerade; }; " +
			"chain pre { type nat hook prerouting priority -100; ip daddr 198.19.0.1 dnat ip to " +
			"198.19.0.65; ip6 daddr fd42:9::1 dnat ip6 to fd42:9:1::2; }; }")
	})
	n.set(t, n.settings())

	return n
}

func (n relay) set(t *testing.T, s Settings) {
	t.Helper()
	n.Run(t, func() error {
		_, err := n.g.Apply(s)
		return err
	})
}

// relayed lists the packets to send from the peer's pod and this node's pod, and their
// destinations.
var relayed = []struct{ pod, own, host, third, elsewhere, self, hostThere string }{
	{"198.18.9.9", "198.18.5.5", "198.19.0.1", "198.19.0.65", "198.19.0.77", "198.18.7.1",
		"198.19.0.64"},
	{"fd42:1:0:9::9", "fd42:1::5", "fd42:9::1", "fd42:9:1::2", "fd42:9:1::77", "fd42:1:0:7::1",
		"fd42:9:1::1"},
}

// A packet of another node's pod that other programs translate to a node is sent from self, so that
// the reply comes back by the tunnel. No other packet is sent from self.
func TestWhatIsTranslatedToANodeIsSentFromSelf(t *testing.T) {
	n := newRelay(t)
	for _, f := range relayed {
		for _, c := range []struct {
			situation string
			ns        namespace
			from, to  string
			at, want  string
		}{
			{"another node's pod", n.peer, f.pod, f.host, f.third, f.self},
			{"another node's pod, not translated", n.peer, f.pod, f.third, f.third, f.pod},
			{"another node's pod, to no node's address", n.peer, f.pod, f.elsewhere, f.elsewhere,
				f.hostThere},
			{"this node's pod", n.pod, "", f.host, f.third, f.own},
		} {
			t.Run(fmt.Sprintf("%s to %s", c.situation, c.to), func(t *testing.T) {
				got := source(t, n.third, c.at, func() error { return udp(c.ns, c.from, c.to, 0) })
				if got != c.want {
					t.Errorf("it sees %s, want %s", got, c.want)
				}
			})
		}
	}
}

// Settings without pod prefixes keep self, and other settings change it. Without any, the source is
// kept: peers refuse it.
func TestSelfStaysUntilItIsKnown(t *testing.T) {
	n := newRelay(t)
	unknown, moved, none := n.settings(), n.settings(), n.settings()
	unknown.PodPrefixes = nil
	moved.PodPrefixes = prefixes("198.18.6.0/24", "fd42:1:0:6::/64")
	none.PodPrefixes = []netip.Prefix{}
	seen := func(situation string, want func(i int) string) {
		t.Helper()
		for i, f := range relayed {
			got := source(t, n.third, f.third,
				func() error { return udp(n.peer, f.pod, f.host, 0) })
			if got != want(i) {
				t.Errorf("%s: it sees %s, want %s", situation, got, want(i))
			}
		}
	}
	n.set(t, unknown)
	seen("unknown after known", func(i int) string { return relayed[i].self })
	n.set(t, moved)
	seen("moved", func(i int) string { return []string{"198.18.6.1", "fd42:1:0:6::1"}[i] })

	// A datagram from the port of an earlier one would have the source of that flow.
	n.Run(t, nettest.ForgetConnections)
	n.Run(t, func() error { return runNFT("delete table inet kubeveil_guard") })
	n.set(t, unknown)
	seen("never known", func(i int) string { return relayed[i].pod })
	n.set(t, moved)
	n.set(t, none)
	seen("none", func(i int) string { return relayed[i].pod })
}

// Where the rule is missing and another program sets this node's address as source, the packet does
// not leave.
func TestPacketsNotSentFromSelfStayHere(t *testing.T) {
	n := newRelay(t)
	n.Run(t, func() error { return runNFT("flush chain inet kubeveil_guard keep_source") })
	for _, f := range relayed {
		before := n.counters(t)[chains.Translated]
		nettest.Until(t, patience, "a packet to "+f.host+" is counted", func() bool {
			errtest.Must(t, udp(n.peer, f.pod, f.host, 0))
			return n.counters(t)[chains.Translated] > before
		})
	}
}
