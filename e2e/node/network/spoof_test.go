package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// The test covers where pods' packets may go: foreign sources, destinations that no host has,
// nodes, hosts outside, ports of the host.
func TestWherePodsReach(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	for _, n := range append([]*lab.Host{l.Outside}, l.Nodes()[0].Host, l.Nodes()[1].Host) {
		nodetest.EchoAt(ctx, t, n)
	}
	t.Run("a pod that spoofs", func(t *testing.T) { spoof(ctx, t, l, pods) })
	t.Run("unassigned destinations", func(t *testing.T) { unreachable(ctx, t, l, pods[0]) })
	t.Run("pods and nodes", func(t *testing.T) { podsAndNodes(ctx, t, l, pods) })
	t.Run("link-local addresses", func(t *testing.T) {
		nodetest.LinkLocal(ctx, t, l, pods[0], true)
	})
	t.Run("egress", func(t *testing.T) { egress(ctx, t, l, pods[0]) })
	t.Run("host port", func(t *testing.T) { nodetest.HostPort(ctx, t, l) })
	t.Run("bandwidth", func(t *testing.T) { nodetest.Bandwidth(ctx, t, l, pods[1]) })
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// spoof sends from a pod packets with foreign sources, and checks that none arrives and each is
// counted.
func spoof(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	a, b := pods[0], pods[1]
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	neighbour := nodetest.AddPod(ctx, t, n1, "neighbour")
	sink := nodetest.Sink(ctx, t, b)

	own, _ := nodetest.LinkOf(ctx, t, a, "eth0")
	gateway := nodetest.GatewayOf(ctx, t, a)
	packet := func(src, dst netip.Addr) []byte {
		return nodetest.Datagram{From: own, To: gateway, Src: src, Dst: dst, SrcPort: 4000,
			DstPort: traffic.SinkPort,
			Payload: []byte("01234567" + l.Canary + l.Canary)}.Frame()
	}

	var frames [][]byte
	for _, six := range []bool{false, true} {
		i := 0
		sources := []netip.Addr{neighbour.Addr(six), b.Addr(six),
			netip.MustParseAddr("169.254.7.7"), netip.IPv4Unspecified(),
			netip.MustParseAddr("127.0.0.1")}
		if six {
			i = 1
			sources = append(sources[:2], netip.MustParseAddr("fe80::1234"),
				netip.IPv6Unspecified(), netip.IPv6Loopback())
		}
		sources = append(sources, n1.Addrs[i], n2.Addrs[i], l.OutsideAddrs()[i],
			l.Control.Addrs()[i])
		for _, src := range sources {
			for _, dst := range []netip.Addr{b.Addr(six), n2.Addrs[i], l.OutsideAddrs()[i]} {
				frames = append(frames, packet(src, dst))
			}
		}
	}

	before, egressed := forgedOf(ctx, t, n1),
		l.Oracle.Seen().Kinds[leak.Egress]
	nodetest.Inject(ctx, t, a, "eth0", frames...)
	nodetest.Counted(ctx, t, uint64(len(frames)), func() uint64 {
		return forgedOf(ctx, t, n1) - before
	})
	if !strings.Contains(nodeMetrics(ctx, t, n1),
		`kubeveil_plaintext_blocked_total{reason="pod_spoofed_source"}`) {
		t.Error("the metrics do not name the reason")
	}

	// The pod's own address is the control: that one arrives.
	nodetest.Inject(ctx, t, a, "eth0", packet(a.Addr(false), b.Addr(false)))
	errtest.Check(t, sink.WaitLine(ctx, "received 1", 5*time.Second))
	var got traffic.Drained
	if err := sink.Result(ctx, &got); err != nil || got.Received != 1 {
		t.Errorf("the other pod got %+v (%v), want the one packet that was honest", got, err)
	}
	if now := l.Oracle.Seen().Kinds[leak.Egress]; now != egressed {
		t.Errorf("%d frames went outside", now-egressed)
	}

	t.Logf("%d forged packets dropped, one honest one arrived", len(frames))
}

// unreachable checks that an address of the cluster that belongs to no pod is refused at once, each
// time.
func unreachable(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "without-key"}}
	node, err := l.Control.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	errtest.Must(t, err)

	keyless := []netip.Addr{netip.MustParseAddr("198.18.0.77"), netip.MustParseAddr("fd42::4d")}
	for _, a := range keyless {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}

	if _, err := l.Control.Client.CoreV1().Nodes().UpdateStatus(ctx, node,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	nodetest.WaitStatus(ctx, t, p.Node, 10*time.Second, func(s telemetry.Status) error {
		for _, peer := range s.Peers {
			if peer.Name == node.Name && peer.State == telemetry.PeerKeyless {
				return nil
			}
		}
		return fmt.Errorf("no keyless peer: %+v", s.Peers)
	})

	for what, addr := range map[string]string{
		"a cluster address of no node":       "198.19.77.5",
		"a cluster address of no node, IPv6": "fd42:1:0:4d::5",
		"an untranslated service":            "198.18.128.77",
		"an untranslated service, IPv6":      "fd42:2::4d",
		"a node without key":                 keyless[0].String(),
		"a node without key, IPv6":           keyless[1].String(),
		"the end of the cluster range":       "198.19.255.255",
		"the end of the service range, IPv6": "fd42:2::ffff",
	} {
		t.Run(what, func(t *testing.T) {
			before := l.Oracle.Seen().Kinds
			// Sooner than a neighbour that does not answer is given up, which takes 3 s.
			_, err := traffic.Send(ctx, p, traffic.Exchange{Proto: "tcp",
				To: netip.MustParseAddr(addr), Count: 1, Timeout: 2 * time.Second})
			if err == nil || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("to %s: %v", addr, err)
			}
			after := l.Oracle.Seen().Kinds
			if after[leak.Egress] != before[leak.Egress] ||
				after[leak.Unknown] != before[leak.Unknown] {
				t.Errorf("on the wire: %v, then %v", before, after)
			}
		})
	}

	if err := l.Control.Client.CoreV1().Nodes().Delete(ctx, node.Name,
		metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// podsAndNodes lets pods and nodes, own and remote, talk to each other; the oracle judges whether
// that was in clear.
func podsAndNodes(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	for i, n := range l.Nodes() {
		for j, p := range pods {
			before := l.Oracle.Seen().Kinds[leak.Tunnel]
			for f, addr := range n.Addrs {
				for _, proto := range []string{"tcp", "udp"} {
					if _, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto, To: addr,
						Size: 1200}); err != nil {
						t.Errorf("%s to %s over %s: %v", p.ID, addr, proto, err)
					}
					if _, err := traffic.Send(ctx, n, traffic.Exchange{Proto: proto, To: p.Addrs[f],
						Size: 1200}); err != nil {
						t.Errorf("%s to %s over %s: %v", n.Name, p.Addrs[f], proto, err)
					}
				}
			}

			if i == j {
				continue
			}

			err := lab.Until(ctx, 5*time.Second, func() error {
				// 10 messages there and back, both protocols, families and directions, on three
				// links.
				if now := l.Oracle.Seen().Kinds[leak.Tunnel]; now < before+160 {
					return fmt.Errorf("%d tunnel frames", now-before)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s and %s: %v", n.Name, p.ID, err)
			}
		}
	}
}

// egress checks that a pod's packets out of the cluster arrive with its node's address.
func egress(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	before := l.Oracle.Seen().Kinds[leak.Egress]
	for _, to := range l.OutsideAddrs() {
		for _, proto := range []string{"tcp", "udp"} {
			if _, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto, To: to, Size: 1200,
				Egress: true}); err != nil {
				t.Errorf("to %s over %s: %v", to, proto, err)
			}
		}
	}
	// An unmasqueraded frame would be a leak of an address.
	if now := l.Oracle.Seen().Kinds[leak.Egress]; now == before {
		t.Error("the oracle saw no egress")
	}
}

// forgedOf returns the number of packets dropped for a source that does not belong to the pod, the
// ones with a counter of their own included.
func forgedOf(ctx context.Context, t *testing.T, n *lab.Node) uint64 {
	t.Helper()
	return nodetest.Dropped(ctx, t, n, "pod_spoofed_source") +
		nodetest.Dropped(ctx, t, n, "pod_link_local")
}
