package network_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// inForce bounds how long a change may take after the servers are back from a restore.
const inForce = 10 * time.Second

// After a restore of etcd its revisions are used again. Later policies and keys are in force all
// the same, soon.
func TestPolicyAndKeyAfterEtcdWasRestored(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{VeildConfig: map[string]any{"policy": "kubernetes"}})
	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	client, server := nodetest.StartPod(ctx, t, n1, "client"), nodetest.StartPod(ctx, t, n1, "server")
	far := nodetest.StartPod(ctx, t, n2, "far")
	for _, p := range []*lab.Pod{client, server, far} {
		nodetest.EchoAt(ctx, t, p)
	}
	nodetest.WaitMembers(ctx, t, n1, 2)
	nodetest.WaitMembers(ctx, t, n2, 1)
	nodetest.PolicyBecomes(ctx, t, client, server, true)

	errtest.Must(t, l.Control.BackUpEtcd(ctx))
	// What is seen of each kind after the backup has revisions that are used again.
	advance(ctx, t, l.Control, 100)
	denyIngress(ctx, t, l.Control, "other")
	changeKey(ctx, t, l, []*lab.Pod{client, far})
	errtest.Must(t, l.Control.RestoreEtcd(ctx, nil))

	began := time.Now()
	denyIngress(ctx, t, l.Control, "server")
	err := lab.Until(ctx, inForce, func() error {
		if k := nodetest.Talks(ctx, client, server.Addrs); k > 0 {
			return fmt.Errorf("the client reaches %d addresses of the server", k)
		}
		return nil
	})
	if err != nil {
		s := nodetest.NodeStatus(ctx, t, n1)
		t.Errorf("a policy made after the restore is not in force: %v; problems %q", err, s.Problems)
	}
	t.Logf("a policy made after the restore was in force after %v",
		time.Since(began).Round(10*time.Millisecond))

	// The restored VeilNode has the key before the one of now.
	nodetest.Meet(ctx, t, client, far)
	t.Logf("the key of before the restore was back %v after the servers",
		time.Since(began).Round(10*time.Millisecond))
	changeKey(ctx, t, l, []*lab.Pod{client, far})
	t.Run("a key that is made meanwhile", func(t *testing.T) {
		advance(ctx, t, l.Control, 100)
		keyDuringRestore(ctx, t, l, client, far)
	})
	nodetest.NoLeaks(t, l)
}

// unnamed bounds how long no status may name the cause while a peer's new key is not known. An
// event of the API server may take as long on a busy machine.
const unnamed = 6 * time.Second

// keyDuringRestore restores etcd, and makes another key on the second node while the API server is
// away. The first node takes it over soon after the server is back. Until then the status of a node
// names the API server.
func keyDuringRestore(ctx context.Context, t *testing.T, l *lab.Lab, near, far *lab.Pod) {
	n1, n2 := near.Node, far.Node
	names := func(s telemetry.Status) bool {
		return strings.Contains(strings.Join(s.Problems, "\n"), "API server")
	}
	var old wgkey.Public
	errtest.Must(t, l.Control.RestoreEtcd(ctx, func() {
		old = removeKey(ctx, t, n2)
		for _, n := range []*lab.Node{n1, n2} {
			nodetest.WaitStatus(ctx, t, n, 30*time.Second, func(s telemetry.Status) error {
				if !names(s) {
					return fmt.Errorf("problems %q, want one that names the API server", s.Problems)
				}
				return nil
			})
		}
	}))

	began := time.Now()
	named := began
	err := lab.Until(ctx, inForce, func() error {
		s := nodetest.NodeStatus(ctx, t, n1)
		if names(s) || names(nodetest.NodeStatus(ctx, t, n2)) {
			named = time.Now()
		}
		if len(s.Peers) == 1 && s.Peers[0].PublicKey != old {
			return nil
		}
		if silent := time.Since(named); silent > unnamed {
			return lab.Stop(fmt.Errorf("no status named the cause for %v", silent))
		}
		return fmt.Errorf("peers %+v, problems %q", s.Peers, s.Problems)
	})
	if err != nil {
		t.Errorf("a key made during the restore is not taken over: %v", err)
	}
	t.Logf("a key made during the restore was known %v after the servers were back",
		time.Since(began).Round(10*time.Millisecond))
	nodetest.Meet(ctx, t, near, far)
}

// advance writes so many objects that no node watches.
func advance(ctx context.Context, t *testing.T, c *lab.Control, revisions int) {
	t.Helper()
	for i := range revisions {
		_, err := c.Client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("advance-%d", i)}}, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
}

// denyIngress makes a policy that lets no pod reach the pods of an app.
func denyIngress(ctx context.Context, t *testing.T, c *lab.Control, app string) {
	t.Helper()
	_, err := c.Client.NetworkingV1().NetworkPolicies(nodetest.Shop).Create(ctx,
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: app},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			}}, metav1.CreateOptions{})
	errtest.Must(t, err)
}
