package nodetest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// HostPortOfPod is the port of a node at which PodWithHostPort publishes a pod.
const HostPortOfPod = 18080

// PodWithHostPort returns a new pod with an echo server. Its node publishes the server at
// HostPortOfPod.
func PodWithHostPort(ctx context.Context, t *testing.T, n *lab.Node) *lab.Pod {
	t.Helper()
	var ports []lab.PortMapping
	for _, proto := range []string{"tcp", "udp"} {
		ports = append(ports, lab.PortMapping{HostPort: HostPortOfPod,
			ContainerPort: traffic.EchoPort, Protocol: proto})
	}
	p, err := n.AddPod(ctx, "published", lab.PodOptions{Ports: ports})
	errtest.Must(t, err)
	EchoAt(ctx, t, p)
	return p
}

// HostPort checks that a host port of a pod can be reached from outside and from another pod, in
// all address families. It also checks that the pod cannot reach the node's loopback.
func HostPort(ctx context.Context, t *testing.T, l *lab.Lab) {
	n := l.Nodes()[0]
	p := PodWithHostPort(ctx, t, n)

	// A pod of the same node: netfilter translates its packets and must also translate the answers.
	near := AddPod(ctx, t, n, "near")

	for _, to := range n.Addrs {
		for _, proto := range []string{"tcp", "udp"} {
			if _, err := traffic.Send(ctx, near,
				traffic.Exchange{Proto: proto, To: to, Port: HostPortOfPod}); err != nil {
				t.Errorf("from a pod of the node to %s over %s: %v", to, proto, err)
			}
			if _, err := traffic.Send(ctx, l.Outside,
				traffic.Exchange{Proto: proto, To: to, Port: HostPortOfPod, Egress: true}); err !=
				nil {
				t.Errorf("from outside to %s over %s: %v", to, proto, err)
			}
		}
	}

	loopback(ctx, t, l, p)
	errtest.Check(t, errors.Join(p.Del(ctx), near.Del(ctx)))
}

// loopback checks that a pod with host ports cannot reach 127.0.0.1 of its node, although its link
// has route_localnet.
func loopback(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	t.Helper()
	sink := Sink(ctx, t, p.Node)
	own, _ := LinkOf(ctx, t, p, "eth0")
	frame := Datagram{From: own, To: GatewayOf(ctx, t, p), Src: p.Addr(false),
		Dst:     netip.MustParseAddr("127.0.0.1"),
		SrcPort: 4000, DstPort: traffic.SinkPort, Payload: []byte("01234567" + l.Canary)}.Frame()
	before := Dropped(ctx, t, p.Node, "to_loopback")
	Inject(ctx, t, p, "eth0", frame)
	Counted(ctx, t, 1, func() uint64 { return Dropped(ctx, t, p.Node, "to_loopback") - before })
	var got traffic.Drained
	if err := sink.Result(ctx, &got); err != nil || got.Received != 0 {
		t.Errorf("the node's loopback got %+v (%v) from a pod", got, err)
	}
}

// Bandwidth checks that packets to a pod with a bandwidth limit keep to it. It sends from another
// pod, which has no limit.
func Bandwidth(ctx context.Context, t *testing.T, l *lab.Lab, from *lab.Pod) {
	const rate, bytes = 8e6, 3 << 20
	p, err := l.Nodes()[0].AddPod(ctx, "slow",
		lab.PodOptions{Bandwidth: &lab.Bandwidth{IngressRate: rate, IngressBurst: 800_000,
			EgressRate: 10 * rate, EgressBurst: 800_000}})
	errtest.Must(t, err)
	EchoAt(ctx, t, p)
	s, err := traffic.Send(ctx, from, traffic.Exchange{To: p.Addr(false), Count: 1, Size: bytes,
		Timeout: 20 * time.Second})
	errtest.Must(t, err)
	got := float64(s.Bytes) * 8 / (s.Millis / 1000)
	if got > 1.3*rate || got < 0.3*rate {
		t.Errorf("%.1f Mbit/s into a pod that may have %.1f", got/1e6, rate/1e6)
	}
	t.Logf("%.1f Mbit/s into a pod that may have %.1f", got/1e6, rate/1e6)
	errtest.Check(t, p.Del(ctx))
}
