package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Ports of the second node that lead to a process of a host: the node of the client pod, and the
// third node.
const (
	portToOwn   = 30002
	portToThird = 30003
)

// behind is a pod's request to an address, and the source address that the backend must see.
type behind struct {
	name    string
	from    *lab.Pod
	to      netip.Addr
	port    int
	backend traffic.Place
	source  netip.Addr
}

// hostsBehindPorts publishes hosts at ports of the second node, as kube-proxy does for pods of the
// host's network. A request of another node's pod there comes to the host from an address of the
// second node's pods. So the answer goes back encrypted and by that node. A packet that needs no
// translation by Kubeveil keeps its source.
func hostsBehindPorts(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
	a, b, c := l.Nodes()[0], l.Nodes()[1], l.Nodes()[2]
	foreign(ctx, t, b, "foreign_own", published(portToOwn, a.Addrs))
	foreign(ctx, t, b, "foreign_third", published(portToThird, c.Addrs))

	for _, at := range []traffic.Place{a, c, pods[2]} {
		noteSources(ctx, t, at)
	}

	var asked []behind
	for i, addr := range b.Addrs {
		asked = append(asked,
			behind{"another node's pod to its own host", pods[0], addr, portToOwn, a,
				b.PodPrefixes[i].Addr().Next()},
			behind{"another node's pod to a third host", pods[0], addr, portToThird, c,
				b.PodPrefixes[i].Addr().Next()},
			behind{"another node's pod to a pod", pods[0], addr, portToPod, pods[2], addr},
			behind{"the node's pod to a third host", pods[1], addr, portToThird, c,
				pods[1].Addrs[i]},
			behind{"a pod to a host", pods[0], c.Addrs[i], traffic.EchoPort, c, pods[0].Addrs[i]})
	}

	for _, q := range asked {
		for _, proto := range []string{"tcp", "udp"} {
			before := l.Oracle.Seen().Kinds[leak.Tunnel]
			if _, err := traffic.Send(ctx, q.from,
				traffic.Exchange{Proto: proto, To: q.to, Port: q.port}); err != nil {
				t.Errorf("%s by %s over %s: %v", q.name, q.to, proto, err)
			}
			if got := notedSources(ctx, t, q.backend); !slices.Equal(got,
				[]string{q.source.String()}) {
				t.Errorf("%s by %s over %s: it came from %q, want %s", q.name, q.to, proto, got,
					q.source)
			}
			tunnelled(ctx, t, l, before)
		}
	}

	hostsUnreached(ctx, t, l, pods[0])
}

// hostsUnreached removes, without a daemon to repair it, first the source address of such requests
// and then the rule. Without them the reply of a host could come in clear or not at all. So the
// requests must reach no host.
func hostsUnreached(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod) {
	b := l.Nodes()[1]
	ask := func(timeout time.Duration, each func(addr netip.Addr, proto string, err error)) {
		for _, addr := range b.Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				_, err := traffic.Send(ctx, p, traffic.Exchange{Proto: proto, To: addr,
					Port: portToOwn, Count: 1, Timeout: timeout})
				each(addr, proto, err)
			}
		}
	}

	before := nodetest.Dropped(ctx, t, b, "source_translated")
	nodetest.KillProgram(ctx, t, b, "veild")

	for _, taken := range []string{"flush map inet %[1]s self4; flush map inet %[1]s self6",
		"flush chain inet %[1]s keep_source"} {
		taken = fmt.Sprintf(taken, abi.NFTGuardTable)
		nodetest.Run(ctx, t, b, "nft", taken)
		ask(300*time.Millisecond, func(addr netip.Addr, proto string, err error) {
			if err == nil {
				t.Errorf("after %s: %s answered over %s", taken, addr, proto)
			}
		})
	}

	nodetest.StartProgram(ctx, t, b, "veild")

	settled(ctx, t, b)
	if nodetest.Dropped(ctx, t, b, "source_translated") == before {
		t.Error("nothing was counted: without the rule the sources were not translated")
	}

	ask(5*time.Second, func(addr netip.Addr, proto string, err error) {
		if err != nil {
			t.Errorf("after the repair: %s over %s: %v", addr, proto, err)
		}
	})
}

// noteSources makes a place record the sources of the requests to its echo server.
func noteSources(ctx context.Context, t *testing.T, at traffic.Place) {
	t.Helper()
	nodetest.Run(ctx, t, at, "nft", fmt.Sprintf(`table inet sources {
		set four { type ipv4_addr; size 64; flags dynamic; }
		set six { type ipv6_addr; size 64; flags dynamic; }
		chain in { type filter hook input priority 0;
			meta l4proto { tcp, udp } th dport %[1]d update @four { ip saddr }
			meta l4proto { tcp, udp } th dport %[1]d update @six { ip6 saddr }
		}
	}`, traffic.EchoPort))
}

// notedSources returns the recorded sources, and deletes them.
func notedSources(ctx context.Context, t *testing.T, at traffic.Place) (sources []string) {
	t.Helper()
	for _, set := range []string{"four", "six"} {
		_, elements, _ := strings.Cut(nodetest.Run(ctx, t, at, "nft", "list", "set", "inet",
			"sources", set),
			"elements = {")
		elements, _, _ = strings.Cut(elements, "}")
		for e := range strings.SplitSeq(elements, ",") {
			if e = strings.TrimSpace(e); e != "" {
				sources = append(sources, e)
			}
		}
		nodetest.Run(ctx, t, at, "nft", "flush", "set", "inet", "sources", set)
	}
	return sources
}
