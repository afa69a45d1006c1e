package policy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// TestNetworkPolicies checks a policy in all situations of a node: pods are added before and after
// the policy, the daemon is killed, the API server is down, a policy changes.
func TestNetworkPolicies(t *testing.T) {
	ctx, l := policyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")

	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	server := nodetest.StartPod(ctx, t, n1, "server")
	nodetest.EchoAt(ctx, t, server)
	client, stranger := nodetest.StartPod(ctx, t, n2, "client"), nodetest.StartPod(ctx, t, n2, "stranger")
	neighbour := nodetest.StartPod(ctx, t, n1, "neighbour")
	open := nodetest.StartPod(ctx, t, n1, "open")
	nodetest.EchoAt(ctx, t, open)

	held := func(when string) {
		t.Helper()
		nodetest.PolicyAllows(ctx, t, when, client, server, true)
		nodetest.PolicyAllows(ctx, t, when, stranger, server, false)
		nodetest.PolicyAllows(ctx, t, when, neighbour, server, false)
		nodetest.PolicyAllows(ctx, t, when, stranger, open, true)
		nodetest.PolicyAllows(ctx, t, when, n1, server, true)
	}
	nodetest.PolicyAllows(ctx, t, "from the first packet", stranger, server, false)
	nodetest.PolicyAllows(ctx, t, "from the first packet", neighbour, server, false)
	nodetest.WaitMembers(ctx, t, n1, 3)
	nodetest.WaitMembers(ctx, t, n2, 2)
	held("all are known")
	tries := nodetest.StartTries(ctx, t, server, stranger, neighbour)

	for _, n := range l.Nodes() {
		nodetest.KillProgram(ctx, t, n, "veild")
	}
	held("veild is dead")
	// This pod is bound to the node while veild is dead.
	late := nodetest.StartPod(ctx, t, n2, "client")
	nodetest.PolicyAllows(ctx, t, "veild is dead, a pod that it does not know", late, server, false)
	nodetest.PolicyAllows(ctx, t, "veild is dead, a pod that it does not know", late, open, false)
	for _, n := range l.Nodes() {
		nodetest.Run(ctx, t, n, "nft", "delete table inet "+abi.NFTPolicyTable)
	}
	const gone = "veild is dead and the table is deleted"
	nodetest.PolicyAllows(ctx, t, gone, stranger, server, false)
	nodetest.PolicyAllows(ctx, t, gone, neighbour, server, false)
	nodetest.PolicyAllows(ctx, t, gone, client, server, false)
	nodetest.PolicyAllows(ctx, t, gone, neighbour, open, false)
	nodetest.PolicyAllows(ctx, t, gone, n1, server, true)
	for _, n := range l.Nodes() {
		nodetest.StartProgram(ctx, t, n, "veild")
	}
	nodetest.WaitMembers(ctx, t, n2, 3)
	held("veild is back")
	nodetest.PolicyBecomes(ctx, t, late, server, true)
	// Less than the 30 s after which everything is compared.
	for _, n := range l.Nodes() {
		nodetest.Run(ctx, t, n, "nft", "flush table inet "+abi.NFTPolicyTable)
	}
	held("somebody flushed the table")
	for _, n := range l.Nodes() {
		nodetest.WaitStatus(ctx, t, n, 5*time.Second, func(s telemetry.Status) error {
			if s.Policy == nil || s.Policy.Drops["policy_unstamped"] == 0 {
				return fmt.Errorf("policy %+v, want packets that were not judged", s.Policy)
			}
			return nil
		})
	}

	errtest.Must(t, l.Control.RefuseNodes(ctx, true))
	held("the API server is away")
	nodetest.KillProgram(ctx, t, n1, "veild")
	nodetest.StartProgram(ctx, t, n1, "veild")
	held("veild starts without the API server")
	errtest.Must(t, l.Control.RefuseNodes(ctx, false))

	nodetest.WaitMembers(ctx, t, n1, 3)
	nodetest.NoneAnswered(ctx, t, tries)
	nodetest.AllowClients(ctx, t, l, "stranger")
	nodetest.PolicyBecomes(ctx, t, stranger, server, true)
	nodetest.PolicyBecomes(ctx, t, client, server, false)
	nodetest.NoLeaks(t, l)
}

// policyLab returns a lab of two nodes that enforce policies, with a namespace for pods.
func policyLab(t *testing.T) (context.Context, *lab.Lab) {
	t.Helper()
	return policyLabOf(t, 2)
}

// policyLabOf is policyLab with another number of nodes.
func policyLabOf(t *testing.T, nodes int) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: nodes, Family: lab.Dual,
		VeildConfig: map[string]any{"policy": "kubernetes"}})
	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
	return ctx, l
}
