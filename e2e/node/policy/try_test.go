package policy_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// denies matches the line of veilctl policy list for a policy that denied packets.
var denies = regexp.MustCompile(nodetest.Shop + `/from .* yes +0 +[1-9]`)

// TestTriedPoliciesDoWhatWasPredicted tries policies on flows between pods of two nodes: what is
// suggested ends none of them, and a policy ends those that a try of it names.
func TestTriedPoliciesDoWhatWasPredicted(t *testing.T) {
	ctx, l := policyLab(t)
	r := &revocation{l: l}
	node := l.Nodes()[0]
	r.server = nodetest.StartPod(ctx, t, node, "server")
	nodetest.EchoAt(ctx, t, r.server)
	r.client = nodetest.StartPod(ctx, t, l.Nodes()[1], "client")
	for _, n := range l.Nodes()[:2] {
		nodetest.WaitMembers(ctx, t, n, 1)
	}
	errtest.Must(t, r.none(ctx), r.label("client")(ctx))
	nodetest.PolicyBecomes(ctx, t, r.client, r.server, true)
	var flows []*flow
	for _, to := range r.server.Addrs {
		flows = append(flows, r.open(t, "tcp", to))
		errtest.Must(t, flows[len(flows)-1].answered())
	}

	veilctl := func(args ...string) string {
		out, err := node.Exec(ctx, l.Program("veilctl"), append([]string{"policy"}, args...)...)
		t.Logf("veilctl policy %s: %v\n%s", strings.Join(args, " "), err, out)
		return string(out)
	}
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		filetest.Write(t, path, []byte(text), 0o644)
		return path
	}
	// becomes tries until what is predicted is as wanted: each try reads pods and flows again.
	becomes := func(what string, right func(out string) bool, args ...string) {
		errtest.Must(t, lab.Until(ctx, 30*time.Second, func() error {
			if out := veilctl(args...); !right(out) {
				return fmt.Errorf("%s: %s", what, out)
			}
			return nil
		}))
	}
	suggested := file("suggested.yaml", veilctl("suggest", nodetest.Shop))
	becomes("what is suggested ends flows", func(out string) bool {
		return !strings.Contains(out, "ENDS") && strings.Contains(out, ": 0 of ")
	}, "try", "-f", suggested)

	const friends = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
`
	becomes("no flow is predicted to end", func(out string) bool {
		return strings.Contains(out, "ENDS") && strings.Contains(out, nodetest.Shop+"/"+r.client.Name)
	}, "try", "-n", nodetest.Shop, "-f", file("friends.yaml", friends))
	for _, f := range flows {
		errtest.Must(t, f.answered())
	}

	errtest.Must(t, r.put("from", "server", "friend")(ctx))
	for _, f := range flows {
		errtest.Must(t, lab.Until(ctx, 30*time.Second, func() error {
			if quiet := time.Since(f.last()); quiet < 500*time.Millisecond {
				return fmt.Errorf("%s was answered %v ago", f.name, quiet)
			}
			return nil
		}))
	}

	// Samples of what is denied count for the policy, and a try of its deletion names them.
	nodetest.PolicyAllows(ctx, t, "after the change", r.client, r.server, false)
	becomes("the policy denied nothing", denies.MatchString, "list")
	becomes("no dropped packet is predicted to pass", func(out string) bool {
		return strings.Contains(out, "PASSES") && !strings.Contains(out, "ENDS")
	}, "try", "--delete", "NetworkPolicy/"+nodetest.Shop+"/from")
	nodetest.NoLeaks(t, l)
}

// TestPoliciesAreTriedBeforeTheyAreTurnedOn tries policies on nodes that enforce none. veilctl
// reads pods and policies with the rights of its caller, and the flows go on.
func TestPoliciesAreTriedBeforeTheyAreTurnedOn(t *testing.T) {
	ctx, l := nodetest.NewLab(t, lab.Options{Nodes: 2, Family: lab.Dual})
	errtest.Must(t, l.Control.AddNamespace(ctx, nodetest.Shop))
	r := &revocation{l: l}
	node := l.Nodes()[0]
	r.server = nodetest.StartPod(ctx, t, node, "server")
	nodetest.EchoAt(ctx, t, r.server)
	r.client = nodetest.StartPod(ctx, t, l.Nodes()[1], "client")
	errtest.Must(t, r.put("from", "server", "friend")(ctx))
	nodetest.PolicyBecomes(ctx, t, r.client, r.server, true)
	var flows []*flow
	for _, to := range r.server.Addrs {
		flows = append(flows, r.open(t, "tcp", to))
		errtest.Must(t, flows[len(flows)-1].answered())
	}

	admin, err := l.Control.WriteKubeconfig(ctx, "", "")
	errtest.Must(t, err)
	veilctl := func(kubeconfig string, args ...string) string {
		out, err := node.Exec(ctx, "/usr/bin/env", append([]string{"KUBECONFIG=" + kubeconfig,
			l.Program("veilctl"), "policy"}, args...)...)
		text := fmt.Sprintf("%s%v", out, err)
		t.Logf("veilctl policy %s: %s", strings.Join(args, " "), text)
		return text
	}
	for _, c := range []struct{ kubeconfig, args, want string }{
		{admin, "list", "set policy: kubernetes"},
		{admin, "suggest shop", "write --hand-over"},
		{admin, "try --delete NetworkPolicy/shop/from", "write --hand-over"},
		{"/etc/kubeveil/kubeconfig", "try --hand-over", "is forbidden"},
	} {
		if out := veilctl(c.kubeconfig, strings.Fields(c.args)...); !strings.Contains(out, c.want) {
			t.Errorf("%s: %q is missing", c.args, c.want)
		}
	}

	out := veilctl(admin, "try", "--hand-over")
	if !strings.Contains(out, "ENDS") || !strings.Contains(out, nodetest.Shop+"/"+r.client.Name) ||
		!strings.Contains(out, "if it enforced the 1 policies of the API server") {
		t.Error("no flow is predicted to end")
	}
	draft := strings.TrimSuffix(veilctl(admin, "suggest", nodetest.Shop, "--hand-over"), "<nil>")
	suggested := filepath.Join(t.TempDir(), "suggested.yaml")
	filetest.Write(t, suggested, []byte(draft), 0o644)
	out = veilctl(admin, "try", "--hand-over", "-f", suggested)
	if !strings.Contains(out, ": 0 of ") {
		t.Error("what is suggested, beside the policy, ends flows")
	}
	for _, f := range flows {
		errtest.Must(t, f.answered())
	}
	nodetest.NoLeaks(t, l)
}
