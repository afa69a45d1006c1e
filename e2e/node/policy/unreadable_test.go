package policy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/sockdiag"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// While veild has no right to read policies or namespaces, a new pod cannot send or receive, even
// if a policy allows it. Older pods keep their groups. When veild has the right again, the new pod
// gets its group.
func TestPodsThatComeWhilePoliciesCannotBeReadAreMute(t *testing.T) {
	ctx, l := policyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	server := nodetest.StartPod(ctx, t, n1, "server")
	nodetest.EchoAt(ctx, t, server)
	known := nodetest.StartPod(ctx, t, n2, "client")
	nodetest.PolicyBecomes(ctx, t, known, server, true)

	for _, resource := range []string{"networkpolicies", "namespaces"} {
		t.Run(resource, func(t *testing.T) {
			giveBack := takeRight(ctx, t, l, resource)
			for _, n := range []*lab.Node{n1, n2} {
				breakUntilRefused(ctx, t, n, l.Control.ServerAddr(0).Port(), resource)
			}

			late := nodetest.StartPod(ctx, t, n2, "client")
			waitProblem(ctx, t, n2, "1 new pods are mute", true)
			nodetest.PolicyAllows(ctx, t, "first seen meanwhile", late, server, false)
			nodetest.PolicyAllows(ctx, t, "known before", known, server, true)

			giveBack()
			nodetest.PolicyBecomes(ctx, t, late, server, true)
			for _, n := range []*lab.Node{n1, n2} {
				waitProblem(ctx, t, n, resource, false)
			}
			nodetest.PolicyAllows(ctx, t, "known before", known, server, true)
		})
	}
	nodetest.NoLeaks(t, l)
}

// takeRight removes a resource from veild's rights to read, until the returned function is called.
func takeRight(ctx context.Context, t *testing.T, l *lab.Lab, resource string) (giveBack func()) {
	t.Helper()
	roles := l.Control.Client.RbacV1().ClusterRoles()
	role, err := roles.Get(ctx, "kubeveil-veild", metav1.GetOptions{})
	errtest.Must(t, err)
	with := role.Rules
	role.Rules = slices.DeleteFunc(slices.Clone(with), func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, resource)
	})
	if len(role.Rules) == len(with) {
		t.Fatalf("veild has no right on %s: %+v", resource, with)
	}
	if role, err = roles.Update(ctx, role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		role.Rules = with
		if _, err := roles.Update(ctx, role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// breakUntilRefused breaks a node's connections to the API server until its status names a resource
// that it may not read: the right for a running watch is not checked again.
func breakUntilRefused(ctx context.Context, t *testing.T, n *lab.Node, port uint16,
	resource string) {
	t.Helper()
	err := lab.Until(ctx, time.Minute, func() error {
		breakConnections(ctx, t, n, port)
		return lab.Until(ctx, 5*time.Second, func() error {
			problems := nodetest.NodeStatus(ctx, t, n).Problems
			if !strings.Contains(strings.Join(problems, "\n"), resource) {
				return fmt.Errorf("problems %q, want one of %s", problems, resource)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
}

// waitProblem waits until the status of a node has a problem with that text, or has none.
func waitProblem(ctx context.Context, t *testing.T, n *lab.Node, text string, want bool) {
	t.Helper()
	nodetest.WaitStatus(ctx, t, n, time.Minute, func(s telemetry.Status) error {
		if has := strings.Contains(strings.Join(s.Problems, "\n"), text); has != want {
			return fmt.Errorf("problems %q, want %q in them: %t", s.Problems, text, want)
		}
		return nil
	})
}

// Connections to the API server break five times in a row, and the watches continue soon after each
// break. Pods that are added meanwhile get their groups.
func TestPodsThatComeWhenWatchesBreakAreNotMuteForLong(t *testing.T) {
	ctx, l := policyLab(t)
	nodetest.AllowClients(ctx, t, l, "client")
	n1, n2 := l.Nodes()[0], l.Nodes()[1]
	server := nodetest.StartPod(ctx, t, n1, "server")
	nodetest.EchoAt(ctx, t, server)
	nodetest.WaitMembers(ctx, t, n1, 1)

	for range 5 {
		breakConnections(ctx, t, n1, l.Control.ServerAddr(0).Port())
		breakConnections(ctx, t, n2, l.Control.ServerAddr(0).Port())
	}
	broke := time.Now()
	client := nodetest.StartPod(ctx, t, n2, "client")
	nodetest.PolicyBecomes(ctx, t, client, server, true)
	t.Logf("the pod had its groups %v after the last break", time.Since(broke))
	for _, n := range []*lab.Node{n1, n2} {
		if t.Failed() {
			t.Logf("problems of %s: %q", n.Name, nodetest.NodeStatus(ctx, t, n).Problems)
		}
		waitProblem(ctx, t, n, "new pods are mute", false)
	}
	nodetest.NoLeaks(t, l)
}

// breakConnections ends the connections of a node to a port of others, once there is one.
func breakConnections(ctx context.Context, t *testing.T, n *lab.Node, port uint16) {
	t.Helper()
	err := lab.Until(ctx, 20*time.Second, func() error {
		var closed int
		err := n.Do(func() (err error) {
			closed, err = sockdiag.CloseIf(unix.IPPROTO_TCP, func(s sockdiag.Socket) bool {
				return s.Remote.Port() == port
			})
			return err
		})
		if err == nil && closed == 0 {
			err = fmt.Errorf("%s has no connection to the API server", n.Name)
		}
		return err
	})
	errtest.Must(t, err)
}
