package policy_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// A pod receives an ICMP error about a flow with a pod of its own or another node only from the
// flow's other end. It does not receive errors from other pods of either node, even if policies allow
// these pods everything else.
func TestErrorsComeFromTheEndOfAFlow(t *testing.T) {
	for name, settings := range map[string]map[string]any{
		"service proxy none": {"policy": config.PolicyKubernetes},
		"host routing": {"policy": config.PolicyKubernetes,
			"serviceProxy": config.ServiceProxyEBPF,
			"services": map[string]any{"hostRouting": config.HostRoutingEBPF,
				"limits": map[string]any{"backendSlots": 1 << 16}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{VeildConfig: settings})
			errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
			n1, n2 := l.Nodes()[0], l.Nodes()[1]
			start := func(n *lab.Node, app string) *lab.Pod {
				t.Helper()
				return nodetest.StartPod(ctx, t, n, app)
			}
			server, near := start(n1, "server"), start(n1, "near")
			client, beside := start(n2, "client"), start(n2, "beside")
			nodetest.WaitMembers(ctx, t, n1, 2)
			nodetest.WaitMembers(ctx, t, n2, 2)
			nodetest.EchoAt(ctx, t, server)
			for _, addr := range server.Addrs {
				answers(ctx, t, server, addr, client, near, beside)
				answers(ctx, t, server, addr, near, client, beside)
			}
			nodetest.NoLeaks(t, l)
		})
	}
}

// answers lets a client use an echo server. Then others, and at last the client, report to the
// server that its answer was too big.
func answers(ctx context.Context, t *testing.T, server *lab.Pod, addr netip.Addr, client *lab.Pod,
	others ...*lab.Pod) {
	t.Helper()
	const mtu = 1281
	var sent traffic.Sent
	err := lab.Until(ctx, 30*time.Second, func() (err error) {
		sent, err = traffic.Send(ctx, client, traffic.Exchange{Proto: "udp", To: addr, Count: 1})
		return err
	})
	errtest.Must(t, err)
	local, err := netip.ParseAddrPort(sent.Local)
	errtest.Must(t, err)
	answer := nodetest.Datagram{Src: addr, Dst: local.Addr(), SrcPort: traffic.EchoPort,
		DstPort: local.Port()}
	tell := func(from *lab.Pod) {
		d := answer
		d.From, _ = nodetest.LinkOf(ctx, t, from, "eth0")
		d.To = nodetest.GatewayOf(ctx, t, from)
		nodetest.Inject(ctx, t, from, "eth0", d.TooBig(from.Addr(addr.Is6()), mtu))
	}
	believed := func() bool {
		return strings.Contains(nodetest.Run(ctx, t, server, "ip", "route", "get",
			local.Addr().String()), fmt.Sprint(" mtu ", mtu))
	}

	for _, from := range others {
		dropped := func() uint64 {
			return nodetest.NodeStatus(ctx, t, from.Node).Policy.Drops["policy_related"]
		}
		before := dropped()
		tell(from)
		nodetest.Counted(ctx, t, before+1, dropped)
	}
	if believed() {
		t.Errorf("%s: the server believes another pod", addr)
	}
	tell(client)
	err = lab.Until(ctx, 10*time.Second, func() error {
		if !believed() {
			return errors.New("the server does not believe the other end of the flow")
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", addr, err)
	}
}
