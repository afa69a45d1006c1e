package policy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// TestOwnNode turns policyOwnNode on at one node and off again. A pod that may send nothing reaches
// that node and no other one, unless the Admin tier denies nodes or the pod has no verdict yet.
func TestOwnNode(t *testing.T) {
	ctx, l := policyLab(t)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	for _, n := range l.Nodes() {
		nodetest.EchoAt(ctx, t, n)
	}
	closePods(ctx, t, l)
	closed, open := nodetest.StartPod(ctx, t, n1, "closed"), nodetest.StartPod(ctx, t, n1, "open")
	nodetest.WaitMembers(ctx, t, n1, 2)
	reachesNode(ctx, t, "judge", open, n1, true)
	reachesNode(ctx, t, "judge", closed, n1, false)
	errtest.Check(t, n1.Program("veild").WaitLine(ctx, "a policy denied a connection",
		10*time.Second))

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
