package policy_test

import (
	"context"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// closePods creates a policy by which pods with the label app: closed may send nothing.
func closePods(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	policies := l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop)
	errtest.Must(t, errtest.Of(policies.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "closed"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
	}, metav1.CreateOptions{})))
}

// veilctl drops shows a datagram that a policy denies with its pod, the policy and the rule. The
// test runs on other kernels too (e2e/kernel).
func TestDeniedPacketIsNamed(t *testing.T) {
	t.Parallel()
	// An emulated machine needs minutes to start an API server.
	ctx, l := nodetest.LongLab(t, lab.Options{Nodes: 1, VeildConfig: map[string]any{
		"policy": "kubernetes"}}, 15*time.Minute)
	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
	closePods(ctx, t, l)
	n := l.Nodes()[0]
	closed := nodetest.StartPod(ctx, t, n, "closed")
	nodetest.WaitMembers(ctx, t, n, 1)

	own, _ := nodetest.LinkOf(ctx, t, closed, "eth0")
	for i, to := range n.Addrs {
		d := nodetest.Datagram{From: own, To: nodetest.GatewayOf(ctx, t, closed),
			Src: closed.Addrs[i], Dst: to, SrcPort: uint16(4711 + i), DstPort: traffic.SinkPort,
			Payload: []byte("01234567" + l.Canary)}
		nodetest.Inject(ctx, t, closed, "eth0", d.Frame())
		nodetest.ShowsDrop(ctx, t, l, n, "--pod shop/"+closed.Name,
			func(p telemetry.DroppedPacket) bool {
				return p.Reason == "policy_egress" && p.Src == d.Src && p.Dst == d.Dst &&
					p.SrcPort == d.SrcPort && p.DstPort == d.DstPort && p.Protocol == "udp" &&
					slices.Equal(p.Policies, []string{"shop/closed"}) &&
					p.Rule == "no rule of these allows it"
			})
	}
	nodetest.NoLeaks(t, l)
}
