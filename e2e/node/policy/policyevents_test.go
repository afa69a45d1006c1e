package policy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// TestPolicyEvents has policies that deny more than is written. With the rights of the manifests,
// the node that holds a selected pod reports it at the policy, once for each revision, and no other
// node does.
func TestPolicyEvents(t *testing.T) {
	ctx, l := policyLab(t)
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	nodetest.StartPod(ctx, t, n1, "server")
	nodetest.StartPod(ctx, t, n2, "client")
	nodetest.WaitMembers(ctx, t, n1, 1)
	nodetest.WaitMembers(ctx, t, n2, 1)

	policies := l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop)
	var many []string
	for i := range 1100 { // A selector may have policy.MaxValues.
		many = append(many, fmt.Sprint("team-", i))
	}
	p, err := policies.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "large"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team",
						Operator: metav1.LabelSelectorOpIn, Values: many}}}}}}}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	wantEvents(ctx, t, l, nodetest.Shop, p.UID, 1, n1.Name)

	// Another label of the policy does not make a new revision; another spec does.
	p.Labels = map[string]string{"seen": "yes"}
	if p, err = policies.Update(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress,
		networkingv1.PolicyTypeEgress}
	if p, err = policies.Update(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvents(ctx, t, l, nodetest.Shop, p.UID, 2, n1.Name)
	restartWith(ctx, t, n1, "")
	nodetest.WaitMembers(ctx, t, n1, 1)

	definitions := l.Control.Dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := definitions.Create(ctx, nodetest.ClusterPolicyDefinition(),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := applyClusterObject(ctx, t, l, "guests", map[string]any{"tier": "Admin",
		"priority": int64(10), "subject": clusterPods("client"), "egress": []any{map[string]any{
			"action": "Deny", "to": []any{map[string]any{"domainNames": []any{"example.com"}}}}}})
	wantEvents(ctx, t, l, metav1.NamespaceDefault, all.GetUID(), 1, n2.Name)
	wantEvents(ctx, t, l, nodetest.Shop, p.UID, 2, n1.Name) // also after the restart of the daemon
	nodetest.NoLeaks(t, l)
}

// wantEvents waits for a number of Events about an object, all of one node.
func wantEvents(ctx context.Context, t *testing.T, l *lab.Lab, namespace string, about types.UID,
	count int, node string) {
	t.Helper()
	err := lab.Until(ctx, 30*time.Second, func() error {
		list, err := l.Control.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.uid=" + string(about)})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason != "DeniesMoreThanWritten" || e.Type != corev1.EventTypeWarning ||
				e.Source.Host != node || e.Message == "" {
				t.Errorf("event %+v, want one of node %s", e, node)
			}
		}
		if len(list.Items) != count {
			return fmt.Errorf("%d events about %s, want %d", len(list.Items), about, count)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
