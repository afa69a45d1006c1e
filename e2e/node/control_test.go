package node_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// controlPlane: the API server is real. Nodes are registered and reach it, and it comes back with
// what it had after it was killed.
func controlPlane(ctx context.Context, t *testing.T, l *lab.Lab) {
	if err := l.Control.StopAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Control.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	list, err := l.Control.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
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

// What needs an API server and no node: our objects, the look at a cluster before an installation,
// and the store of volumes, at whose end the server is away.
func TestAPIServerAlone(t *testing.T) {
	ctx, l := newLab(t, lab.Options{Nodes: -1})
	t.Run("manifests are accepted", func(t *testing.T) { manifestsAccepted(ctx, t, l) })
	t.Run("veilctl check", func(t *testing.T) { installChecks(ctx, t, l) })
	t.Run("store of volumes", func(t *testing.T) { volumeStore(ctx, t, l) })
}
