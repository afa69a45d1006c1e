package policy_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// revokedWithin is the promised maximum time from a change to the end of flows that it denies. Only
// long runs check it, because other runs may share the machine with many labs.
const revokedWithin = time.Second

// TestRevocation opens TCP and UDP flows between pods of two nodes. They end when a policy that
// denies them is added or changed, when one that allows them is deleted, and when labels change.
func TestRevocation(t *testing.T) {
	ctx, l := policyLab(t)
	r := &revocation{l: l}
	r.server = nodetest.StartPod(ctx, t, l.Nodes()[0], "server")
	nodetest.EchoAt(ctx, t, r.server)
	r.client = nodetest.StartPod(ctx, t, l.Nodes()[1], "client")
	nodetest.WaitMembers(ctx, t, l.Nodes()[0], 1)
	nodetest.WaitMembers(ctx, t, l.Nodes()[1], 1)

	for _, c := range []struct {
		name           string
		before, change func(context.Context) error
	}{
		{"a policy of the server is created", r.none, r.put("from", "server", "friend")},
		{"a policy of the client is created", r.none, r.put("to", "client", "")},
		{"a policy is edited", r.put("from", "server", "client"), r.put("from", "server", "friend")},
		{"a policy is deleted", func(ctx context.Context) error {
			return inTurn(func() error { return r.put("from", "server", "client")(ctx) },
				func() error { return r.put("closed", "server", "")(ctx) })
		}, func(ctx context.Context) error {
			return r.policies().Delete(ctx, "from", metav1.DeleteOptions{})
		}},
		{"the client gets another label", r.put("from", "server", "client"), r.label("stranger")},
	} {
		t.Run(c.name, func(t *testing.T) { r.ends(ctx, t, c.before, c.change) })
	}
	nodetest.NoLeaks(t, l)
}

// revocation is the two pods, and policies that select them.
type revocation struct {
	l              *lab.Lab
	server, client *lab.Pod
}

// ends opens flows that the state before allows, and checks that they end with the change.
func (r *revocation) ends(ctx context.Context, t *testing.T,
	before, change func(context.Context) error) {
	errtest.Must(t, r.none(ctx), r.label("client")(ctx), before(ctx))
	nodetest.PolicyBecomes(ctx, t, r.client, r.server, true)
	var flows []*flow
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range r.server.Addrs {
			flows = append(flows, r.open(t, network, to))
		}
	}
	for _, f := range flows {
		errtest.Must(t, f.answered())
	}

	began := time.Now()
	errtest.Must(t, change(ctx))
	changed := time.Now()
	within := 30 * time.Second
	if nettest.Long() {
		within = revokedWithin
	}
	const silence = 500 * time.Millisecond

	for _, f := range flows {
		err := lab.Until(ctx, within+20*time.Second, func() error {
			if quiet := time.Since(f.last()); quiet < silence {
				return fmt.Errorf("%s was answered %v ago", f.name, quiet)
			}
			return nil
		})
		took := f.last().Sub(changed).Round(time.Millisecond)
		if err != nil || took > within || began.Sub(f.last()) > time.Second {
			t.Errorf("%s ended %v after the change, want at most %v: %v", f.name, took, within, err)
		}
		t.Logf("%s was last answered %v after the change", f.name, took)
	}
	nodetest.PolicyAllows(ctx, t, "after the change", r.client, r.server, false)
	for _, f := range flows {
		if time.Since(f.last()) < silence {
			t.Errorf("%s goes on again", f.name)
		}
	}
}

func (r *revocation) policies() networkPolicies {
	return r.l.Control.Client.NetworkingV1().NetworkPolicies(nodetest.Shop)
}

// none deletes all policies.
func (r *revocation) none(ctx context.Context) error {
	return r.policies().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// put returns a function that puts a policy for the pods of an app, which may receive from the pods
// of another app. If that is empty, they may receive from no pod; a client may not send then.
func (r *revocation) put(name, app, from string) func(context.Context) error {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if app == "client" {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	}
	if from != "" {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": from}}}}}}
	}
	return func(ctx context.Context) error { return putPolicy(ctx, r.policies(), p) }
}

// label returns a function that sets the app label of the client.
func (r *revocation) label(app string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.l.Control.Client.CoreV1().Pods(nodetest.Shop).Patch(ctx, r.client.Name,
			types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app),
			metav1.PatchOptions{})
		return err
	}
}

// flow is a flow of the client, which sends all the time.
type flow struct {
	name    string
	answers atomic.Int64
	// at is the time of the last answer, in nanoseconds since 1970.
	at atomic.Int64
}

// flowPause is the time between two messages of a flow.
const flowPause = 10 * time.Millisecond

// open opens a flow that lasts until the test ends.
func (r *revocation) open(t *testing.T, network string, to netip.Addr) *flow {
	t.Helper()
	target := netip.AddrPortFrom(to, traffic.EchoPort).String()
	var c net.Conn
	errtest.Must(t, netns.Do(r.client.NetNS(), func() (err error) {
		c, err = net.DialTimeout(network, target, 10*time.Second)
		return err
	}))
	f := &flow{name: network + " to " + to.String()}
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	t.Cleanup(func() { stop(); c.Close(); ended.Wait() })
	ended.Go(func() {
		b := make([]byte, 1<<16)
		for ctx.Err() == nil {
			if n, err := c.Read(b); err == nil && n > 0 {
				f.answers.Add(1)
				f.at.Store(time.Now().UnixNano())
			} else if network == "tcp" {
				return
			}
		}
	})
	ended.Go(func() {
		for ctx.Err() == nil {
			_, _ = c.Write([]byte(r.l.Canary)) // The test expects no answer.
			select {
			case <-ctx.Done():
			case <-time.After(flowPause):
			}
		}
	})
	return f
}

func (f *flow) last() time.Time { return time.Unix(0, f.at.Load()) }

// answered waits until a flow was answered some times.
func (f *flow) answered() error {
	return lab.Until(context.Background(), 20*time.Second, func() error {
		if n := f.answers.Load(); n < 5 {
			return fmt.Errorf("%s was answered %d times", f.name, n)
		}
		return nil
	})
}
