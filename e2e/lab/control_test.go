package lab_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

// The API server is real: nodes register, the manifests apply, and it comes back after it was killed.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	for _, family := range []lab.Family{lab.IPv4, lab.IPv6, lab.Dual} {
		t.Run(string(family), func(t *testing.T) {
			ctx, l := newLab(t, lab.Options{Family: family, NoBoot: true})
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
					if _, err := n.Exec(ctx, "timeout", "5", "bash", "-c", "exec 3<>/dev/tcp/"+a.String()+"/6443"); err != nil {
						t.Error(err)
					}
				}
			}
			result, err := l.Finish()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d frames: %v", result.Frames, result.Kinds)
			if err := result.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
