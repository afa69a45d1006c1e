package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// portOfBalancer is the port of a load balancer outside the cluster.
const portOfBalancer = 30010

// TestExceptionsAreAsDocumented tests the rows of the exceptions in docs/security.md that no other
// test covers. The traffic of the row works and is in clear, and no other traffic is in clear.
func TestExceptionsAreAsDocumented(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	a, b := l.Nodes()[0], l.Nodes()[1]
	foreign(ctx, t, b, "foreign_ports", published(portToPod, pods[1].Addrs))

	// Row 2. A service translates packets of a host process to the address of another node.
	t.Run("a host process to a service with a host-network backend", func(t *testing.T) {
		nodetest.EchoAt(ctx, t, b)
		services := firstAddrs(l.Family().ServiceRanges())
		foreign(ctx, t, a, "foreign_service",
			fmt.Sprintf(`chain out { type nat hook output priority -100;
			ip daddr %s tcp dport 80 dnat ip to %s:%d;
			ip6 daddr %s tcp dport 80 dnat ip6 to [%s]:%[3]d;
		}`, services[0], b.Addrs[0], traffic.EchoPort, services[1], b.Addrs[1]))
		for i, service := range services {
			hostToHost := leak.Flow{Name: "host to host", Proto: leak.TCP, Addr: b.Addrs[i],
				Port: traffic.EchoPort}
			l.Oracle.Update(func(r *leak.Rules) { r.Flows = append(r.Flows, hostToHost) })
			before := l.Oracle.Seen().Kinds[leak.Control]
			ask := fmt.Sprintf(
				`exec 3<>/dev/tcp/%s/80; echo question >&3; read -r answer <&3; [ "$answer" = question ]`, service)
			if _, err := a.Exec(ctx, "timeout", "5", "bash", "-c", ask); err != nil {
				t.Errorf("by %s: %v", service, err)
			}
			rises(ctx, t, l, leak.Control, before)
		}
	})

	// Row 10. Nothing on the node translates the balancer's address.
	t.Run("a pod to its own cluster's balancer outside", func(t *testing.T) {
		balancer := fmt.Sprintf(`chain pre { type nat hook prerouting priority -100;
				meta nfproto ipv4 meta l4proto { tcp, udp } th dport %[1]d dnat ip to %[2]s:%[4]d;
				meta nfproto ipv6 meta l4proto { tcp, udp } th dport %[1]d dnat ip6 to [%[3]s]:%[4]d;
			}
			chain post { type nat hook postrouting priority 100; ct status dnat masquerade; }
			chain out { type filter hook output priority 0; icmp type redirect drop; icmpv6 type nd-redirect drop; }`,
			portOfBalancer, b.Addrs[0], b.Addrs[1], portToPod)
		nodetest.Run(ctx, t, l.Outside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1",
			"net.ipv6.conf.all.forwarding=1")
		nodetest.Run(ctx, t, l.Outside, "bash", "-c",
			fmt.Sprintf("nft -f - <<'END'\ntable inet balancer {\n%s\n}\nEND", balancer))
		before := l.Oracle.Seen().Kinds[leak.Egress]
		for _, to := range l.OutsideAddrs() {
			for _, proto := range []string{"tcp", "udp"} {
				x := traffic.Exchange{Proto: proto, To: to, Port: portOfBalancer, Egress: true}
				if _, err := traffic.Send(ctx, pods[0], x); err != nil {
					t.Errorf("by %s over %s: %v", to, proto, err)
				}
			}
		}
		rises(ctx, t, l, leak.Egress, before)
	})

	// Row 12. A NodePort that keeps client addresses does not verify them.
	t.Run("a forged source by a NodePort", func(t *testing.T) {
		hw := secretCable(ctx, t, l, a, "eth9", "forger")
		guarded(ctx, t, a, "eth9")
		nodetest.Run(ctx, t, a, "sysctl", "-q", "-w", "net.ipv4.conf.all.rp_filter=0",
			"net.ipv4.conf.eth9.rp_filter=0")
		foreign(ctx, t, a, "foreign_local",
			fmt.Sprintf(`chain pre { type nat hook prerouting priority -100;
			iifname eth9 ip daddr %s udp dport %d dnat ip to %s:%d;
		}`, a.Addrs[0], portToPod, pods[0].Addrs[0], traffic.EchoPort))
		noteSources(ctx, t, pods[0])
		// The answer goes through the tunnel to a node that sent no request. That node must not
		// send an ICMP error.
		foreign(ctx, t, b, "quiet",
			"chain in { type filter hook input priority 0; udp dport 4000 drop; }")
		from, _ := nodetest.LinkOf(ctx, t, l.Outside, "forger")
		nodetest.Inject(ctx, t, l.Outside, "forger", nodetest.Datagram{
			From: from, To: hw, Src: b.Addrs[0], Dst: a.Addrs[0], SrcPort: 4000, DstPort: portToPod,
			Payload: []byte("question"),
		}.Frame())
		var got []string
		err := lab.Until(ctx, 5*time.Second, func() error {
			got = append(got, notedSources(ctx, t, pods[0])...)
			if !slices.Contains(got, b.Addrs[0].String()) {
				return fmt.Errorf("the pod was asked from %q", got)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%v; if the source is proven now, the exception can go", err)
		}
	})
	// Row 11. This case is last, because it changes the routes of the pods.
	t.Run("a secondary interface", func(t *testing.T) { secondInterface(ctx, t, l, pods) })
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// secondInterface adds an interface at the underlay to each pod, and checks that messages over
// these interfaces are in clear. The oracle treats their addresses as hosts outside the cluster.
func secondInterface(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	t.Helper()
	var addrs []netip.Addr
	for _, p := range pods {
		added, err := p.AddLink(ctx, "net1")
		errtest.Must(t, err)
		addrs = nil
		for _, a := range added {
			addrs = append(addrs, a.Addr())
		}
	}

	l.Oracle.Update(func(r *leak.Rules) { r.Outside = append(r.Outside, addrs...) })
	for _, to := range addrs {
		for _, proto := range []string{"tcp", "udp"} {
			before := l.Oracle.Seen().Kinds[leak.Egress]
			if _, err := traffic.Send(ctx, pods[0],
				traffic.Exchange{Proto: proto, To: to, Egress: true}); err != nil {
				t.Errorf("to %s over %s: %v", to, proto, err)
			}
			rises(ctx, t, l, leak.Egress, before)
		}
	}
}

// rises waits until the oracle has seen more than before frames of a kind.
func rises(ctx context.Context, t *testing.T, l *lab.Lab, kind leak.Kind, before uint64) {
	t.Helper()
	err := lab.Until(ctx, 5*time.Second, func() error {
		if l.Oracle.Seen().Kinds[kind] == before {
			return fmt.Errorf("no frame is %s; the exception can go", kind)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// firstAddrs returns the first usable address of each prefix.
func firstAddrs(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range prefixes {
		addrs = append(addrs, p.Addr().Next())
	}
	return addrs
}
