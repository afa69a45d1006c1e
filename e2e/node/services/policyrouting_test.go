package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// routedPolicyLab returns a lab that enforces policies while pods of a node reach each other past
// netfilter.
func routedPolicyLab(t *testing.T) (context.Context, *lab.Lab) {
	t.Helper()
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: 1, Family: lab.Dual, VeildConfig: map[string]any{
		"policy": config.PolicyKubernetes, "serviceProxy": config.ServiceProxyEBPF,
		"services": map[string]any{"limits": map[string]any{"backendSlots": 1 << 16},
			"hostRouting": config.HostRoutingEBPF},
	}})
	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
	return ctx, l
}

// TestPoliciesWithHostRouting: a pod that a policy selects is judged from its first packet on, and
// all others reach each other past netfilter.
func TestPoliciesWithHostRouting(t *testing.T) {
	ctx, l := routedPolicyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")

	n := l.Nodes()[0]
	server := nodetest.StartPod(ctx, t, n, "server")
	nodetest.EchoAt(ctx, t, server)
	client, stranger := nodetest.StartPod(ctx, t, n, "client"), nodetest.StartPod(ctx, t, n, "stranger")
	open := nodetest.StartPod(ctx, t, n, "open")
	nodetest.EchoAt(ctx, t, open)
	nodetest.PolicyAllows(ctx, t, "from the first packet", stranger, server, false)
	nodetest.WaitMembers(ctx, t, n, 4)
	tries := nodetest.StartTries(ctx, t, server, stranger)

	held := func(when string) {
		t.Helper()
		nodetest.PolicyAllows(ctx, t, when, client, server, true)
		nodetest.PolicyAllows(ctx, t, when, stranger, server, false)
		nodetest.PolicyAllows(ctx, t, when, stranger, open, true)
		nodetest.PolicyAllows(ctx, t, when, n, server, true)
		expectMet(ctx, t, when, client, server, true)
		expectMet(ctx, t, when, stranger, open, false)
	}
	held("all are known")

	nodetest.KillProgram(ctx, t, n, "veild")
	held("veild is dead")
	late, lateOpen := nodetest.StartPod(ctx, t, n, "server"), nodetest.StartPod(ctx, t, n, "open")
	nodetest.EchoAt(ctx, t, late)
	nodetest.EchoAt(ctx, t, lateOpen)
	const unknown = "veild is dead, a pod that it does not know"
	nodetest.PolicyAllows(ctx, t, unknown, stranger, late, false)
	nodetest.PolicyAllows(ctx, t, unknown, late, open, false)
	nodetest.PolicyAllows(ctx, t, unknown, stranger, lateOpen, false)
	nodetest.PolicyAllows(ctx, t, unknown, lateOpen, open, false)
	nodetest.StartProgram(ctx, t, n, "veild")
	nodetest.WaitMembers(ctx, t, n, 6)
	held("veild is back")
	nodetest.PolicyAllows(ctx, t, "veild is back", stranger, late, false)
	nodetest.PolicyBecomes(ctx, t, stranger, lateOpen, true)
	expectMet(ctx, t, "veild is back", stranger, lateOpen, false)

	nodetest.NoneAnswered(ctx, t, tries)

	// Open connections of pods continue if they are allowed, on either path.
	goesOn := slices.Concat(holds(ctx, t, client, open), holds(ctx, t, client, server))
	ends := holds(ctx, t, stranger, open)
	label(ctx, t, l, open, "server")
	label(ctx, t, l, server, "open")
	nodetest.PolicyBecomes(ctx, t, stranger, open, false)
	nodetest.PolicyAllows(ctx, t, "it was selected", client, open, true)
	expectMet(ctx, t, "it was selected", client, open, true)
	nodetest.PolicyBecomes(ctx, t, stranger, server, true)
	expectMet(ctx, t, "it is not selected now", client, server, false)

	tries = nodetest.StartTries(ctx, t, open, stranger)
	nodetest.KillProgram(ctx, t, n, "veild")
	nodetest.StartProgram(ctx, t, n, "veild")
	nodetest.WaitMembers(ctx, t, n, 6)
	nodetest.NoneAnswered(ctx, t, tries)

	label(ctx, t, l, open, "open")
	label(ctx, t, l, server, "server")
	nodetest.PolicyBecomes(ctx, t, stranger, open, true)
	nodetest.PolicyBecomes(ctx, t, stranger, server, false)
	held("as before")
	for _, p := range goesOn {
		var r traffic.Held
		if err := p.Result(ctx, &r); err != nil || r.MaxGapMillis > 3000 {
			t.Errorf("a connection that is allowed: %+v, %v", r, err)
		}
	}
	for _, p := range ends {
		var r traffic.Held
		if err := p.Result(ctx, &r); err == nil && r.MaxGapMillis < 3000 {
			t.Errorf("a connection that was forbidden for a while: %+v", r)
		}
	}
	nodetest.NoLeaks(t, l)
}

