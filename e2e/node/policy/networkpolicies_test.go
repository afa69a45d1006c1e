package policy_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

const shop = "shop"

// TestNetworkPolicies holds a policy through everything that happens to a node: pods come before
// and after it, the daemon is killed, the API server is away, a policy changes.
func TestNetworkPolicies(t *testing.T) {
	ctx, l := policyLab(t)
	allowClients(ctx, t, l, "client")

	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	server := startPod(ctx, t, n1, "server")
	nodetest.EchoAt(ctx, t, server)
	client, stranger := startPod(ctx, t, n2, "client"), startPod(ctx, t, n2, "stranger")
	neighbour := startPod(ctx, t, n1, "neighbour")
	open := startPod(ctx, t, n1, "open")
	nodetest.EchoAt(ctx, t, open)

	held := func(when string) {
		t.Helper()
		policyAllows(ctx, t, when, client, server, true)
		policyAllows(ctx, t, when, stranger, server, false)
		policyAllows(ctx, t, when, neighbour, server, false)
		policyAllows(ctx, t, when, stranger, open, true)
		policyAllows(ctx, t, when, n1, server, true)
	}
	policyAllows(ctx, t, "from the first packet", stranger, server, false)
	policyAllows(ctx, t, "from the first packet", neighbour, server, false)
	waitMembers(ctx, t, n1, 3)
	waitMembers(ctx, t, n2, 2)
	held("all are known")
	tries := startTries(ctx, t, server, stranger, neighbour)

	for _, n := range l.Nodes() {
		nodetest.KillProgram(ctx, t, n, "veild")
	}
	held("veild is dead")
	// Bound to the node while nobody hears of it.
	late := startPod(ctx, t, n2, "client")
	policyAllows(ctx, t, "veild is dead, a pod that it does not know", late, server, false)
	policyAllows(ctx, t, "veild is dead, a pod that it does not know", late, open, false)
	for _, n := range l.Nodes() {
		nodetest.Run(ctx, t, n, "nft", "delete table inet "+abi.NFTPolicyTable)
	}
	const gone = "veild is dead and the table is deleted"
	policyAllows(ctx, t, gone, stranger, server, false)
	policyAllows(ctx, t, gone, neighbour, server, false)
	policyAllows(ctx, t, gone, client, server, false)
	policyAllows(ctx, t, gone, neighbour, open, false)
	policyAllows(ctx, t, gone, n1, server, true)
	for _, n := range l.Nodes() {
		nodetest.StartProgram(ctx, t, n, "veild")
	}
	waitMembers(ctx, t, n2, 3)
	held("veild is back")
	policyBecomes(ctx, t, late, server, true)
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

	if err := l.Control.StopAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	held("the API server is away")
	nodetest.KillProgram(ctx, t, n1, "veild")
	nodetest.StartProgram(ctx, t, n1, "veild")
	held("veild starts without the API server")
	if err := l.Control.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}

	waitMembers(ctx, t, n1, 3)
	noneAnswered(ctx, t, tries)
	allowClients(ctx, t, l, "stranger")
	policyBecomes(ctx, t, stranger, server, true)
	policyBecomes(ctx, t, client, server, false)
	nodetest.NoLeaks(t, l)
}

// policyLab is a lab of two nodes that enforce policies, with a namespace for pods.
func policyLab(t *testing.T) (context.Context, *lab.Lab) {
	t.Helper()
	return policyLabOf(t, 2)
}

// policyLabOf is policyLab with another number of nodes.
func policyLabOf(t *testing.T, nodes int) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: nodes, Family: lab.Dual,
		VeildConfig: map[string]any{"policy": "kubernetes"}})
	if err := l.Control.AddNamespace(ctx, shop); err != nil {
		t.Fatal(err)
	}
	return ctx, l
}

