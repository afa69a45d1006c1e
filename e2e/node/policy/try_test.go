package policy_test

import (
	"errors"
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
	suggested := veilctl("suggest", nodetest.Shop)
	if out := veilctl("try", "-f", file("suggested.yaml", suggested)); strings.Contains(out, "ENDS") ||
		!strings.Contains(out, ": 0 of ") {
		t.Error("what is suggested ends flows")
	}

	const friends = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
`
	out := veilctl("try", "-n", nodetest.Shop, "-f", file("friends.yaml", friends))
	if !strings.Contains(out, "ENDS") || !strings.Contains(out, nodetest.Shop+"/"+r.client.Name) {
		t.Error("no flow is predicted to end")
	}
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
	errtest.Must(t, lab.Until(ctx, 30*time.Second, func() error {
		if out := veilctl("list"); !denies.MatchString(out) {
			return errors.New("the policy denied nothing")
		}
		return nil
	}))
	if out := veilctl("try", "--delete", "NetworkPolicy/"+nodetest.Shop+"/from"); !strings.Contains(out,
		"PASSES") || strings.Contains(out, "ENDS") {
		t.Error("no dropped packet is predicted to pass")
	}
	nodetest.NoLeaks(t, l)
}
