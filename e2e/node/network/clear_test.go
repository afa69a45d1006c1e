package network_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// talk exchanges messages between pods on two nodes, in both directions, by TCP and UDP and all
// address families.
func talk(ctx context.Context, t *testing.T, a, b *lab.Pod) {
	t.Helper()
	for _, pair := range [][2]*lab.Pod{{a, b}, {b, a}} {
		for _, to := range pair[1].Addrs {
			for _, proto := range []string{"tcp", "udp"} {
				for _, size := range []int{200, 1200} {
					if _, err := traffic.Send(ctx, pair[0],
						traffic.Exchange{Proto: proto, To: to, Size: size}); err != nil {
						t.Errorf("%s to %s over %s, %d bytes: %v", pair[0].ID, pair[1].ID, proto,
							size, err)
						between(ctx, t, pair[0], pair[1])
					}
				}
			}
		}
	}
}

// between logs state that may explain why two pods cannot reach each other: drops with reasons,
// conntrack entries, and the pods' neighbours.
func between(ctx context.Context, t *testing.T, pods ...*lab.Pod) {
	t.Helper()
	for _, p := range pods {
		out, err := p.Node.Exec(ctx, "sh", "-c",
			"nft list counters | grep -B1 'packets [1-9]'; grep dport=7000 "+
				"/proc/net/nf_conntrack; ip neigh; ip -s link show group "+
				fmt.Sprint(abi.PodGroup))
		t.Logf("%s: %v\n%s", p.Node.Name, err, out)
		out, err = p.Exec(ctx, "sh", "-c", "ip neigh; grep -h Udp /proc/net/snmp /proc/net/snmp6")
		t.Logf("%s: %v\n%s", p.ID, err, out)
	}
}

// This is the negative control: the oracle sees the traffic of a network that does not encrypt.
func TestOracleSeesTheClearNetwork(t *testing.T) {
	t.Parallel()
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6, lab.Dual} {
		t.Run(string(family), func(t *testing.T) {
			ctx, l := nodetest.NewLab(t, lab.Options{Network: lab.Clear, Family: family})
			pods := nodetest.EchoPods(ctx, t, l)
			talk(ctx, t, pods[0], pods[1])
			result, err := l.Finish()
			errtest.Must(t, err)
			t.Logf("%d frames, %d plaintext: %v", result.Frames, result.Plaintext, result.Kinds)
			if result.Dropped != 0 || result.Kinds[leak.LeakCanary] == 0 ||
				result.Kinds[leak.LeakAddress] == 0 {
				t.Errorf("the oracle saw no leak in clear traffic: %+v", result)
			}
			if result.Err() == nil {
				t.Error("a leak did not return an error")
			}
		})
	}
}
