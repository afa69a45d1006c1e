package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
)

// StolenToken creates a token that a thief on the second worker could steal, bound to its veild's
// pod, and tries forbidden operations with it. Allowed operations with the same token show that the
// admission policy refuses the forbidden ones, and not a lack of RBAC rights.
func StolenToken(ctx context.Context, s *session.Session) error {
	workers, err := s.Workers(ctx)
	if err != nil {
		return err
	}

	victim, thief := workers[0].Name, workers[1].Name
	pod, err := s.Daemon(ctx, session.VeildSet, thief)
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

	admin, err := s.Claims("")
	if err != nil {
		return err
	}
	stolen, err := s.Claims(token.Status.Token)
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

	s.Note("token of %s against VeilNode %s", thief, victim)
	return errors.Join(errs...)
}

// tryOthers tries to create, change and delete another node's VeilNode. The admission policy must
// refuse each operation, or RBAC if it does not grant the verb.
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

// tryOwn reads, and in a dry run updates and deletes, the VeilNode of the token's own node.
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
