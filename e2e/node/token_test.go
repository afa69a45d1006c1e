package node_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/e2e/lab"
)

var veilNodes = schema.GroupVersionResource{Group: "kubeveil.io", Version: "v1alpha1",
	Resource: "veilnodes"}

// daemonNamespace and daemonAccount are the service account of veild in the manifests.
const (
	daemonNamespace = "kube-system"
	daemonAccount   = "veild"
)

// as returns a client that has nothing but a token of veild's service account.
func as(t *testing.T, l *lab.Lab, token string) dynamic.ResourceInterface {
	t.Helper()
	c := rest.AnonymousClientConfig(l.Control.Config)
	c.BearerToken, c.QPS, c.Burst = token, 1000, 1000
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return d.Resource(veilNodes)
}

// stolenToken is the one on a node's disk, bound to the Node.
func stolenToken(t *testing.T, n *lab.Node) string {
	t.Helper()
	c, err := clientcmd.LoadFromFile(filepath.Join(n.Disk(), "etc/kubeveil/kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range c.AuthInfos {
		return u.Token
	}
	t.Fatal("the kubeconfig has no user")
	return ""
}

// newToken asks for a token as a kubelet does, bound to the object, or to none when it is nil.
func newToken(ctx context.Context, t *testing.T, l *lab.Lab,
	bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	r, err := l.Control.Client.CoreV1().ServiceAccounts(daemonNamespace).CreateToken(ctx,
		daemonAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: bound}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

// daemonPod is a pod of veild's on a node, as far as the API server is concerned.
func daemonPod(ctx context.Context, t *testing.T, l *lab.Lab,
	node string) *authenticationv1.BoundObjectReference {
	t.Helper()
	p, err := l.Control.Client.CoreV1().Pods(daemonNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "veild-"},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: daemonAccount,
			Containers: []corev1.Container{{Name: "veild", Image: "localhost/kubeveil:dev"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name,
		UID: p.UID}
}

// veilNode is a VeilNode with owners, given as kind and name in turns.
func veilNode(name string, owners ...string) *unstructured.Unstructured {
	refs := []any{}
	for i := 0; i+1 < len(owners); i += 2 {
		refs = append(refs, map[string]any{"apiVersion": "v1", "kind": owners[i],
			"name": owners[i+1], "uid": "00000000-0000-0000-0000-00000000000" + fmt.Sprint(i)})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubeveil.io/v1alpha1", "kind": "VeilNode",
		"metadata": map[string]any{"name": name, "ownerReferences": refs},
		"spec": map[string]any{"keys": []any{map[string]any{"epoch": int64(0),
			"publicKey": strings.Repeat("A", 42) + "E="}}},
	}}
}

// policyInForce waits until the API server has read the policy.
func policyInForce(ctx context.Context, t *testing.T, c dynamic.ResourceInterface, other string) {
	t.Helper()
	err := lab.Until(ctx, 30*time.Second, func() error {
		if err := dry(ctx, c, veilNode(other, "Node", other)); err == nil ||
			!strings.Contains(err.Error(), "is not of node") {
			return fmt.Errorf("creating another's VeilNode: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// dry creates an object without keeping it: all checks are made.
func dry(ctx context.Context, c dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	_, err := c.Create(ctx, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}
