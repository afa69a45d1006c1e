package nodetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Link-local addresses: the metadata server of clouds, and NodeLocal DNSCache.
const (
	metadata  = "169.254.169.254"
	nodeCache = "169.254.20.10"
)

// LinkLocal checks that a pod reaches link-local addresses of its own node. Outside the node, it
// must reach only the cloud's metadata server, and only if open is true. The node and the host
// Outside need echo servers; Outside has all of these addresses. The oracle reports frames to other
// link-local addresses as leaks.
func LinkLocal(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod, open bool) {
	t.Helper()
	l.Oracle.Update(func(r *leak.Rules) {
		r.Outside = append(r.Outside, netip.MustParseAddr(metadata))
	})
	for _, a := range []string{abi.PodGateway4, abi.TunnelAddress4, nodeCache, metadata} {
		errtest.Must(t, l.Outside.IP(ctx, fmt.Sprintf("addr add %s/32 dev lo", a)))
	}

	reach := func(a string, want bool) {
		t.Helper()
		protos := []string{"tcp", "udp"}
		if a == metadata {
			protos = protos[:1] // TCP only: the server answers datagrams from another address
		}
		for _, proto := range protos {
			_, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto,
				To: netip.MustParseAddr(a), Egress: a == metadata, Timeout: 2 * time.Second})
			if (err == nil) != want {
				t.Errorf("to %s over %s: %v", a, proto, err)
			}
		}
	}

	reach(metadata, open)
	reach(abi.PodGateway4, false)
	// Ignore the result: the tunnels' address belongs to the node, where a program may answer.
	_, _ = traffic.Send(ctx, p, traffic.Exchange{To: netip.MustParseAddr(abi.TunnelAddress4),
		Timeout: time.Second})

	cache := fmt.Sprintf("addr %%s %s/32 dev lo", nodeCache)
	errtest.Must(t, p.Node.IP(ctx, fmt.Sprintf(cache, "add")))
	reach(nodeCache, true)
	errtest.Must(t, p.Node.IP(ctx, fmt.Sprintf(cache, "del")))
	reach(nodeCache, false)

	sendToNoHost(ctx, t, l, p)
}

// sendToNoHost sends frames from a pod to IPv6 addresses that are never valid outside a link, as a
// program with a raw socket can.
func sendToNoHost(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	t.Helper()
	if !p.Addr(true).IsValid() {
		return
	}
	own, _ := LinkOf(ctx, t, p, "eth0")
	d := Datagram{From: own, To: GatewayOf(ctx, t, p), Src: p.Addr(true), SrcPort: 4000,
		DstPort: traffic.SinkPort, Payload: []byte(l.Canary + l.Canary)}
	for _, to := range []string{"::", "::1", "fe80::1234"} {
		d.Dst = netip.MustParseAddr(to)
		Inject(ctx, t, p, "eth0", d.Frame())
	}
}
