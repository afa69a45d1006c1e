package network_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// stopped waits until a process is stopped.
func stopped(ctx context.Context, t *testing.T, pid int) {
	t.Helper()
	errtest.Must(t, lab.Until(ctx, 10*time.Second, func() error {
		stat := filetest.Read(t, fmt.Sprintf("/proc/%d/stat", pid))
		if !bytes.Contains(stat, []byte(") T ")) {
			return fmt.Errorf("process %d is not stopped: %s", pid, stat)
		}
		return nil
	}))
}

// A lab that gets the control plane of an earlier lab finds none of its objects: Node, VeilNode,
// namespace, pods with and without a finalizer. Between the two labs, it is stopped. A control plane
// whose own objects a lab has changed goes to no other lab.
func TestNextLabHasNoObjectsOfTheLabBefore(t *testing.T) {
	t.Parallel()
	nodetest.WaitTurn(t)
	ctx := t.Context()
	var pool lab.Pool
	t.Cleanup(func() { errtest.Must(t, pool.Close()) })
	begin := func() *lab.Lab {
		t.Helper()
		l, err := lab.New(ctx, lab.Options{Nodes: -1, Pool: &pool})
		errtest.Must(t, err)
		t.Cleanup(func() { errtest.Must(t, l.Close()) })
		return l
	}
	finish := func(l *lab.Lab) {
		t.Helper()
		_, err := l.Finish()
		errtest.Must(t, err)
	}

	first := begin()
	errtest.Must(t, first.Control.AddNamespace(ctx, nodetest.Shop),
		first.Announce(ctx, cluster.Node{Name: "node-9"}))
	_, err := first.Control.Dynamic.Resource(nodetest.VeilNodes).Create(ctx,
		nodetest.VeilNode("node-9", "Node", "node-9"), metav1.CreateOptions{})
	errtest.Must(t, err)
	for name, finalizers := range map[string][]string{"plain": nil, "kept": {"example.org/keep"}} {
		_, err = first.Control.Client.CoreV1().Pods(nodetest.Shop).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers},
			Spec: corev1.PodSpec{NodeName: "node-9",
				Containers: []corev1.Container{{Name: "c", Image: "example.org/c"}}},
		}, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	server := first.Control.APIServer.PID()
	finish(first)
	stopped(ctx, t, server)

	second := begin()
	if got := second.Control.APIServer.PID(); got != server {
		t.Errorf("the API server is process %d, and of the lab before %d", got, server)
	}
	pods, err := second.Control.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	nodes, err := second.Control.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	claims, err := second.Control.Dynamic.Resource(nodetest.VeilNodes).List(ctx,
		metav1.ListOptions{})
	errtest.Must(t, err)
	if n := len(pods.Items) + len(nodes.Items) + len(claims.Items); n > 0 {
		t.Errorf("%d objects of the lab before are there: %v, %v, %v", n, pods.Items, nodes.Items,
			claims.Items)
	}
	// The name is free again, and veild's own account is there.
	errtest.Must(t, second.Control.AddNamespace(ctx, nodetest.Shop))
	_, err = second.Control.Client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Get(ctx,
		nodetest.DaemonAccount, metav1.GetOptions{})
	errtest.Must(t, err)

	_, err = second.Control.Client.RbacV1().ClusterRoles().Patch(ctx, "kubeveil-veild",
		types.MergePatchType, []byte(`{"metadata":{"labels":{"changed":"true"}}}`),
		metav1.PatchOptions{})
	errtest.Must(t, err)
	finish(second)
	if second.Control.APIServer.Running() {
		t.Error("an API server whose role was changed goes to another lab")
	}
}
