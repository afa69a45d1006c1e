package guard

import (
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// ownSources are two addresses that peers take packets of the host from, and one at the tunnel that
// they do not: the kernel's choice when masquerading.
var ownSources = []struct{ preferred, second, other, peer string }{
	{"198.19.0.91", "198.19.0.92", "198.19.0.1", "198.19.0.77"},
	{"fd42:9::91", "fd42:9::92", "fd42:9::1", "fd42:9::77"},
}

// TestHostsPacketsHaveAnOwnSource masquerades packets that the host sends and forwards into a
// tunnel.
func TestHostsPacketsHaveAnOwnSource(t *testing.T) {
	n := newTunnelled(t)
	client := nettest.NewNS(t)
	nettest.Veth(t,
		nettest.End{NS: n.NS, Name: "c0", Addrs: prefixes("198.19.77.1/24", "fd42:77::1/64")},
		nettest.End{NS: client, Name: "c0", Addrs: prefixes("198.19.77.2/24", "fd42:77::2/64")})

	s := lab()
	for i, o := range ownSources {
		for _, a := range addrs(o.preferred, o.second) {
			nettest.AddAddr(t, n.NS, "u0", netip.PrefixFrom(a, a.BitLen()))
			s.SelfAddrs = append(s.SelfAddrs, a)
		}
		peer := addrs(o.peer)[0]
		nettest.AddAddr(t, n.peer, "u0", netip.PrefixFrom(peer, peer.BitLen()))
		gw := addrs([]string{"198.19.77.1", "fd42:77::1"}[i])[0]
		nettest.AddRoute(t, client, netip.PrefixFrom(peer, peer.BitLen()), gw, "c0")
	}

	apply := func(s Settings) {
		t.Helper()
		n.Run(t, func() error {
			_, err := n.g.Apply(s)
			return err
		})
	}
	apply(s)
	n.masquerade(t, "100")
	check := func(situation string, from namespace, bound, to, want string) {
		t.Helper()
		if got := source(t, n.peer, to, func() error { return udp(from, bound, to, 0) }); got !=
			want {
			t.Errorf("%s: the peer sees %s, want %s", situation, got, want)
		}
	}

	for i, o := range ownSources {
		check("the preferred source", n, o.preferred, o.peer, o.preferred)
		check("another own source", n, o.second, o.peer, o.second)
		check("a source that is not own", n, o.other, o.peer, o.preferred)
		check("a client outside", client, "", o.peer, o.preferred)
		check("a pod to a node", n.pod, "", podAndNode[i].node, podAndNode[i].pod)
	}

	unknown := s
	unknown.SelfAddrs = nil
	apply(unknown)

	for _, o := range ownSources {
		check("not known any more", n, o.other, o.peer, o.preferred)
	}

	unknown.SelfAddrs = []netip.Addr{}
	apply(unknown)
	for _, o := range ownSources {
		// The control: the kernel's choice for the masquerade is another.
		got := source(t, n.peer, o.peer, func() error { return udp(client, "", o.peer, 0) })
		if got == o.preferred {
			t.Errorf("without own addresses the peer sees %s all the same", got)
		}
	}
}
