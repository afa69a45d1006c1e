package network_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// controlPlane: the API server is real. Nodes are registered and reach it, and it keeps its data
// when it is killed.
func controlPlane(ctx context.Context, t *testing.T, l *lab.Lab) {
	errtest.Must(t, l.Control.StopAPIServer(ctx))
	errtest.Must(t, l.Control.StartAPIServer(ctx))
	list, err := l.Control.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	if len(list.Items) != len(l.Nodes()) {
		t.Fatalf("nodes in the API: %d, in the lab: %d", len(list.Items), len(l.Nodes()))
	}
	for _, n := range l.Nodes() {
		for _, a := range l.Control.Addrs() {
			if _, err := n.Exec(ctx, "timeout", "5", "bash", "-c",
				"exec 3<>/dev/tcp/"+a.String()+"/6443"); err != nil {
				t.Error(err)
			}
		}
	}
}

// Pods on two nodes talk over both protocols, and nothing of it is on the wire in clear.
func TestPodsTalkEncrypted(t *testing.T) {
	encrypted(t, lab.Dual, func(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod) {
		t.Run("veilctl", func(t *testing.T) { veilctlOnANode(ctx, t, l, pods) })
		t.Run("new pods", func(t *testing.T) { newPodsTalkAtOnce(ctx, t, l.Nodes()[0], pods[1]) })
		t.Run("API server killed", func(t *testing.T) { controlPlane(ctx, t, l) })
	})
}

// The same over one family each.
func TestPodsTalkEncryptedIPv4(t *testing.T) { encrypted(t, lab.IPv4, nil) }
func TestPodsTalkEncryptedIPv6(t *testing.T) { encrypted(t, lab.IPv6, nil) }

// encrypted lets pods talk, and does more while they are there.
func encrypted(t *testing.T, family lab.Family,
	more func(ctx context.Context, t *testing.T, l *lab.Lab, pods []*lab.Pod)) {
	ctx, l := nodetest.NewLab(t, lab.Options{Family: family})
	pods := nodetest.EchoPods(ctx, t, l)
	nodetest.Meet(ctx, t, pods[0], pods[1])
	talk(ctx, t, pods[0], pods[1])
	if more != nil {
		more(ctx, t, l, pods)
		talk(ctx, t, pods[0], pods[1])
	}
	for _, p := range pods {
		if err := p.Check(ctx); err != nil {
			t.Errorf("CHECK %s: %v", p.ID, err)
		}
		if err := p.Del(ctx); err != nil {
			t.Errorf("DEL %s: %v", p.ID, err)
		}
	}
	nodetest.NoLeaks(t, l)
}
