package nodetest

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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// VeilNodes is the resource of VeilNode objects.
var VeilNodes = apiobject.VeilNodes

// DaemonAccount is the service account of veild in the manifests.
const DaemonAccount = "veild"

// ConfigAs returns the configuration of a client whose only credential is token.
func ConfigAs(l *lab.Lab, token string) *rest.Config {
	c := rest.AnonymousClientConfig(l.Control.Config)
	c.BearerToken, c.QPS, c.Burst = token, 1000, 1000
	return c
}

// VeilNodesAs returns a client of VeilNodes whose only credential is token.
func VeilNodesAs(t *testing.T, l *lab.Lab, token string) dynamic.ResourceInterface {
	t.Helper()
	d, err := dynamic.NewForConfig(ConfigAs(l, token))
	errtest.Must(t, err)
	return d.Resource(VeilNodes)
}

// StolenToken returns veild's token on a node's disk. The token is bound to the Node.
func StolenToken(t *testing.T, n *lab.Node) string {
	t.Helper()
	return string(filetest.Read(t, filepath.Join(n.Disk(), lab.TokenFile)))
}

// NewToken returns a new token of a service account in kube-system. Like the token that a kubelet
// requests, it is bound to an object. If bound is nil, it is not bound.
func NewToken(ctx context.Context, t *testing.T, l *lab.Lab, account string,
	bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	r, err := l.Control.Client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx,
		account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: bound}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	return r.Status.Token
}

// DaemonPod creates the object of a pod in kube-system with a service account, bound to a node, and
// returns a reference to it. No program runs.
func DaemonPod(ctx context.Context, t *testing.T, l *lab.Lab, account,
	node string) *authenticationv1.BoundObjectReference {
	t.Helper()
	p, err := l.Control.Client.CoreV1().Pods(metav1.NamespaceSystem).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "daemon", Image: "localhost/kubeveil:dev"}}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	return &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name,
		UID: p.UID}
}

// VeilNode returns a VeilNode with owner references. owners are alternately kinds and names.
func VeilNode(name string, owners ...string) *unstructured.Unstructured {
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

// PolicyInForce waits until the API server has read the admission policy. Then it refuses c, the
// client of one node, to create the VeilNode of the node called other.
func PolicyInForce(ctx context.Context, t *testing.T, c dynamic.ResourceInterface, other string) {
	t.Helper()
	err := lab.Until(ctx, 30*time.Second, func() error {
		if err := DryCreate(ctx, c, VeilNode(other, "Node", other)); err == nil ||
			!strings.Contains(err.Error(), "is not of node") {
			return fmt.Errorf("creating another's VeilNode: %w", err)
		}
		return nil
	})
	errtest.Must(t, err)
}

// DryCreate creates an object with dry run: the API server checks it and does not store it.
func DryCreate(ctx context.Context, c dynamic.ResourceInterface,
	o *unstructured.Unstructured) error {
	_, err := c.Create(ctx, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}
