package policy_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// With the policy in force, the daemons still work. A node that joins is published, overwrites
// another writer's change to its claim, and removes the claim when it is cleaned up.
func TestDaemonsUnderThePolicy(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{})
	nodetest.PolicyInForce(ctx, t, nodetest.VeilNodesAs(t, l,
		nodetest.StolenToken(t, l.Nodes()[0])), l.Nodes()[1].Name)
	n, err := l.AddNode(ctx)
	errtest.Must(t, err)
	nodetest.WaitReady(ctx, t, n)

	// Another writer's change to a claim is overwritten by its node, which is an update.
	admin := l.Control.Dynamic.Resource(nodetest.VeilNodes)
	err = lab.Until(ctx, 20*time.Second, func() error {
		_, err := admin.Get(ctx, n.Name, metav1.GetOptions{})
		return err
	})
	errtest.Must(t, err)

	if _, err := admin.Patch(ctx, n.Name, "application/merge-patch+json",
		[]byte(`{"spec":{"mtu":1234}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	err = lab.Until(ctx, 20*time.Second, func() error {
		o, err := admin.Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if mtu, _, _ := unstructured.NestedInt64(o.Object, "spec", "mtu"); mtu == 1234 {
			return fmt.Errorf("the change stays")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	nodetest.KillProgram(ctx, t, n, "veild")
	if _, err := n.Exec(ctx, filepath.Join(nodetest.Root(t), "out/bin/veild"), "cleanup",
		"--config", lab.ConfigFile); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Get(ctx, n.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("cleanup left the VeilNode: %v", err)
	}
}
