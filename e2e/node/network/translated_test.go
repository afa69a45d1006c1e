package network_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// portToPod is the port of a service that another program publishes on a node.
const portToPod = 30001

// Another program translates addresses, like kube-proxy and the rules of a former network.
// Encrypted traffic stays encrypted, replies included, and traffic that would become host to host
// is refused.
func TestOthersTranslate(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoAPIServer: true, Nodes: 3})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	nodetest.Meet(ctx, t, pods[0], pods[2])
	nodetest.Meet(ctx, t, pods[1], pods[2])
	for _, n := range l.Nodes() {
		nodetest.EchoAt(ctx, t, n)
	}
	t.Run("ports of a node", func(t *testing.T) { nodePorts(ctx, t, l, pods) })
	t.Run("hosts behind ports of a node", func(t *testing.T) { hostsBehindPorts(ctx, t, l, pods) })
	t.Run("sources of pods", func(t *testing.T) { foreignSources(ctx, t, l, pods) })
	t.Run("sources of pods, and nothing keeps them",
		func(t *testing.T) { unkeptSources(ctx, t, l, pods[0]) })
	noSecrets(ctx, t, l, nil)
	nodetest.NoLeaks(t, l)
}

// foreign adds an nftables table that is not ours to a node.
func foreign(ctx context.Context, t *testing.T, n *lab.Node, name, rules string) {
	t.Helper()
	nodetest.Run(ctx, t, n, "bash", "-c",
		fmt.Sprintf("nft -f - <<'END'\ntable inet %s {\n%s\n}\nEND", name,
			rules))
}

// foreignSources translates the source of all packets of pods to the node that forwards them. Nodes
// then still answer the pod, by the tunnel.
func foreignSources(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	var sources string
	for i, p := range l.Family().ClusterRanges() {
		sources += fmt.Sprintf("%s saddr %s masquerade;", []string{"ip", "ip6"}[i], p)
	}
	foreign(ctx, t, l.Nodes()[0], "foreign_sources",
		"chain post { type nat hook postrouting priority 100; "+sources+" }")
	remote := l.Nodes()[1]
	before := l.Oracle.Seen().Kinds[leak.Tunnel]
	for i, addr := range remote.Addrs {
		for _, proto := range []string{"tcp", "udp"} {
			if _, err := traffic.Send(ctx, pods[0], traffic.Exchange{Proto: proto,
				To: addr}); err != nil {
				t.Errorf("a pod to the node %s over %s: %v", addr, proto, err)
			}
			if _, err := traffic.Send(ctx, remote,
				traffic.Exchange{Proto: proto, To: pods[0].Addrs[i]}); err != nil {
				t.Errorf("the node to the pod %s over %s: %v", pods[0].Addrs[i], proto, err)
			}
		}
	}
	tunnelled(ctx, t, l, before)
}

// unkeptSources removes the rules that keep pods' sources from translation: a node's answer would
// then be host to host.
func unkeptSources(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	nodetest.KillProgram(ctx, t, p.Node, "veild")

	nodetest.Run(ctx, t, p.Node, "nft", "flush", "chain", "inet", abi.NFTGuardTable, "keep_source")
	ask := func(timeout time.Duration) (answered, refused error) {
		for _, addr := range l.Nodes()[1].Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				_, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto, To: addr, Count: 1,
					Timeout: timeout})
				if err != nil {
					refused = errors.Join(refused, err)
				} else {
					answered = errors.Join(answered, fmt.Errorf("%s answered over %s", addr, proto))
				}
			}
		}
		return answered, refused
	}
	if err, _ := ask(300 * time.Millisecond); err != nil {
		t.Error(err)
	}

	nodetest.StartProgram(ctx, t, p.Node, "veild")

	settled(ctx, t, p.Node)
	if nodetest.Dropped(ctx, t, p.Node, "source_translated") == 0 {
		t.Error("nothing was counted: the sources were not translated")
	}
	if _, err := ask(5 * time.Second); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

// nodePorts publishes a pod of the third node at a port of the second one.
func nodePorts(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	a, b := l.Nodes()[0], l.Nodes()[1]
	foreign(ctx, t, b, "foreign_ports", published(portToPod, pods[2].Addrs))
	for _, addr := range b.Addrs {
		before := l.Oracle.Seen().Kinds[leak.Tunnel]
		for _, proto := range []string{"tcp", "udp"} {
			if _, err := traffic.Send(ctx, pods[0],
				traffic.Exchange{Proto: proto, To: addr, Port: portToPod}); err != nil {
				t.Errorf("a pod by %s to the pod over %s: %v", addr, proto, err)
			}
		}
		tunnelled(ctx, t, l, before)
		// As far as the second node that is host to host, and allowed by its name; from there on it
		// is to a pod.
		l.Oracle.Update(func(r *leak.Rules) {
			r.Flows = append(r.Flows, leak.Flow{Name: "port of a node", Proto: leak.TCP,
				Addr: addr, Port: portToPod})
		})
		before = l.Oracle.Seen().Kinds[leak.Tunnel]
		ask := fmt.Sprintf(
			`exec 3<>/dev/tcp/%s/%d; echo question >&3; read -r answer <&3; [ "$answer" = question ]`, addr, portToPod)
		if _, err := a.Exec(ctx, "timeout", "5", "bash", "-c", ask); err != nil {
			t.Errorf("a host by %s to the pod: %v", addr, err)
		}
		tunnelled(ctx, t, l, before)
	}
}

// published returns chains that translate packets to a port, to echo servers at addresses of both
// families, and masquerade them.
func published(port int, addrs []netip.Addr) string {
	return fmt.Sprintf(`chain pre { type nat hook prerouting priority -100;
			meta nfproto ipv4 meta l4proto { tcp, udp } th dport %[1]d dnat ip to %[2]s:%[4]d;
			meta nfproto ipv6 meta l4proto { tcp, udp } th dport %[1]d dnat ip6 to [%[3]s]:%[4]d;
		}
		chain post { type nat hook postrouting priority 100; ct status dnat masquerade; }`, port, addrs[0], addrs[1], traffic.EchoPort)
}

// tunnelled waits until the oracle has seen more messages of the tunnel than before.
func tunnelled(ctx context.Context, t *testing.T, l *lab.Lab, before uint64) {
	t.Helper()
	err := lab.Until(ctx, 5*time.Second, func() error {
		if now := l.Oracle.Seen().Kinds[leak.Tunnel]; now < before+8 {
			return fmt.Errorf("%d messages of the tunnel", now-before)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