// holds opens connections to all addresses of a pod, with records all the time.
func holds(ctx context.Context, t *testing.T, from, to *lab.Pod) (running []*lab.Process) {
	t.Helper()
	for _, a := range to.Addrs {
		p := nodetest.Hold(ctx, t, from, a)
		running = append(running, p)
	}
	return running
}

// TestOutsideClientsOfPodsThatPoliciesSelect: a client outside reaches a service's pod of the node
// past netfilter until a policy selects the pod. Its open connections go on if they are allowed.
func TestOutsideClientsOfPodsThatPoliciesSelect(t *testing.T) {
	ctx, l := routedPolicyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")
	policies := l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop)
	if _, err := policies.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "public"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "public"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}},
				{IPBlock: &networkingv1.IPBlock{CIDR: "::/0"}}}}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress,
				networkingv1.PolicyTypeEgress},
		}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	n := l.Nodes()[0]
	web := nodetest.StartPod(ctx, t, n, "web")
	errtest.Must(t, errtest.Of(traffic.Named(ctx, web, "web", 1)))
	nodetest.WaitMembers(ctx, t, n, 1)
	service := publish(ctx, t, l, "web", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}, web)
	question := func(proto string, a netip.Addr) traffic.Question {
		return traffic.Question{Proto: proto, To: nodePort(t, service, n, proto, a.Is6()), Count: 3,
			Egress: true, Timeout: 500 * time.Millisecond}
	}
	outside := func(when string, met bool) {
		t.Helper()
		expectSeen(ctx, t, when+", from outside", n, web, "tcp", met, func(a netip.Addr) error {
			c, err := traffic.TakeCensus(ctx, l.Outside, question("tcp", a))
			if err == nil {
				err = everyone("web")(c)
			}
			return err
		})
	}

	outside("no policy selects it", false)
	var kept []*lab.Process
	for _, a := range web.Addrs {
		p, err := traffic.Keep(ctx, l.Outside, question("tcp", a))
		errtest.Must(t, err)
		kept = append(kept, p)
	}

	label(ctx, t, l, web, "public")
	outside("a policy selects it and allows it", true)
	nodetest.KillProgram(ctx, t, n, "veild")
	outside("veild is dead", true)
	nodetest.StartProgram(ctx, t, n, "veild")
	nodetest.WaitMembers(ctx, t, n, 1)
	for _, p := range kept {
		var r traffic.Kept
		if err := p.Result(ctx, &r); err != nil || r.Unanswered > 0 {
			t.Errorf("a connection that is allowed: %+v, %v", r, err)
		}
	}

	label(ctx, t, l, web, "web")
	outside("no policy selects it", false)
	label(ctx, t, l, web, "server")
	for _, proto := range []string{"tcp", "udp"} {
		for _, a := range web.Addrs {
			answers(ctx, t, l.Outside, question(proto, a), noAnswer)
		}
	}
	nodetest.KillProgram(ctx, t, n, "veild")
	for _, proto := range []string{"tcp", "udp"} {
		for _, a := range web.Addrs {
			c, err := traffic.TakeCensus(ctx, l.Outside, question(proto, a))
			if err == nil {
				err = noAnswer(c)
			}
			if err != nil {
				t.Errorf("%s to %s, forbidden and veild dead: %v", proto, a, err)
			}
		}
	}
	nodetest.StartProgram(ctx, t, n, "veild")
	nodetest.WaitMembers(ctx, t, n, 1)
	nodetest.NoLeaks(t, l)
}

