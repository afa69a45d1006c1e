package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// reportedMTU is the MTU in the ICMP errors of TestErrorsAboutClientsOutside.
const reportedMTU = 1281

// routers are the addresses of a router between the nodes and clients outside.
var routers = nettest.Addrs("198.18.77.1", "fd42:77::1")

// A pod and a client outside that reaches it by a service receive ICMP errors about their flow from
// each other and from routers outside, and not from another pod. Conntrack does not know these
// flows, because programs translate and, with host routing, forward their packets.
func TestErrorsAboutClientsOutside(t *testing.T) {
	for _, routing := range hostRoutings {
		t.Run("host routing "+routing, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{Nodes: 1, Family: lab.Dual,
				VeildConfig: map[string]any{
					"policy": config.PolicyKubernetes, "serviceProxy": config.ServiceProxyEBPF,
					"services": map[string]any{"limits": map[string]any{"backendSlots": 1 << 16},
						"hostRouting": routing},
				}})
			errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
			l.Oracle.Update(func(r *leak.Rules) { r.Outside = append(r.Outside, routers...) })
			n := l.Nodes()[0]
			web := nodetest.StartPod(ctx, t, n, "web")
			stranger := nodetest.StartPod(ctx, t, n, "stranger")
			errtest.Must(t, errtest.Of(traffic.Named(ctx, web, "web", 1)))
			nodetest.WaitMembers(ctx, t, n, 2)
			service := publish(ctx, t, l, "web",
				corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, web)

			question := func(a netip.Addr) traffic.Question {
				return traffic.Question{Proto: "udp", To: nodePort(t, service, n, "udp", a.Is6()),
					Count: 3, Egress: true}
			}
			expectSeen(ctx, t, "before the errors", n, web, "udp",
				routing == config.HostRoutingKernel, func(a netip.Addr) error {
					c, err := traffic.TakeCensus(ctx, l.Outside, question(a))
					if err == nil {
						err = everyone("web")(c)
					}
					return err
				})
			for i, a := range web.Addrs {
				q := question(a)
				q.FromPort = 40000 + i
				errtest.Must(t, errtest.Of(traffic.Keep(ctx, l.Outside, q)))
				errorsAbout(ctx, t, l, flowOfClient{web, stranger, i, uint16(q.FromPort), q.To})
			}
			nodetest.NoLeaks(t, l)
		})
	}
}

// flowOfClient is a flow of a client outside to a pod, by a port of the pod's node.
type flowOfClient struct {
	web, stranger *lab.Pod
	family        int    // index of addresses
	port          uint16 // of the client
	to            netip.AddrPort
}

// errorsAbout sends ICMP errors about the packets of a flow to both ends, and checks which of them
// the ends believe.
func errorsAbout(ctx context.Context, t *testing.T, l *lab.Lab, f flowOfClient) {
	t.Helper()
	n, client := f.web.Node, l.OutsideAddrs()[f.family]
	own := f.web.Addrs[f.family]
	answer := nodetest.Datagram{Src: own, Dst: client, SrcPort: traffic.NamePort, DstPort: f.port}
	request := nodetest.Datagram{Src: client, Dst: own, SrcPort: f.port, DstPort: traffic.NamePort}
	onTheWire := answer
	onTheWire.Src, onTheWire.SrcPort = f.to.Addr(), f.to.Port()
	asSent := request
	asSent.Dst, asSent.DstPort = f.to.Addr(), f.to.Port()

	fromPod := func(p *lab.Pod, about nodetest.Datagram) {
		about.From, _ = nodetest.LinkOf(ctx, t, p, "eth0")
		about.To = nodetest.GatewayOf(ctx, t, p)
		nodetest.Inject(ctx, t, p, "eth0", about.TooBig(p.Addrs[f.family], reportedMTU))
	}
	dropped := func() uint64 {
		return nodetest.NodeStatus(ctx, t, n).Policy.Drops["policy_related"]
	}
	before := dropped()
	for i, about := range []nodetest.Datagram{answer, onTheWire, request, asSent} {
		fromPod(f.stranger, about)
		nodetest.Counted(ctx, t, before+uint64(i)+1, dropped)
	}
	if believes(ctx, t, f.web, client) || believes(ctx, t, l.Outside, f.to.Addr()) {
		t.Errorf("%s: an end of the flow believes another pod", own)
	}

	fromPod(f.web, request)
	waitBelief(ctx, t, "the client believes the pod", l.Outside, f.to.Addr())
	onTheWire.From, _ = nodetest.LinkOf(ctx, t, l.Outside, "eth0")
	onTheWire.To, _ = nodetest.LinkOf(ctx, t, n, "eth0")
	nodetest.Inject(ctx, t, l.Outside, "eth0", onTheWire.TooBig(routers[f.family], reportedMTU))
	waitBelief(ctx, t, "the pod believes a router outside", f.web, client)
	if n := dropped() - before; n != 4 {
		t.Errorf("%s: %d errors were dropped, want those of the other pod: 4", own, n)
	}
}

// believes reports whether a place sends packets of at most reportedMTU to an address.
func believes(ctx context.Context, t *testing.T, at traffic.Place, to netip.Addr) bool {
	t.Helper()
	return strings.Contains(nodetest.Run(ctx, t, at, "ip", "route", "get", to.String()),
		fmt.Sprint(" mtu ", reportedMTU))
}

func waitBelief(ctx context.Context, t *testing.T, what string, at traffic.Place, to netip.Addr) {
	t.Helper()
	err := lab.Until(ctx, 10*time.Second, func() error {
		if !believes(ctx, t, at, to) {
			return fmt.Errorf("%s has no smaller MTU to %s", at, to)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
