package guard

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// tunnelled is a node whose cable u0 is its tunnel to another node, with a pod:
//
//	pod p0 198.18.5.5 fd42:1::5 ── p0 host u0 (tunnel) ── u0 peer
type tunnelled struct {
	*node
	pod *nettest.NS
}

func newTunnelled(t *testing.T) tunnelled {
	t.Helper()
	needTCX(t)
	n := tunnelled{node: newNode(t, tcx)}
	n.pod = n.addPod(t)
	for _, name := range []string{"ipv4/conf/all/rp_filter", "ipv4/conf/u0/rp_filter"} {
		nettest.Sysctl(t, n.peer, name, "0")
	}
	n.Run(t, func() error { return setGroup("u0", abi.TunnelGroup) })
	n.apply(t)
	return n
}

func runNFT(rules string) error { return nettest.Command("nft", rules) }

// masquerade makes other programs translate, at this priority.
func (n tunnelled) masquerade(t *testing.T, priority string) {
	t.Helper()
	n.Run(t, func() error {
		return runNFT("table inet others { chain c { type nat hook postrouting priority " + priority +
			"; oifname u0 masquerade; }; }")
	})
}

// arrives sends from the pod to the peer and returns the source that the peer sees.
func (n tunnelled) arrives(t *testing.T, to string) string {
	t.Helper()
	return source(t, n.peer, to, func() error { return udp(n.pod, "", to, 0) })
}

// source returns the source of a packet that its receiver sees.
func source(t *testing.T, ns *nettest.NS, to string, send func() error) string {
	t.Helper()
	var c *net.UDPConn
	ns.Run(t, func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(to), Port: 7777})
		return err
	})
	defer c.Close()
	errtest.Must(t, send())
	errtest.Must(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, from, err := c.ReadFromUDPAddrPort(make([]byte, 64))
	if err != nil {
		t.Fatalf("packet to %s: %v", to, err)
	}
	return from.Addr().Unmap().String()
}

var podAndNode = []struct{ pod, node, self, elsewhere string }{
	{"198.18.5.5", "198.19.0.2", "198.19.0.1", "198.19.0.77"},
	{"fd42:1::5", "fd42:9::2", "fd42:9::1", "fd42:9::77"},
}

// No rule can translate the source of a pod's packet to a node.
func TestPodKeepsItsSourceTowardsNodes(t *testing.T) {
	n := newTunnelled(t)
	n.masquerade(t, "100")
	for _, f := range podAndNode {
		if got := n.arrives(t, f.node); got != f.pod {
			t.Errorf("the node sees %s, want %s", got, f.pod)
		}
		// Towards an address of no node they may: a pod answers inside.
		nettest.AddAddr(t, n.peer, "u0", netip.PrefixFrom(netip.MustParseAddr(f.elsewhere),
			netip.MustParseAddr(f.elsewhere).BitLen()))
		if got := n.arrives(t, f.elsewhere); got != f.self {
			t.Errorf("another sees %s, want %s", got, f.self)
		}
	}
}

// If another program translates the source in spite of the rules, the packet does not enter the
// tunnel.
func TestTranslatedSourceDoesNotReachANode(t *testing.T) {
	n := newTunnelled(t)
	n.masquerade(t, "80")
	for _, f := range podAndNode {
		n.loses(t, "a translated packet to "+f.node, chains.Translated, n.pod, f.node, 0)
	}
	// The node's own packets, probes among them, may carry the mark.
	for _, f := range podAndNode {
		before := n.counters(t)[chains.Translated]
		if err := udp(n, "", f.node, abi.PodMark); err != nil ||
			n.counters(t)[chains.Translated] != before {
			t.Errorf("the node's own packet to %s was dropped: %v", f.node, err)
		}
	}
}

// A pod's packet keeps its own source, in a flow to a service or not; so does a packet of a client
// outside.
func TestServedPacketsOfPodsHaveTheirSource(t *testing.T) {
	n := newTunnelled(t)
	client := nettest.NewNS(t)
	nettest.Veth(t, nettest.End{NS: n.NS, Name: "c0",
		Addrs: prefixes("198.19.77.1/24", "fd42:77::1/64")},
		nettest.End{NS: client, Name: "c0", Addrs: prefixes("198.19.77.2/24", "fd42:77::2/64")})

	for to, gw := range map[string]string{"198.19.0.0/24": "198.19.77.1",
		"fd42:9::/64": "fd42:77::1"} {
		nettest.AddRoute(t, client, netip.MustParsePrefix(to), netip.MustParseAddr(gw), "c0")
	}

	n.apply(t)
	mark := func(link string) string {
		return fmt.Sprintf("table inet served { chain c { type filter hook prerouting priority "+
			"-200; iifname %s meta mark set meta mark | %#x; }; }",
			link, abi.ServiceMark|abi.PodMark)
	}
	n.Run(t, func() error { return runNFT(mark("c0")) })

	for i, f := range podAndNode {
		from := tunnelled{node: n.node, pod: client}
		if got, want := from.arrives(t, f.node),
			[]string{"198.19.77.2", "fd42:77::2"}[i]; got != want {
			t.Errorf("the node sees %s, want the client %s", got, want)
		}
	}

	n.Run(t, func() error { return runNFT("delete table inet served; " + mark("p0")) })
	n.masquerade(t, "80")
	for _, f := range podAndNode {
		n.loses(t, "a translated packet of a flow to "+f.node, chains.Translated, n.pod, f.node, 0)
	}
}

// Packets out of a tunnel are routed like packets of pods.
func TestWhatComesOutOfATunnelIsMarked(t *testing.T) {
	n := newTunnelled(t)
	n.Run(t, func() error {
		return runNFT("table inet count { counter marked { }; chain c { type filter hook prerouting " +
			"priority -200; iifname u0 meta mark & 0x100000 != 0 udp dport 7777 counter name " +
			"marked drop; }; }")
	})
	for i, f := range podAndNode {
		errtest.Must(t, udp(n.peer, "", f.self, 0))
		nettest.Until(t, patience, "packet to "+f.self+" is marked", func() bool {
			out := n.Exec(t, "nft", "list", "counter", "inet", "count", "marked")
			return strings.Contains(out, fmt.Sprintf("packets %d ", i+1))
		})
	}
}
