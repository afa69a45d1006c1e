package network_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// TestPeersDoNotLeaveTheClusterByThisNode takes over node-2. It adds the addresses of the host
// outside to the allowed IPs of node-1, and routes its pod's packets to that host into the tunnel.
func TestPeersDoNotLeaveTheClusterByThisNode(t *testing.T) {
	t.Parallel()
	for _, proxy := range []string{"none", "ebpf"} {
		t.Run("serviceProxy "+proxy, func(t *testing.T) {
			ctx, l := nodetest.NewLab(t,
				lab.Options{VeildConfig: map[string]any{"serviceProxy": proxy}})
			pods := nodetest.EchoPods(ctx, t, l)
			nodetest.Meet(ctx, t, pods[0], pods[1])
			nodetest.EchoAt(ctx, t, l.Outside)

			n1 := l.Nodes()[0]
			useAsOutlet(ctx, t, n1, l.Nodes()[1], l.OutsideAddrs())
			before := nodetest.Dropped(ctx, t, n1, "tunnel_to_outside")
			for _, a := range l.OutsideAddrs() {
				for _, proto := range []string{"tcp", "udp"} {
					x := traffic.Exchange{Proto: proto, To: a, Egress: true,
						Timeout: 2 * time.Second}
					if _, err := traffic.Send(ctx, pods[1], x); err == nil {
						t.Errorf("a pod of node-2 reached %s over %s by node-1", a, proto)
					}
					if after := nodetest.Dropped(ctx, t, n1, "tunnel_to_outside"); after == before {
						t.Errorf("no packet to %s over %s was counted", a, proto)
					} else {
						before = after
					}
				}
			}

			reachable(ctx, t, l, pods[0])
			talk(ctx, t, pods[0], pods[1])
			nodetest.NoLeaks(t, l)
		})
	}
}

// useAsOutlet makes a node send its pods' packets to these addresses into its tunnel to another.
func useAsOutlet(ctx context.Context, t *testing.T, outlet, n *lab.Node, to []netip.Addr) {
	t.Helper()
	key := nodetest.NodeStatus(ctx, t, outlet).Devices[0].PublicKey
	nodetest.KillProgram(ctx, t, n, "veild")
	request := fmt.Sprintf("set=1\npublic_key=%s\n", hex.EncodeToString(key[:]))
	for _, a := range to {
		request += fmt.Sprintf("allowed_ip=%s\n", netip.PrefixFrom(a, a.BitLen()))
		line := fmt.Sprintf("route replace %s dev veil0 table %d", a, abi.TablePod)
		errtest.Must(t, n.IP(ctx, line))
	}
	errtest.Must(t, errtest.Of(uapi(n, request+"\n")))
}
