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

// marking are rules of other programs that overwrite marks, before and after routing.
var marking = map[string]string{
	"wg-quick": "type filter hook prerouting priority -150; meta l4proto udp meta mark " +
		"set ct mark;",
	"mark 1": "type filter hook prerouting priority -150; meta mark set 1;",
	"tunnels' mark": fmt.Sprintf("type filter hook prerouting priority -150; meta mark set %#x;",
		abi.TunnelMark),
	"mark 1 when forwarded": "type filter hook forward priority -150; meta mark set 1;",
	"tunnels' mark when forwarded": fmt.Sprintf(
		"type filter hook forward priority -150; meta mark set %#x;", abi.TunnelMark),
}

// TestForeignMarkHidesNoPod masquerades a pod's packets whose mark another program overwrote: none
// leaves towards a node by the uplink.
func TestForeignMarkHidesNoPod(t *testing.T) {
	needTCX(t)
	for name, rules := range marking {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, tcx)
			pod := n.addPod(t)
			n.Run(t, func() error {
				return runNFT("table inet others { chain m { " + rules + " }; " +
					"chain p { type nat hook postrouting priority 100; oifname u0 masquerade; }; }")
			})
			for _, f := range podAndNode {
				n.loses(t, "a pod's packet to "+f.node, "pod_to_node", pod, f.node, 0)
			}
		})
	}
}

// TestForeignMarkKeepsThePodsSource sends a pod's packets to a node by the tunnel.
func TestForeignMarkKeepsThePodsSource(t *testing.T) {
	for name, rules := range marking {
		t.Run(name, func(t *testing.T) {
			n := newTunnelled(t)
			n.Run(t, func() error { return runNFT("table inet marks { chain m { " + rules + " }; }") })
			n.masquerade(t, "100")
			for _, f := range podAndNode {
				if got := n.arrives(t, f.node); got != f.pod {
					t.Errorf("the node sees %s, want %s", got, f.pod)
				}
			}
			n.Run(t, func() error { return runNFT("delete table inet others") })
			n.masquerade(t, "80")
			for _, f := range podAndNode {
				n.loses(t, "a translated packet to "+f.node, chains.Translated, n.pod, f.node, 0)
			}
		})
	}
}

// TestLostMarkIsRestoredAndCounted checks packets of a pod and of a tunnel behind before_routing.
func TestLostMarkIsRestoredAndCounted(t *testing.T) {
	n := newTunnelled(t)
	n.Run(t, func() error {
		return runNFT(fmt.Sprintf("table inet others { "+
			"chain m { type filter hook prerouting priority -150; meta mark set %#x; }; "+
			"counter p0 { }; counter u0 { }; "+
			"chain c { type filter hook prerouting priority 1001; udp dport 7777 "+
			"meta mark & 0x300000 == 0x100000 counter name meta iifname map { p0 : p0, u0 : "+
			"u0 }; }; }", abi.TunnelMark))
	})
	for _, f := range podAndNode {
		for link, send := range map[string]func() error{
			"p0": func() error { return udp(n.pod, "", f.node, 0) },
			"u0": func() error { return udp(n.peer, "", f.self, 0) },
		} {
			before := n.counters(t)[chains.MarksRestored]
			was := n.count(t, "others", link)
			errtest.Must(t, send())
			nettest.Until(t, patience, "the mark of what came by "+link+" is restored",
				func() bool {
					return n.counters(t)[chains.MarksRestored] > before && n.count(t, "others", link) > was
				})
		}
	}
}

// TestKernelTunnelSendsToNodes sends by a tunnel device whose encrypted packets have the device as
// their input link, as with the kernel's WireGuard. They go to the node.
//
//	host t0 (VXLAN in place of WireGuard) ─► outer packet, tunnels' mark ─► u0 ── u0 peer
func TestKernelTunnelSendsToNodes(t *testing.T) {
	needTCX(t)
	for i, inner := range [][2]string{
		{"198.19.55.1/24", "198.19.55.2/24"},
		{"fd42:55::1/64", "fd42:55::2/64"},
	} {
		n, f := newNode(t, tcx), podAndNode[i]
		for _, end := range []struct {
			ns                  *nettest.NS
			local, other, inner string
		}{{n.NS, f.self, f.node, inner[0]}, {n.peer, f.node, f.self, inner[1]}} {
			end.ns.Run(t, func() error {
				return nettest.Command("ip", "link", "add", "t0", "up", "type", "vxlan", "id", "7",
					"dstport", "4789",
					"local", end.local, "remote", end.other, "dev", "u0", "udp6zerocsumrx")
			})
			nettest.AddAddr(t, end.ns, "t0", netip.MustParsePrefix(end.inner))
		}

		to := netip.MustParsePrefix(inner[1]).Addr().String()
		send := func() error { return udp(n, "", to, abi.TunnelMark) }
		source(t, n.peer, to, send) // resolves the neighbour, by packets without a mark
		n.Run(t, func() error { return setGroup("t0", abi.TunnelGroup) })
		n.apply(t)
		source(t, n.peer, to, send)
		before := n.counters(t)["pod_to_node"]
		errtest.Must(t, udp(n, "", to, 0))

		nettest.Until(t, patience, "an outer packet without the mark is dropped", func() bool {
			return n.counters(t)["pod_to_node"] > before
		})
	}
}

// count returns the packets of a counter in another program's table.
func (n *node) count(t *testing.T, table, name string) (packets int) {
	t.Helper()
	n.Run(t, func() (err error) {
		packets, err = countOf(table, name)
		return err
	})
	return packets
}
