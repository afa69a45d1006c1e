package guard

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

// published are addresses that others translate to pods: here to one of the peer, there to one of
// third. near and far are these pods, and preferred is this node's source.
var published = []struct{ here, there, near, far, preferred string }{
	{"198.19.240.5", "198.19.240.6", "198.18.9.9", "198.18.8.8", "198.19.0.91"},
	{"fd42:5::5", "fd42:5::6", "fd42:1:0:9::9", "fd42:1:0:8::8", "fd42:9::91"},
}

// TestPodsReachPodsByNodesWithMoreAddresses translates packets of pods to pods of other nodes.
// Other programs masquerade them to an address that peers do not accept. Each packet must come from
// an address that the peer accepts from this node.
func TestPodsReachPodsByNodesWithMoreAddresses(t *testing.T) {
	n := newRelay(t)
	s := n.settings()
	gateways := []string{"198.19.0.65", "fd42:9:1::2"}
	rules := "table inet services { chain pre { type nat hook prerouting priority -150; "
	for i, p := range published {
		far, own := addrs(p.far)[0], addrs(p.preferred)[0]
		nettest.AddAddr(t, n.third, "u1", netip.PrefixFrom(far, far.BitLen()))
		nettest.AddRoute(t, n.NS, netip.PrefixFrom(far, far.BitLen()), addrs(gateways[i])[0], "u1")
		nettest.AddAddr(t, n.NS, "u0", netip.PrefixFrom(own, own.BitLen()))
		s.SelfAddrs = append(s.SelfAddrs, own)

		via := []string{"198.19.0.1", "fd42:9::1"}[i]
		there := addrs(p.there)[0]
		nettest.AddRoute(t, n.peer, netip.PrefixFrom(there, there.BitLen()), addrs(via)[0], "u0")
		here := addrs(p.here)[0]
		nettest.AddRoute(t, n.pod, netip.PrefixFrom(here, here.BitLen()),
			addrs([]string{"198.18.5.1", "fd42:1::1"}[i])[0], "p0")
		family := []string{"ip", "ip6"}[i]
		rules += fmt.Sprintf("%[1]s daddr %[2]s dnat %[1]s to %[3]s; %[1]s daddr %[4]s dnat %[1]s "+
			"to %[5]s; ", family, p.here, p.near, p.there, p.far)
	}
	n.Run(t, func() error { return runNFT(rules + "}; }") })
	n.set(t, s)

	for i, p := range published {
		for _, c := range []struct {
			situation  string
			from       namespace
			at         *nettest.NS
			bound, to  string
			seen, want string
		}{
			{"this node's pod", n.pod, n.peer, "", p.here, p.near, relayed[i].own},
			{"another node's pod", n.peer, n.third, relayed[i].pod, p.there, p.far, p.preferred},
			{"another node's pod, not translated", n.peer, n.third, relayed[i].pod,
				relayed[i].third, relayed[i].third, relayed[i].pod},
		} {
			t.Run(c.situation+" to "+c.to, func(t *testing.T) {
				got := source(t, c.at, c.seen,
					func() error { return udp(c.from, c.bound, c.to, 0) })
				if got != c.want {
					t.Errorf("it sees %s, want %s", got, c.want)
				}
			})
		}
	}
}
