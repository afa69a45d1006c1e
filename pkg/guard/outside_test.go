package guard

import (
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// outsideCases are rules of other programs for what another node sends to a host outside by way of
// this node.
var outsideCases = []struct{ name, rules string }{
	{"routed", ""},
	{"not known to connection tracking",
		"table inet others { chain c { type filter hook prerouting " +
			"priority -350; iifname t0 notrack; }; }"},
	{"with its mark overwritten", "table inet others { chain c { type filter hook forward " +
		"priority 0; iifname t0 meta mark set 1; }; }"},
}

// A peer does not reach the networks of this node by its tunnel.
func TestWhatComesOutOfATunnelStaysInTheCluster(t *testing.T) {
	for _, c := range outsideCases {
		t.Run(c.name, func(t *testing.T) {
			n := newLeaving(t)
			if c.rules != "" {
				n.Run(t, func() error { return runNFT(c.rules) })
			}
			onWire := n.wire(t)
			for i, e := range leavingEnds {
				from := []string{"198.19.9.2", "fd42:99::2"}[i] // a process of the other node
				before := n.counters(t)[chains.TunnelToOutside]
				nettest.Until(t, patience, "a datagram to "+e.outside+" is counted", func() bool {
					errtest.Must(t, udp(n.far, from, e.outside, 0))
					return n.counters(t)[chains.TunnelToOutside] > before
				})
			}
			if onWire("kubeveil") {
				t.Error("a datagram left")
			}
		})
	}
}

// A node's port may have an endpoint outside, also for other nodes' pods, and serve clients
// outside.
func TestServicesOfTheNodeCrossItsTunnels(t *testing.T) {
	n := newLeaving(t)
	n.serve(t, outsideOf)
	for i, e := range leavingEnds {
		t.Run(e.name, func(t *testing.T) {
			n.connect(t, n.far, e.far, e.service)

			family, own := []string{"ip", "ip6"}[i], podAndNode[i].self
			n.Run(t, func() error {
				return runNFT(fmt.Sprintf("add rule inet services c %s daddr %s dnat %s to %s", family,
					own, family, e.far))
			})
			n.connect(t, n.peer, e.outside, own)
		})
	}
	if dropped := n.counters(t)[chains.TunnelToOutside]; dropped > 0 {
		t.Errorf("%d packets dropped", dropped)
	}
}
