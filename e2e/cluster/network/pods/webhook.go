package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// webhookPort is the port of veil-tools webhook-serve, and of its service.
const webhookPort = 8443

// askedLabel marks the objects that the API server sends to the webhook.
const askedLabel = "ask-the-hook"

// Webhook makes the API server send admission reviews to a pod. The pod must be able to refuse an
// object, with a message that contains the canary, and to allow one.
func Webhook(ctx context.Context, s *session.Session) error {
	n, err := s.OwnNamespace(ctx)
	if err != nil {
		return err
	}
	p, ca, err := serveWebhook(ctx, n, "hook")
	if err != nil {
		return err
	}

	hooks := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	hook, err := hooks.Create(ctx, hookObject(n.Name, ca), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	defer func() {
		_ = hooks.Delete(context.WithoutCancel(ctx), hook.Name, metav1.DeleteOptions{})
	}()
	s.Note("webhook on %s", p.Node)
	create := func(name string, labels map[string]string) error {
		labels[askedLabel] = ""
		_, err := s.Client.CoreV1().ConfigMaps(n.Name).Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
			metav1.CreateOptions{})
		return err
	}

	// The API server uses the new configuration after some time, so first wait for a refusal.
	err = remote.Until(ctx, "a refusal by the webhook", session.Meeting,
		func(context.Context) error {
			err := create(fmt.Sprintf("refused-%d", time.Now().UnixNano()),
				map[string]string{"refuse": "as-asked"})
			if err == nil || !strings.Contains(err.Error(), "refused by a pod: as-asked") ||
				!strings.Contains(err.Error(), s.Canary) {
				return fmt.Errorf("create a refused object: %w",
					errors.Join(err, errors.New("want the webhook's reason")))
			}
			return nil
		})

	return errors.Join(err, create("allowed", map[string]string{}))
}

func hookObject(namespace string, ca []byte) *admissionv1.ValidatingWebhookConfiguration {
	fail, none, port, seconds := admissionv1.Fail, admissionv1.SideEffectClassNone,
		int32(webhookPort), int32(10)
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace,
			Labels: map[string]string{remote.SuiteLabel: "e2e"}},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "hook.e2e.kubeveil.io", FailurePolicy: &fail, SideEffects: &none,
			TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{CABundle: ca,
				Service: &admissionv1.ServiceReference{Namespace: namespace, Name: "hook",
					Port: &port}},
			NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			ObjectSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{askedLabel: ""}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
			}},
		}},
	}
}

// serveWebhook starts a pod with veil-tools webhook-serve, and its service of the same name. It
// returns the PEM of the certificate and its CA.
func serveWebhook(ctx context.Context, n *remote.Namespace, name string) (*remote.Pod, []byte,
	error) {
	ca, key, err := cert.GenerateSelfSignedCertKey(name+"."+n.Name+".svc", nil, nil)
	if err != nil {
		return nil, nil, err
	}
	p := &remote.Pod{Name: name, Args: []string{"webhook-serve"},
		Env: map[string]string{"LAB_CERT": string(ca), "LAB_KEY": string(key)}, Port: webhookPort}
	if err := n.Run(ctx, p); err != nil {
		return nil, nil, err
	}
	return p, ca, n.Serve(ctx, &remote.Service{Name: name, Port: webhookPort})
}
