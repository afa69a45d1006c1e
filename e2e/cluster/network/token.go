package network

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Names of the manifests.
const (
	veildSet   = "veild"
	wgSet      = "veil-wg"
	veilConfig = "kubeveil"
	component  = "app.kubernetes.io/component"
)

// veilNodes is the resource of claims.
var veilNodes = schema.GroupVersionResource{Group: "kubeveil.io", Version: "v1alpha1",
	Resource: "veilnodes"}

// claims returns a client for VeilNodes with a token; an empty token means the administrator's
// rights.
func (s *Session) claims(token string) (dynamic.ResourceInterface, error) {
	config := s.Config
	if token != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = token
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(veilNodes), nil
}

// daemon is the pod of a DaemonSet of ours on a node.
func (s *Session) daemon(ctx context.Context, set, node string) (*corev1.Pod, error) {
	pods, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: component + "=" + set,
			FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			return &pods.Items[i], nil
		}
	}
	return nil, fmt.Errorf("no pod of %s on %s", set, node)
}

// stolenToken takes what a thief on the second worker finds, the token bound to its veild's pod,
// and tries what it should not do. Allowed operations with the same token show that the policy
// refuses the others, not missing rights.
func stolenToken(ctx context.Context, s *Session) error {
	workers, err := s.Workers(ctx)
	if err != nil {
		return err
	}

	victim, thief := workers[0].Name, workers[1].Name
	pod, err := s.daemon(ctx, veildSet, thief)
	if err != nil {
		return err
	}

	token, err := s.Client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx,
		pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod",
					APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
		}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	admin, err := s.claims("")
	if err != nil {
		return err
	}
	stolen, err := s.claims(token.Status.Token)
	if err != nil {
		return err
	}
	before, err := admin.Get(ctx, victim, metav1.GetOptions{})
	if err != nil {
		return err
	}

	errs := []error{tryOthers(ctx, stolen, before, thief), tryOwn(ctx, stolen, thief)}
	after, err := admin.Get(ctx, victim, metav1.GetOptions{})
	if err != nil || after.GetUID() != before.GetUID() ||
		after.GetGeneration() != before.GetGeneration() {
		errs = append(errs, errors.Join(fmt.Errorf("VeilNode %s is not as it was before the tries",
			victim), err))
	}

	s.note("token of %s against VeilNode %s", thief, victim)
	return errors.Join(errs...)
}

// tryOthers tries to create, change and delete another's claim; each must be refused by the policy,
// or, where RBAC does without the verb, by that.
func tryOthers(ctx context.Context, c dynamic.ResourceInterface, other *unstructured.Unstructured,
	own string) error {
	changed := other.DeepCopy()
	err := unstructured.SetNestedField(changed.Object, int64(1450), "spec", "mtu")
	if err != nil {
		return err
	}
	fresh := other.DeepCopy()
	fresh.SetName("another")
	fresh.SetResourceVersion("")
	fresh.SetUID("")
	_, created := c.Create(ctx, fresh, metav1.CreateOptions{})
	_, updated := c.Update(ctx, changed, metav1.UpdateOptions{})
	_, patched := c.Patch(ctx, other.GetName(), "application/merge-patch+json",
		[]byte(`{"spec":{"mtu":1450}}`), metav1.PatchOptions{})
	policy := "is not of node " + own
	return errors.Join(
		refused("create", created, policy), refused("update", updated, policy),
		refused("delete", c.Delete(ctx, other.GetName(), metav1.DeleteOptions{}), policy),
		refused("patch", patched, "cannot patch"),
		refused("delete all", c.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			"cannot deletecollection"),
	)
}

func refused(verb string, err error, because string) error {
	if err != nil && apierrors.IsForbidden(err) && strings.Contains(err.Error(), because) {
		return nil
	}
	return fmt.Errorf("%s another's VeilNode: want a refusal that contains %q, got: %w", verb,
		because, errors.Join(err, errors.New("no such refusal")))
}

// tryOwn reads and writes the token's own claim; the deletion is not kept.
func tryOwn(ctx context.Context, c dynamic.ResourceInterface, own string) error {
	o, err := c.Get(ctx, own, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("own VeilNode: %w", err)
	}
	dry := []string{metav1.DryRunAll}
	if _, err := c.Update(ctx, o, metav1.UpdateOptions{DryRun: dry}); err != nil {
		return fmt.Errorf("own VeilNode: %w", err)
	}
	if err := c.Delete(ctx, own, metav1.DeleteOptions{DryRun: dry}); err != nil {
		return fmt.Errorf("own VeilNode: %w", err)
	}
	return nil
}
