package storage_test

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// A token from a node's disk works for that node's objects and no others.
func TestStolenToken(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{NoBoot: true})
	t.Run("of veild", func(t *testing.T) { veildsToken(ctx, t, l) })
	t.Run("of veil-csi", func(t *testing.T) { driversToken(ctx, t, l) })
}

// veildsToken: a token of the daemons' service account is valid for the node for which it was
// issued, and for no other.
func veildsToken(ctx context.Context, t *testing.T, l *lab.Lab) {
	own, other := l.Nodes()[0].Name, l.Nodes()[1].Name
	admin := l.Control.Dynamic.Resource(nodetest.VeilNodes)
	nodetest.PolicyInForce(ctx, t, nodetest.VeilNodesAs(t, l,
		nodetest.StolenToken(t, l.Nodes()[0])), other)

	for name, token := range map[string]string{
		"bound to the Node": nodetest.StolenToken(t, l.Nodes()[0]),
		"bound to a pod on the Node": nodetest.NewToken(ctx, t, l, nodetest.DaemonAccount,
			nodetest.DaemonPod(ctx, t, l, nodetest.DaemonAccount, own)),
	} {
		t.Run(name, func(t *testing.T) {
			c := nodetest.VeilNodesAs(t, l, token)
			t.Run("its own", func(t *testing.T) { ownAllowed(ctx, t, c, own) })
			t.Run("another's", func(t *testing.T) {
				othersRefused(ctx, t, c, admin, other, "is not of node "+own)
			})
			t.Run("its own, lying about the owner", func(t *testing.T) {
				for what, o := range map[string]*unstructured.Unstructured{
					"none":              nodetest.VeilNode(own),
					"another node":      nodetest.VeilNode(own, "Node", other),
					"of another kind":   nodetest.VeilNode(own, "Pod", own),
					"one more than one": nodetest.VeilNode(own, "Node", own, "Node", other),
				} {
					refused(t, "create with owner: "+what, nodetest.DryCreate(ctx, c, o),
						"owned by its Node")
				}
			})

			t.Run("a name that the server makes", func(t *testing.T) {
				o := nodetest.VeilNode("", "Node", own)
				o.SetGenerateName(own)
				refused(t, "create", nodetest.DryCreate(ctx, c, o), "is not of node "+own)
			})
			t.Run("all at once", func(t *testing.T) {
				refused(t, "delete", c.DeleteCollection(ctx, metav1.DeleteOptions{},
					metav1.ListOptions{}), "cannot deletecollection")
			})
		})
	}

	t.Run("bound to nothing", func(t *testing.T) {
		c := nodetest.VeilNodesAs(t, l,
			nodetest.NewToken(ctx, t, l, nodetest.DaemonAccount, nil))
		othersRefused(ctx, t, c, admin, other, "names no node")
		refused(t, "create", nodetest.DryCreate(ctx, c, nodetest.VeilNode(own, "Node", own)),
			"names no node")
	})
	t.Run("without the policy it would be allowed",
		func(t *testing.T) { withoutPolicy(ctx, t, l, other) })
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
	o, err := c.Create(ctx, nodetest.VeilNode(own, "Node", own), metav1.CreateOptions{})
	errtest.Must(t, err)
	errtest.Must(t, unstructured.SetNestedField(o.Object, int64(1450), "spec", "mtu"))
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

// othersRefused tries to create, change and delete the VeilNode of a node other than the token's
// node.
func othersRefused(ctx context.Context, t *testing.T, c, admin dynamic.ResourceInterface,
	other, because string) {
	t.Helper()
	refused(t, "create", nodetest.DryCreate(ctx, c, nodetest.VeilNode(other, "Node", other)),
		because)
	o, err := admin.Create(ctx, nodetest.VeilNode(other, "Node", other), metav1.CreateOptions{})
	errtest.Must(t, err)
	want := o.GetResourceVersion()
	changed := o.DeepCopy()
	errtest.Must(t, unstructured.SetNestedField(changed.Object, int64(1450), "spec", "mtu"))
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

// withoutPolicy is the negative control: it shows that the policy refused the operations above.
func withoutPolicy(ctx context.Context, t *testing.T, l *lab.Lab, other string) {
	const name = "kubeveil-veilnode-own"
	errtest.Must(t, l.Control.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(
		ctx, name, metav1.DeleteOptions{}))
	c := nodetest.VeilNodesAs(t, l, nodetest.StolenToken(t, l.Nodes()[0]))
	err := lab.Until(ctx, 30*time.Second, func() error {
		return nodetest.DryCreate(ctx, c, nodetest.VeilNode(other, "Node", other))
	})
	errtest.Must(t, err)
	o, err := c.Create(ctx, nodetest.VeilNode(other, "Node", other), metav1.CreateOptions{})
	errtest.Must(t, err)
	if _, err := c.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(ctx, other, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
