package policy_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// TestClusterNetworkPolicies adds the kind ClusterNetworkPolicy to a cluster. Its policies overrule
// a NetworkPolicy in both directions, stay in force while the daemon is dead, and end when the
// objects are deleted.
func TestClusterNetworkPolicies(t *testing.T) {
	ctx, l := policyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	server := nodetest.StartPod(ctx, t, n1, "server")
	nodetest.EchoAt(ctx, t, server)
	client, guest := nodetest.StartPod(ctx, t, n2, "client"), nodetest.StartPod(ctx, t, n2, "guest")
	nodetest.WaitMembers(ctx, t, n1, 1)
	nodetest.WaitMembers(ctx, t, n2, 2)
	nodetest.PolicyBecomes(ctx, t, client, server, true)
	nodetest.PolicyAllows(ctx, t, "NetworkPolicy alone", guest, server, false)

	definitions := l.Control.Dynamic.Resource(nodetest.Definitions)
	definition := nodetest.ClusterPolicyDefinition()
	if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	applyClusterPolicy(ctx, t, l, clusterRule("Accept", "guest"))
	nodetest.PolicyBecomes(ctx, t, guest, server, true)
	nodetest.PolicyAllows(ctx, t, "guests are accepted", client, server, true)

	applyClusterPolicy(ctx, t, l, clusterRule("Deny", "client"), clusterRule("Accept", "guest"))
	nodetest.PolicyBecomes(ctx, t, client, server, false)
	nodetest.PolicyAllows(ctx, t, "clients are denied", guest, server, true)
	nodetest.WaitMembers(ctx, t, n1, 1)

	nodetest.KillProgram(ctx, t, n1, "veild")
	nodetest.PolicyAllows(ctx, t, "veild is dead", client, server, false)
	nodetest.PolicyAllows(ctx, t, "veild is dead", guest, server, true)
	nodetest.StartProgram(ctx, t, n1, "veild")
	nodetest.PolicyAllows(ctx, t, "veild is back", client, server, false)
	nodetest.WaitMembers(ctx, t, n1, 1)
	nodetest.PolicyAllows(ctx, t, "veild knows all policies", client, server, false)
	nodetest.PolicyAllows(ctx, t, "veild knows all policies", guest, server, true)

	errtest.Must(t, definitions.Delete(ctx, definition.GetName(), metav1.DeleteOptions{}))
	nodetest.PolicyBecomes(ctx, t, client, server, true)
	nodetest.PolicyBecomes(ctx, t, guest, server, false)
	nodetest.NoLeaks(t, l)
}

// clusterRule returns a rule of ingress for the pods of an app in all namespaces.
func clusterRule(action, app string) any {
	return map[string]any{"action": action, "from": []any{clusterPods(app)}}
}

// clusterPods selects the pods of an app in all namespaces.
func clusterPods(app string) map[string]any {
	return map[string]any{"pods": map[string]any{"namespaceSelector": map[string]any{},
		"podSelector": map[string]any{"matchLabels": map[string]any{"app": app}}}}
}

// applyClusterPolicy applies the policy of the Admin tier for all servers.
func applyClusterPolicy(ctx context.Context, t *testing.T, l *lab.Lab, ingress ...any) {
	t.Helper()
	applyClusterObject(ctx, t, l, "guests", map[string]any{"tier": "Admin", "priority": int64(10),
		"subject": clusterPods("server"), "ingress": ingress})
}

// applyClusterObject applies a ClusterNetworkPolicy, and returns the object that the API server
// stored.
func applyClusterObject(ctx context.Context, t *testing.T, l *lab.Lab, name string,
	spec map[string]any) (put *unstructured.Unstructured) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": nodetest.ClusterPolicies.GroupVersion().String(),
		"kind":       "ClusterNetworkPolicy",
		"metadata":   map[string]any{"name": name}, "spec": spec}}
	policies := l.Control.Dynamic.Resource(nodetest.ClusterPolicies)
	// A kind that was just defined may need a moment to be served.
	err := lab.Until(ctx, 20*time.Second, func() (err error) {
		put, err = policies.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "lab",
			Force: true})
		return err
	})
	errtest.Must(t, err)
	return put
}
