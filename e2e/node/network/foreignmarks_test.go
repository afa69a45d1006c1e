package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// foreignMarks are rules of other programs that overwrite the marks of packets.
var foreignMarks = []struct{ name, rules string }{
	// wg-quick with a default route (wg-quick/linux.bash, nftcmd).
	{"wg-quick", `chain premangle { type filter hook prerouting priority -150;
		meta l4proto udp meta mark set ct mark; }`},
	{"mark 1", `chain premangle { type filter hook prerouting priority -150; meta mark set 1; }`},
	{"mark of the tunnel's packets", fmt.Sprintf(
		`chain premangle { type filter hook prerouting priority -150; meta mark set %#x; }`,
		abi.TunnelMark)},
	{"mark 1 when forwarded", `chain forwarded { type filter hook forward priority -150;
		meta mark set 1; }`},
	{"mark of the tunnel's packets when forwarded", fmt.Sprintf(
		`chain forwarded { type filter hook forward priority -150; meta mark set %#x; }`,
		abi.TunnelMark)},
}

// foreignMasquerade masquerades all packets that leave by the underlay, like a NAT gateway.
const foreignMasquerade = `chain post { type nat hook postrouting priority 100;
	oifname eth0 masquerade; }`

// TestForeignMarks overwrites the marks of pods' packets on both nodes and masquerades them.
// Pod-to-pod, pod-to-node and port-of-a-node traffic stays in tunnels, or is dropped and counted.
func TestForeignMarks(t *testing.T) {
	t.Parallel()
	for _, proxy := range []string{"none", "ebpf"} {
		t.Run("serviceProxy "+proxy, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t,
				lab.Options{VeildConfig: map[string]any{"serviceProxy": proxy}})
			pods := nodetest.EchoPods(ctx, t, l)
			nodetest.Meet(ctx, t, pods[0], pods[1])
			for _, n := range l.Nodes() {
				nodetest.EchoAt(ctx, t, n)
			}
			// A pod of the second node connects to the first node's port, whose backend is a
			// process of the second node. The packets arrive by a tunnel and leave to a node.
			foreign(ctx, t, l.Nodes()[0], "foreign_ports", published(portToPod, l.Nodes()[1].Addrs))
			for _, m := range foreignMarks {
				t.Run(m.name, func(t *testing.T) { foreignMark(ctx, t, l, pods, m.rules) })
			}
			nodetest.NoLeaks(t, l)
		})
	}
}

func foreignMark(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod, rules string) {
	for _, n := range l.Nodes() {
		foreign(ctx, t, n, "foreign_marks", rules+"\n"+foreignMasquerade)
	}
	failed := askAcross(ctx, l, pods)
	for _, f := range failed {
		t.Errorf("not answered: %s", f)
	}
	for _, n := range l.Nodes() {
		nodetest.Run(ctx, t, n, "nft", "delete", "table", "inet", "foreign_marks")
	}
	if strings.Contains(rules, "hook prerouting") {
		marksShown(ctx, t, l.Nodes()[0])
	}
	if seen := l.Oracle.Seen(); seen.Findings() > 0 {
		t.Errorf("leak oracle: %d findings, %v", seen.Findings(), seen.Kinds)
	}
}

// marksShown checks that the node's status and metrics count restored marks.
func marksShown(ctx context.Context, t *testing.T, n *lab.Node) {
	t.Helper()
	s := nodetest.NodeStatus(ctx, t, n)
	if s.Guard.MarksRestored == 0 || !strings.Contains(strings.Join(s.Problems, "\n"), "marks") {
		t.Errorf("%d marks restored, problems %q", s.Guard.MarksRestored, s.Problems)
	}
	if m := nodeMetrics(ctx, t, n); !strings.Contains(m, "kubeveil_marks_restored_total ") {
		t.Error("no metric kubeveil_marks_restored_total")
	}
}

// askAcross sends requests from each pod to the other node, the other pod and, by the first node's
// port, the second node. It returns the requests that were not answered.
func askAcross(ctx context.Context, l *lab.Lab, pods []*lab.Pod) (failed []string) {
	ask := func(from *lab.Pod, to netip.Addr, port int) {
		for _, proto := range []string{"udp", "tcp"} {
			// On a busy machine an answer takes seconds.
			x := traffic.Exchange{Proto: proto, To: to, Port: port, Count: 3,
				Timeout: 10 * time.Second}
			if _, err := traffic.Send(ctx, from, x); err != nil {
				failed = append(failed,
					fmt.Sprintf("%s to %s, port %d, %s: %v", from.ID, to, port, proto, err))
			}
		}
	}
	for i := range l.Nodes()[1].Addrs {
		ask(pods[0], l.Nodes()[1].Addrs[i], traffic.EchoPort)
		ask(pods[1], l.Nodes()[0].Addrs[i], traffic.EchoPort)
		ask(pods[0], pods[1].Addrs[i], traffic.EchoPort)
		ask(pods[1], l.Nodes()[0].Addrs[i], portToPod)
	}
	return failed
}
