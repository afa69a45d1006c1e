package policy_test

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// While the definition of ClusterNetworkPolicies does not serve the version that veild reads, the
// policies in force stay in force, new pods cannot send or receive, and the status reports it.
func TestClusterPoliciesInAVersionThatIsNotServed(t *testing.T) {
	ctx, l := policyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	server := nodetest.StartPod(ctx, t, n1, "server")
	nodetest.EchoAt(ctx, t, server)
	known, guest := nodetest.StartPod(ctx, t, n2, "client"), nodetest.StartPod(ctx, t, n2, "guest")

	definitions := l.Control.Dynamic.Resource(nodetest.Definitions)
	definition := nodetest.ClusterPolicyDefinition()
	_, err := definitions.Create(ctx, definition, metav1.CreateOptions{})
	errtest.Must(t, err)
	applyClusterPolicy(ctx, t, l, clusterRule("Deny", "client"), clusterRule("Accept", "guest"))
	nodetest.PolicyBecomes(ctx, t, guest, server, true)
	nodetest.PolicyBecomes(ctx, t, known, server, false)

	const problem = "it serves the versions [v1beta1], but veild reads v1alpha2"
	serve(ctx, t, definitions, definition.GetName(), nodetest.PolicyVersion("v1alpha2", false, true),
		nodetest.PolicyVersion("v1beta1", true, false))
	for _, n := range []*lab.Node{n1, n2} {
		waitProblem(ctx, t, n, problem, true)
	}
	late := nodetest.StartPod(ctx, t, n2, "guest")
	waitProblem(ctx, t, n2, "1 new pods are mute", true)
	nodetest.PolicyAllows(ctx, t, "not served", late, server, false)
	nodetest.PolicyAllows(ctx, t, "not served", known, server, false)
	nodetest.PolicyAllows(ctx, t, "not served", guest, server, true)

	serve(ctx, t, definitions, definition.GetName(), nodetest.PolicyVersion("v1alpha2", true, true),
		nodetest.PolicyVersion("v1beta1", true, false))
	nodetest.PolicyBecomes(ctx, t, late, server, true)
	for _, n := range []*lab.Node{n1, n2} {
		waitProblem(ctx, t, n, problem, false)
	}
	nodetest.PolicyAllows(ctx, t, "served again", known, server, false)
	nodetest.NoLeaks(t, l)
}

// serve changes the versions of a definition.
func serve(ctx context.Context, t *testing.T, definitions dynamic.ResourceInterface, name string,
	versions ...any) {
	t.Helper()
	// The API server writes conditions into it meanwhile.
	err := lab.Until(ctx, 20*time.Second, func() error {
		o, err := definitions.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			err = unstructured.SetNestedSlice(o.Object, versions, "spec", "versions")
		}
		if err == nil {
			_, err = definitions.Update(ctx, o, metav1.UpdateOptions{})
		}
		return err
	})
	errtest.Must(t, err)
}

// Policies of kinds that are not enforced are a problem on every node while they exist.
func TestIgnoredKindsOfPoliciesAreAProblem(t *testing.T) {
	ctx, l := policyLab(t)
	definitions := l.Control.Dynamic.Resource(nodetest.Definitions)
	for kind, plural := range map[string]string{"AdminNetworkPolicy": "adminnetworkpolicies",
		"BaselineAdminNetworkPolicy": "baselineadminnetworkpolicies"} {
		_, err := definitions.Create(ctx, nodetest.PolicyDefinition(kind, plural, "v1alpha1"),
			metav1.CreateOptions{})
		errtest.Must(t, err)

		policies := l.Control.Dynamic.Resource(schema.GroupVersionResource{
			Group: nodetest.ClusterPolicies.Group, Version: "v1alpha1", Resource: plural})
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": nodetest.ClusterPolicies.Group + "/v1alpha1", "kind": kind,
			"metadata": map[string]any{"name": "default"}}}
		// A kind that was just defined may need a moment to be served.
		errtest.Must(t, lab.Until(ctx, 20*time.Second, func() error {
			_, err := policies.Create(ctx, o, metav1.CreateOptions{})
			return err
		}))

		problem := plural + "." + nodetest.ClusterPolicies.Group +
			": the cluster has 1, which veild does not enforce"
		for _, n := range l.Nodes() {
			waitProblem(ctx, t, n, problem, true)
		}
		errtest.Must(t, policies.Delete(ctx, "default", metav1.DeleteOptions{}))
		for _, n := range l.Nodes() {
			waitProblem(ctx, t, n, problem, false)
		}
	}
	nodetest.NoLeaks(t, l)
}