// label changes the app of a pod.
func label(ctx context.Context, t *testing.T, l *lab.Lab, p *lab.Pod, app string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app)
	if _, err := l.Control.Client.CoreV1().Pods(nodetest.Shop).Patch(ctx, p.Name, types.MergePatchType,
		patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

var packetsCounted = regexp.MustCompile(`packets (\d+)`)

// expectMet checks whether netfilter sees the packets between two pods of a node, once the pods
// have been there for a few seconds.
func expectMet(ctx context.Context, t *testing.T, when string, from, to *lab.Pod, met bool) {
	t.Helper()
	expectMetBy(ctx, t, when, from, to, "tcp", met)
}

// expectMetBy is expectMet for a protocol and pods that may be on two nodes. It looks at the node of
// from.
func expectMetBy(ctx context.Context, t *testing.T, when string, from, to *lab.Pod, proto string,
	met bool) {
	t.Helper()
	expectSeen(ctx, t, fmt.Sprintf("%s, %s from %s", when, proto, from.Name), from.Node, to, proto,
		met, func(a netip.Addr) error {
			_, err := traffic.Send(ctx, from, traffic.Exchange{Proto: proto, To: a})
			return err
		})
}

// expectSeen checks whether netfilter sees both directions of the packets of a protocol that ask
// sends to the addresses of a pod, or none.
func expectSeen(ctx context.Context, t *testing.T, when string, n *lab.Node, to *lab.Pod,
	proto string, met bool, ask func(netip.Addr) error) {
	t.Helper()
	for _, a := range to.Addrs {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		rules := "table inet others { chain forward { type filter hook forward priority 0; "
		for _, end := range []string{"saddr", "daddr"} {
			rules += fmt.Sprintf("meta l4proto %s %s %s %s counter; ", proto, family, end, a)
		}

		err := lab.Until(ctx, 15*time.Second, func() error {
			nodetest.Run(ctx, t, n, "nft", rules+"}; }")
			defer nodetest.Run(ctx, t, n, "nft", "delete", "table", "inet", "others")
			if err := ask(a); err != nil {
				return err
			}
			list := nodetest.Run(ctx, t, n, "nft", "list", "table", "inet", "others")
			for _, found := range packetsCounted.FindAllStringSubmatch(list, -1) {
				if count, _ := strconv.Atoi(found[1]); (count > 0) != met {
					return fmt.Errorf("netfilter is to meet packets: %t:\n%s", met, list)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %s: %v", when, a, err)
		}
	}
}

// TestTurningPoliciesOnWithHostRouting: pods that reached each other past netfilter are judged once
// policies are read. Their open connections go on if they are allowed.
func TestTurningPoliciesOnWithHostRouting(t *testing.T) {
	ctx, l := routedPolicyLab(t)
	n := l.Nodes()[0]
	restartWith := func(policy string) {
		t.Helper()
		nodetest.Reconfigure(ctx, t, n, map[string]any{"policy": policy})
	}

	nodetest.AllowClients(ctx, t, l, "client")
	restartWith(config.PolicyNone)
	nodetest.WaitReady(ctx, t, n)
	server := nodetest.StartPod(ctx, t, n, "server")
	nodetest.EchoAt(ctx, t, server)
	client, stranger := nodetest.StartPod(ctx, t, n, "client"), nodetest.StartPod(ctx, t, n, "stranger")
	for _, p := range []*lab.Pod{client, stranger} {
		nodetest.PolicyAllows(ctx, t, "without policies", p, server, true)
		expectMet(ctx, t, "without policies", p, server, false)
	}
	goesOn, ends := holds(ctx, t, client, server), holds(ctx, t, stranger, server)

	restartWith(config.PolicyKubernetes)
	nodetest.WaitMembers(ctx, t, n, 3)
	nodetest.PolicyAllows(ctx, t, "with policies", stranger, server, false)
	nodetest.PolicyAllows(ctx, t, "with policies", client, server, true)
	expectMet(ctx, t, "with policies", client, server, true)
	for _, p := range goesOn {
		var r traffic.Held
		if err := p.Result(ctx, &r); err != nil || r.MaxGapMillis > 3000 {
			t.Errorf("a connection that is allowed: %+v, %v", r, err)
		}
	}
	for _, p := range ends {
		var r traffic.Held
		if err := p.Result(ctx, &r); err == nil {
			t.Errorf("a connection that is forbidden: %+v", r)
		}
	}

	restartWith(config.PolicyNone)
	nodetest.PolicyBecomes(ctx, t, stranger, server, true)
	expectMet(ctx, t, "without policies again", stranger, server, false)
	nodetest.NoLeaks(t, l)
}
