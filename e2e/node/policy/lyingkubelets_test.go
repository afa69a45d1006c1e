package policy_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// TestLyingKubelets lets the kubelet of a node that was taken over claim addresses for pods. No pod
// reaches the server by such a claim, and no pod of another node loses its access.
func TestLyingKubelets(t *testing.T) {
	ctx, l := policyLabOf(t, 3)
	nodetest.AllowClients(ctx, t, l, "client")
	n1, n2, n3 := l.Nodes()[0], l.Nodes()[1], l.Nodes()[2]
	server := nodetest.StartPod(ctx, t, n3, "server")
	nodetest.EchoAt(ctx, t, server)
	o := takenOver{l: l, node: n2, pods: kubelet(t, l, n2), server: server,
		client: nodetest.StartPod(ctx, t, n1, "client")}
	nodetest.PolicyBecomes(ctx, t, o.client, server, true)

	err := writeAddrs(ctx, o.pods, o.client.Name)
	if !apierrors.IsForbidden(err) {
		t.Fatalf("a kubelet writes the status of another node's pod: %v, want forbidden", err)
	}

	t.Run("an address in another node's prefix", func(t *testing.T) { o.otherPrefix(ctx, t, n1) })
	t.Run("a mirror pod", func(t *testing.T) { o.mirrorPod(ctx, t) })
	t.Run("an address of two pods", func(t *testing.T) { o.twoPods(ctx, t) })
	nodetest.NoLeaks(t, l)
}

// takenOver is a node whose kubelet lies. The server and its client run on other nodes.
type takenOver struct {
	l              *lab.Lab
	node           *lab.Node
	pods           typedcorev1.PodInterface // with the rights of the node's kubelet
	server, client *lab.Pod
}

// otherPrefix: an address that a pod claims outside the prefix of its node receives no label, and
// does not count as an address of two pods.
func (o takenOver) otherPrefix(ctx context.Context, t *testing.T, other *lab.Node) {
	stranger := nodetest.StartPod(ctx, t, other, "stranger")
	// Without an honest status, the lie is the only claim.
	wrote(t, writeAddrs(ctx, kubelet(t, o.l, other), stranger.Name))
	tries := nodetest.StartTries(ctx, t, o.server, stranger)

	o.claim(ctx, t, "client", stranger.Addrs)
	o.claim(ctx, t, "stranger", o.client.Addrs)
	o.waitHeard(ctx, t)
	nodetest.PolicyAllows(ctx, t, "claimed by another node", stranger, o.server, false)
	nodetest.PolicyAllows(ctx, t, "claimed by another node", o.client, o.server, true)
	nodetest.NoneAnswered(ctx, t, tries)
}

// mirrorPod: a kubelet chooses the labels of mirror pods, so mirror pods are not peers.
func (o takenOver) mirrorPod(ctx context.Context, t *testing.T) {
	stranger := nodetest.StartPod(ctx, t, o.node, "stranger")
	wrote(t, writeAddrs(ctx, o.pods, stranger.Name))
	tries := nodetest.StartTries(ctx, t, o.server, stranger)

	node, err := o.l.Control.Client.CoreV1().Nodes().Get(ctx, o.node.Name, metav1.GetOptions{})
	wrote(t, err)
	controller := true
	mirror := boundPod(o.node, "client")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "a hash"}
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node",
		Name: node.Name, UID: node.UID, Controller: &controller}}
	_, err = o.pods.Create(ctx, mirror, metav1.CreateOptions{})
	wrote(t, err)
	wrote(t, writeAddrs(ctx, o.pods, mirror.Name, stranger.Addrs...))

	o.waitHeard(ctx, t)
	nodetest.PolicyAllows(ctx, t, "a mirror pod has its address", stranger, o.server, false)
	nodetest.NoneAnswered(ctx, t, tries)
}

// twoPods: an address that two pods of a node claim belongs to neither until one of the claims is
// gone.
func (o takenOver) twoPods(ctx context.Context, t *testing.T) {
	client := nodetest.StartPod(ctx, t, o.node, "client")
	stranger := nodetest.StartPod(ctx, t, o.node, "stranger")
	nodetest.PolicyBecomes(ctx, t, client, o.server, true)
	tries := nodetest.StartTries(ctx, t, o.server, stranger)

	o.claim(ctx, t, "client", stranger.Addrs)
	second := o.claim(ctx, t, "stranger", client.Addrs)
	nodetest.PolicyBecomes(ctx, t, client, o.server, false)
	o.waitHeard(ctx, t)
	nodetest.PolicyAllows(ctx, t, "two pods claim it", client, o.server, false)
	nodetest.PolicyAllows(ctx, t, "two pods claim it", stranger, o.server, false)

	wrote(t, writeAddrs(ctx, o.pods, second))
	nodetest.PolicyBecomes(ctx, t, client, o.server, true)
	nodetest.PolicyAllows(ctx, t, "two pods still claim it", stranger, o.server, false)
	nodetest.NoneAnswered(ctx, t, tries)
}

// claim makes a pod of the node that does not run, and lets the kubelet claim addresses for it.
func (o takenOver) claim(ctx context.Context, t *testing.T, app string,
	addrs []netip.Addr) (name string) {
	t.Helper()
	pod := boundPod(o.node, app)
	_, err := o.l.Control.Client.CoreV1().Pods(nodetest.Shop).Create(ctx, pod, metav1.CreateOptions{})
	wrote(t, err)
	wrote(t, writeAddrs(ctx, o.pods, pod.Name, addrs...))
	return pod.Name
}

// waitHeard waits until an honest pod of the node reaches the server. Its status is younger than
// the false claims, so the server's node has then received them.
func (o takenOver) waitHeard(ctx context.Context, t *testing.T) {
	t.Helper()
	nodetest.PolicyBecomes(ctx, t, nodetest.StartPod(ctx, t, o.node, "client"), o.server, true)
}

// kubelet returns a client of pods with the rights of a node's kubelet: the administrator
// impersonates its user, and the Node authorizer and NodeRestriction judge what it writes.
func kubelet(t *testing.T, l *lab.Lab, n *lab.Node) typedcorev1.PodInterface {
	t.Helper()
	c := rest.CopyConfig(l.Control.Config)
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + n.Name,
		Groups: []string{"system:nodes"}}
	client, err := kubernetes.NewForConfig(c)
	errtest.Must(t, err)
	return client.CoreV1().Pods(nodetest.Shop)
}

// boundPod returns a pod of an app that is bound to a node.
func boundPod(n *lab.Node, app string) *corev1.Pod {
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: nodetest.PodName(app), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: n.Name, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

// writeAddrs replaces the addresses in a pod's status.
func writeAddrs(ctx context.Context, pods typedcorev1.PodInterface, name string,
	addrs ...netip.Addr) error {
	var first any // null removes it
	ips := []corev1.PodIP{}
	for _, a := range addrs {
		ips = append(ips, corev1.PodIP{IP: a.String()})
	}
	if len(ips) > 0 {
		first = ips[0].IP
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"podIP": first,
		"podIPs": ips}})
	if err != nil {
		return err
	}
	_, err = pods.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// wrote ends the test unless the API server accepted the request.
func wrote(t *testing.T, err error) {
	t.Helper()
	errtest.Must(t, err)
}
