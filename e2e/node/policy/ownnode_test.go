package policy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// TestOwnNode turns policyOwnNode on at one node and off again. A pod that may send nothing reaches
// that node and no other one, unless the Admin tier denies nodes or the pod has no verdict yet.
func TestOwnNode(t *testing.T) {
	ctx, l := policyLab(t)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	for _, n := range l.Nodes() {
		nodetest.EchoAt(ctx, t, n)
	}
	if _, err := l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop).Create(ctx,
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "closed"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "closed"}},
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	closed, open := nodetest.StartPod(ctx, t, n1, "closed"), nodetest.StartPod(ctx, t, n1, "open")
	nodetest.WaitMembers(ctx, t, n1, 2)
	reachesNode(ctx, t, "judge", open, n1, true)
	reachesNode(ctx, t, "judge", closed, n1, false)
	errtest.Check(t, n1.Program("veild").WaitLine(ctx, "a policy denied a connection",
		10*time.Second))
	deniedIsNamed(ctx, t, l, closed)

	restartWith(ctx, t, n1, "policyOwnNode: allow\n")
	nodetest.WaitMembers(ctx, t, n1, 2)
	reachesNode(ctx, t, "allow", closed, n1, true)
	reachesNode(ctx, t, "allow", closed, n2, false)

	definitions := l.Control.Dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	definition := nodetest.ClusterPolicyDefinition()
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	denyNodes(ctx, t, l)
	reachesNode(ctx, t, "the Admin tier denies nodes", closed, n1, false)
	errtest.Must(t, definitions.Delete(ctx, definition.GetName(), metav1.DeleteOptions{}))
	reachesNode(ctx, t, "the Admin tier is gone", closed, n1, true)

	nodetest.KillProgram(ctx, t, n1, "veild")
	reachesNode(ctx, t, "veild is dead", closed, n1, true)
	late := nodetest.StartPod(ctx, t, n1, "closed")
	reachesNode(ctx, t, "veild is dead, a pod that it does not know", late, n1, false)
	restartWith(ctx, t, n1, "policyOwnNode: judge\n")
	nodetest.WaitMembers(ctx, t, n1, 3)
	reachesNode(ctx, t, "judge again", closed, n1, false)
	nodetest.NoLeaks(t, l)
}

// deniedIsNamed sends a datagram to the node that the policy closed denies. veilctl drops must show
// it with its pod and the policy.
func deniedIsNamed(ctx context.Context, t *testing.T, l *lab.Lab, closed *lab.Pod) {
	t.Helper()
	const port = 4711
	own, _ := nodetest.LinkOf(ctx, t, closed, "eth0")
	d := nodetest.Datagram{From: own, To: nodetest.GatewayOf(ctx, t, closed),
		Src: closed.Addr(false), Dst: closed.Node.Addrs[0], SrcPort: port,
		DstPort: traffic.SinkPort, Payload: []byte("01234567" + l.Canary)}
	nodetest.Inject(ctx, t, closed, "eth0", d.Frame())
	nodetest.ShowsDrop(ctx, t, l, closed.Node, "--pod shop/"+closed.Name,
		func(p telemetry.DroppedPacket) bool {
			return p.Reason == "policy_egress" && p.Src == d.Src && p.Dst == d.Dst &&
				p.SrcPort == port && p.DstPort == d.DstPort && p.Protocol == "udp" &&
				slices.Equal(p.Policies, []string{"shop/closed"}) &&
				p.Rule == "no rule of these allows it"
		})
}

// reachesNode waits until a pod reaches its node by all addresses, or by none.
func reachesNode(ctx context.Context, t *testing.T, when string, from *lab.Pod, to *lab.Node,
	want bool) {
	t.Helper()
	err := lab.Until(ctx, 20*time.Second, func() error {
		reached := nodetest.Talks(ctx, from, to.Addrs)
		if want && reached != len(to.Addrs) || !want && reached != 0 {
			return fmt.Errorf("%s: %s reaches %d addresses of %s, want all: %t", when, from.Name,
				reached, to.Name, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// restartWith replaces a node's veild, which has one more line of configuration then. A key that is
// already there gets another value.
func restartWith(ctx context.Context, t *testing.T, n *lab.Node, line string) {
	t.Helper()
	if p := n.Program("veild"); p.Running() {
		errtest.Must(t, p.Kill(ctx))
	}
	file := filepath.Join(n.Disk(), "etc/kubeveil/veild.yaml")
	first := file + ".first"
	if _, err := os.Stat(first); err != nil {
		errtest.Must(t, os.Link(file, first))
	}
	text := filetest.Read(t, first)
	errtest.Must(t, os.Remove(file))
	filetest.Write(t, file, append(text, line...), 0o644)
	nodetest.StartProgram(ctx, t, n, "veild")
}

// denyNodes makes the Admin tier deny closed pods all nodes.
func denyNodes(ctx context.Context, t *testing.T, l *lab.Lab) {
	t.Helper()
	applyClusterObject(ctx, t, l, "nodes", map[string]any{"tier": "Admin", "priority": int64(10),
		"subject": clusterPods("closed"), "egress": []any{map[string]any{"action": "Deny",
			"to": []any{map[string]any{"nodes": map[string]any{}}}}}})
}