// allowClients lets the pods of an app, and no others, reach the server.
func allowClients(ctx context.Context, t *testing.T, l *lab.Lab, app string) {
	t.Helper()
	policies := l.Control.Client.NetworkingV1().NetworkPolicies(shop)
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": app}}}}}},
		}}
	err := policies.Delete(ctx, p.Name, metav1.DeleteOptions{})
	if err == nil || app == "client" {
		_, err = policies.Create(ctx, p, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// podNumber is that of the last pod; tests that run at once draw from it.
var podNumber atomic.Int64

// podName returns a name for a pod of an app that no other pod has.
func podName(app string) string { return fmt.Sprintf("%s-%d", app, podNumber.Add(1)) }

// startPod makes a pod of an app, see lab.Node.RunPod.
func startPod(ctx context.Context, t *testing.T, n *lab.Node, app string) *lab.Pod {
	t.Helper()
	p, err := n.RunPod(ctx, shop, podName(app), map[string]string{"app": app})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// waitMembers waits until all pods of a node are judged.
func waitMembers(ctx context.Context, t *testing.T, n *lab.Node, count int) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, 20*time.Second, func(s telemetry.Status) error {
		if s.Policy == nil || s.Policy.Members != count || s.Policy.Pending != 0 {
			return fmt.Errorf("policy %+v, problems %q", s.Policy, s.Problems)
		}
		return nil
	})
}

// talks sends to echo servers and returns how many answered.
func talks(ctx context.Context, from lab.Place, to []netip.Addr) (reached int) {
	for _, a := range to {
		if _, err := lab.Send(ctx, from, lab.Exchange{Proto: "tcp", To: a, Count: 1, Size: 100,
			Timeout: 700 * time.Millisecond}); err == nil {
			reached++
		}
	}
	return reached
}

// allowedWithin bounds how long a machine may have no time for a tunnel: labs that end beside this
// one keep both CPUs in the kernel for seconds.
const allowedWithin = 30 * time.Second

// policyAllows judges at once: what is forbidden must be so, whatever was just changed. What is
// allowed may lose a race against a busy machine and is tried again.
func policyAllows(ctx context.Context, t *testing.T, when string, from lab.Place, to *lab.Pod,
	want bool) {
	t.Helper()
	begin := time.Now()
	got := talks(ctx, from, to.Addrs)
	for want && got < len(to.Addrs) && time.Since(begin) < allowedWithin {
		t.Logf("%s: %d of %d addresses of %s after %v", when, got, len(to.Addrs), to.Name,
			time.Since(begin).Round(time.Millisecond))
		got = talks(ctx, from, to.Addrs)
	}
	if want && got != len(to.Addrs) || !want && got != 0 {
		t.Errorf("%s: %s reaches %d addresses of %s, want all: %t", when, from, got, to.Name, want)
	}
}

// startTries lets pods try to reach another all the time.
func startTries(ctx context.Context, t *testing.T, to *lab.Pod,
	from ...*lab.Pod) (running []*lab.Process) {
	t.Helper()
	for _, p := range from {
		tries, err := lab.Try(ctx, p, to.Addrs...)
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, tries)
	}
	return running
}

// noneAnswered ends tries, of which none may have been answered at any moment.
func noneAnswered(ctx context.Context, t *testing.T, running []*lab.Process) {
	t.Helper()
	for _, p := range running {
		var all []lab.Tried
		if err := p.Result(ctx, &all); err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			t.Errorf("%s tried nothing", p.Name)
		}
		for _, tried := range all {
			if tried.Tried == 0 || tried.Answered > 0 {
				t.Errorf("%+v, want tries and no answer", tried)
			}
		}
	}
}

// policyBecomes waits until a change is in force.
func policyBecomes(ctx context.Context, t *testing.T, from, to *lab.Pod, want bool) {
	t.Helper()
	err := lab.Until(ctx, 20*time.Second, func() error {
		if got := talks(ctx, from, to.Addrs); want && got != len(to.Addrs) || !want && got != 0 {
			return fmt.Errorf("%s reaches %d addresses of %s, want all: %t", from.Name, got, to.Name,
				want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
