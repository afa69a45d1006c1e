package sites_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// restored bounds the time after a restore. It begins with API servers that start on a busy machine.
const restored = 2 * time.Minute

// A restored etcd lacks what was written since the backup. Both processes of veil-site run on. If it
// is the etcd of the importing cluster, all that the other one exports is mirrored again. If it is
// the etcd of the exporting cluster, the other one follows it: an export that the restore brought
// back is served, and one that it lost is not.
func TestRestoreOfEitherEtcdLosesNothing(t *testing.T) {
	ctx, p := newPair(t)
	p.introduce(ctx, t)
	errtest.Must(t, p.a.Control.BackUpEtcd(ctx)) // without anything that is mirrored
	p.a.start(ctx)
	p.b.start(ctx)
	p.b.export(ctx, t, "first", false, "10.245.0.5")
	p.b.export(ctx, t, "second", true, "10.245.0.6")
	p.serves(ctx, t, []string{"first", "second"})
	errtest.Must(t, p.a.Control.RestoreEtcd(ctx, nil))
	t.Log("etcd of the importing cluster is restored")
	p.serves(ctx, t, []string{"first", "second"})

	errtest.Must(t, p.b.Control.BackUpEtcd(ctx))
	p.b.unexport(ctx, t, "first")
	p.b.export(ctx, t, "third", false, "10.245.0.7")
	p.serves(ctx, t, []string{"second", "third"}, "first")
	errtest.Must(t, p.b.Control.RestoreEtcd(ctx, nil))
	t.Log("etcd of the exporting cluster is restored")
	p.serves(ctx, t, []string{"first", "second"}, "third")
}

// serves waits until a has the node of b, serves these exports of b, and has nothing of others.
func (p pair) serves(ctx context.Context, t *testing.T, names []string, others ...string) {
	t.Helper()
	err := lab.Until(ctx, restored, func() error {
		if _, err := p.a.Control.Dynamic.Resource(siteNodes).Get(ctx, "b.node-1",
			metav1.GetOptions{}); err != nil {
			return err
		}
		for _, name := range names {
			i, addrs, err := p.a.served(ctx, name)
			if err != nil {
				return err
			}
			if len(addrs["b"]) != 1 || len(i.Status.Clusters) != 1 {
				return fmt.Errorf("%s is served at %v, of %v", name, addrs, i.Status.Clusters)
			}
		}
		for _, name := range others {
			if err := p.a.gone(ctx, name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cluster a does not serve what b exports: %v", err)
	}
}
