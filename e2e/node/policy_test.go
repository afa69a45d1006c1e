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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// A token from a node's disk is of use for that node's objects and no others.
func TestStolenToken(t *testing.T) {
	ctx, l := newLab(t, lab.Options{NoBoot: true})
	t.Run("of veild", func(t *testing.T) { veildsToken(ctx, t, l) })
	t.Run("of veil-csi", func(t *testing.T) { driversToken(ctx, t, l) })
}

// veildsToken: a token of the daemons' service account speaks for the node it was issued for and
// for no other.
func veildsToken(ctx context.Context, t *testing.T, l *lab.Lab) {
	own, other := l.Nodes()[0].Name, l.Nodes()[1].Name
	admin := l.Control.Dynamic.Resource(veilNodes)
	policyInForce(ctx, t, as(t, l, stolenToken(t, l.Nodes()[0])), other)

	for name, token := range map[string]string{
		"bound to the Node":          stolenToken(t, l.Nodes()[0]),
		"bound to a pod on the Node": newToken(ctx, t, l, daemonPod(ctx, t, l, own)),
	} {
		t.Run(name, func(t *testing.T) {
			c := as(t, l, token)
			t.Run("its own", func(t *testing.T) { ownAllowed(ctx, t, c, own) })
			t.Run("another's", func(t *testing.T) {
				othersRefused(ctx, t, c, admin, other, "is not of node "+own)
			})
			t.Run("its own, lying about the owner", func(t *testing.T) {
				for what, o := range map[string]*unstructured.Unstructured{
					"none":              veilNode(own),
					"another node":      veilNode(own, "Node", other),
					"of another kind":   veilNode(own, "Pod", own),
					"one more than one": veilNode(own, "Node", own, "Node", other),
				} {
					refused(t, "create with owner: "+what, dry(ctx, c, o), "owned by its Node")
				}
			})

			t.Run("a name that the server makes", func(t *testing.T) {
				o := veilNode("", "Node", own)
				o.SetGenerateName(own)
				refused(t, "create", dry(ctx, c, o), "is not of node "+own)
			})
			t.Run("all at once", func(t *testing.T) {
				refused(t, "delete", c.DeleteCollection(ctx, metav1.DeleteOptions{},
					metav1.ListOptions{}), "cannot deletecollection")
			})
		})
	}

	t.Run("bound to nothing", func(t *testing.T) {
		c := as(t, l, newToken(ctx, t, l, nil))
		othersRefused(ctx, t, c, admin, other, "names no node")
		refused(t, "create", dry(ctx, c, veilNode(own, "Node", own)), "names no node")
	})
	t.Run("without the policy it would be allowed",
		func(t *testing.T) { withoutPolicy(ctx, t, l, other) })
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

func refused(t *testing.T, what string, err error, because string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), because) ||
		!apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("%s: got %v, want a refusal that says %q", what, err, because)
	}
}

// ownAllowed creates, changes and deletes the VeilNode of the token's node.
func ownAllowed(ctx context.Context, t *testing.T, c dynamic.ResourceInterface, own string) {
	o, err := c.Create(ctx, veilNode(own, "Node", own), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(o.Object, int64(1450), "spec", "mtu"); err != nil {
		t.Fatal(err)
	}
	if o, err = c.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.SetOwnerReferences(nil)
	_, err = c.Update(ctx, o, metav1.UpdateOptions{})
	refused(t, "update without an owner", err, "owned by its Node")
	if err := c.Delete(ctx, own, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// othersRefused tries to create, change and delete the VeilNode of a node that is not the token's.
func othersRefused(ctx context.Context, t *testing.T, c, admin dynamic.ResourceInterface,
	other, because string) {
	t.Helper()
	refused(t, "create", dry(ctx, c, veilNode(other, "Node", other)), because)
	o, err := admin.Create(ctx, veilNode(other, "Node", other), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := o.GetResourceVersion()
	changed := o.DeepCopy()
	if err := unstructured.SetNestedField(changed.Object, int64(1450), "spec", "mtu"); err != nil {
		t.Fatal(err)
	}
	_, err = c.Update(ctx, changed, metav1.UpdateOptions{})
	refused(t, "update", err, because)
	refused(t, "delete", c.Delete(ctx, other, metav1.DeleteOptions{}), because)
	_, err = c.Patch(ctx, other, "application/merge-patch+json", []byte(`{"spec":{"mtu":1450}}`),
		metav1.PatchOptions{})
	refused(t, "patch", err, "cannot patch")
	if o, err = admin.Get(ctx, other, metav1.GetOptions{}); err != nil ||
		o.GetResourceVersion() != want {
		t.Errorf("after the tries it is %v, %v", o, err)
	}
	if err := admin.Delete(ctx, other, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// withoutPolicy is the negative control: what was refused above was refused by the policy.
func withoutPolicy(ctx context.Context, t *testing.T, l *lab.Lab, other string) {
	const name = "kubeveil-veilnode-own"
	if err := l.Control.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(
		ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c := as(t, l, stolenToken(t, l.Nodes()[0]))
	err := lab.Until(ctx, 30*time.Second, func() error {
		return dry(ctx, c, veilNode(other, "Node", other))
	})
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.Create(ctx, veilNode(other, "Node", other), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(ctx, other, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// With the policy in force, what the daemons themselves do goes on: a node that joins is published,
// overwrites another writer's change to its claim, and takes the claim back when it is cleaned up.
func TestDaemonsUnderThePolicy(t *testing.T) {
	ctx, l := newLab(t, lab.Options{})
	policyInForce(ctx, t, as(t, l, stolenToken(t, l.Nodes()[0])), l.Nodes()[1].Name)
	n, err := l.AddNode(ctx)
	if err != nil {
		t.Fatal(err)
	}
	waitReady(ctx, t, n)

	// Another writer's change to a claim is overwritten by its node, which is an update.
	admin := l.Control.Dynamic.Resource(veilNodes)
	err = lab.Until(ctx, 20*time.Second, func() error {
		_, err := admin.Get(ctx, n.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

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

	killProgram(ctx, t, n, "veild")
	if _, err := n.Exec(ctx, filepath.Join(root(t), "out/bin/veild"), "cleanup", "-config",
		"/etc/kubeveil/veild.yaml"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Get(ctx, n.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("cleanup left the VeilNode: %v", err)
	}
}
