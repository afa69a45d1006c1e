package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// run runs a command line of a veilctl with the verbs about policies alone.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	return verbtest.Run(ctx, args, out, progress, Command())
}

// policyDaemon answers the pages about policies.
func policyDaemon(t *testing.T, l keeper.List, pods ...policy.PodView) string {
	t.Helper()
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PoliciesPath: func(*http.Request) (any, error) { return l, nil },
		telemetry.PolicyPodPath: func(r *http.Request) (any, error) {
			for _, v := range pods {
				if v.Pod == r.FormValue("pod") {
					return v, nil
				}
			}
			return nil, errors.New("no such pod")
		},
	})
}

// webPod is isolated for ingress.
func webPod() policy.PodView {
	return policy.PodView{Pod: "shop/web", Addrs: []netip.Addr{netip.MustParseAddr("198.18.1.2")},
		Group: "g1", Enforced: true, Policies: []string{"shop/web"},
		Ingress: policy.SideView{Isolated: true, By: []string{"shop/web"},
			Lines: []policy.LineView{{Policy: "shop/web", Ports: "tcp 8080", Members: 2,
				Peers: "pods with app=client in namespace shop"}}}}
}

func TestPolicyVerbs(t *testing.T) {
	mute := webPod()
	mute.Pod, mute.Mute, mute.Enforced, mute.Why = "shop/mute", true, false, "it is not judged yet"
	closed := webPod()
	closed.Pod, closed.Ingress.Lines = "shop/closed", nil
	closed.Problems = []string{"shop/web denies everything that it isolates: spec"}

	node := webPod()
	node.Pod, node.Egress = "shop/node", policy.SideView{Isolated: true, By: []string{"shop/web"},
		OwnNode: true}
	nodeAndMore := webPod()
	nodeAndMore.Pod, nodeAndMore.Egress = "shop/more", node.Egress
	nodeAndMore.Egress.Lines = nodeAndMore.Ingress.Lines

	tiered := webPod()
	tiered.Pod, tiered.ClusterPolicies = "shop/tiered", []string{"guests", "floor"}
	tiered.Ingress.Admin = []policy.LineView{{Policy: "guests", Action: "Deny", Ports: "all",
		Members: 3, Peers: "all pods in namespaces with team=guest"}}
	tiered.Egress.Baseline = []policy.LineView{{Policy: "floor", Action: "Deny", Ports: "all",
		Members: -1, Peers: "10.0.0.0/8"}}

	fast, slow := webPod(), webPod()
	fast.Pod, fast.FastPath = "shop/fast", &policy.FastPathView{Has: true}
	slow.Pod, slow.FastPath = "shop/slow", &policy.FastPathView{Why: "policies apply to it"}

	good := policy.PolicyView{Policy: "shop/web", Tier: "NetworkPolicy",
		Directions: []string{"ingress", "egress"}, Pods: []string{"shop/web", "shop/mute"}, Enforced: true,
		Rules: []policy.RuleCount{{Allowed: 4}, {Allowed: 5}, {Denied: 7}}}
	bad := policy.PolicyView{Policy: "shop/bad", Tier: "NetworkPolicy",
		Directions: []string{"egress"}, Pods: []string{"shop/web"}, Problem: "it denies everything that it isolates: rule 0"}
	fine := policyDaemon(t, keeper.List{Node: "node-1", Listed: true,
		Policies: []policy.PolicyView{good}}, webPod(), mute, closed, tiered,
		node, nodeAndMore, fast, slow)
	wrong := policyDaemon(t, keeper.List{Node: "node-1", Listed: true,
		Policies: []policy.PolicyView{bad, good}})
	none := policyDaemon(t, keeper.List{Node: "node-1", Listed: true})
	swollen := policyDaemon(t, keeper.List{Node: "node-1", Listed: true, LeftOut: 4,
		Policies: []policy.PolicyView{good}, AllowedLeftOut: 5, DeniedLeftOut: 6})
	unlisted := policyDaemon(t, keeper.List{Node: "node-1", Problems: []string{"not listed"}})
	off := verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PoliciesPath: func(*http.Request) (any, error) {
			return nil, errors.New("policy is none")
		}})

	for name, c := range map[string]struct {
		socket, args string
		// want is in the output, or in the error where there is no output.
		want   []string
		status int
	}{
		"list": {fine, "list", []string{"POLICY",
			"shop/web  NetworkPolicy  ingress,egress  2     yes       9       7"}, verb.ExitOK},
		"list, one that denies all": {wrong, "list", []string{
			"shop/bad  NetworkPolicy  egress          1     no",
			"PROBLEM shop/bad: it denies everything that it isolates: rule 0"}, verb.ExitWrong},
		"list, none": {none, "list", []string{"No policy selects a pod of node node-1."},
			verb.ExitOK},
		"list, beyond bounds": {swollen, "list", []string{"\n4 policies are beyond a bound",
			"\n5 known connections", "\n6 samples of denied packets"}, verb.ExitOK},
		"list, not listed":  {unlisted, "list", []string{"PROBLEM not listed"}, verb.ExitWrong},
		"list, policy none": {off, "list", []string{"policy is none"}, verb.ExitWrong},
		"show": {fine, "show shop/web", []string{"198.18.1.2", "g1",
			"Ingress: isolated by shop/web; only this is allowed",
			"pods with app=client in namespace shop  tcp 8080  2        shop/web",
			"Egress: no policy isolates it; everything is allowed"}, verb.ExitOK},
		"show a mute pod": {fine, "show shop/mute", []string{"MUTE", "not judged yet"},
			verb.ExitWrong},
		"show a pod that is closed": {fine, "show shop/closed", []string{
			"PROBLEM", "isolated by shop/web; nothing is allowed"}, verb.ExitWrong},
		"show a pod that reaches its node": {fine, "show shop/node", []string{"Egress: isolated by " +
			"shop/web; nothing is allowed but its own node (policyOwnNode allow)"}, verb.ExitOK},
		"show a pod that reaches its node and more": {fine, "show shop/more", []string{"Egress: " +
			"isolated by shop/web; only this is allowed, and its own node (policyOwnNode allow)",
			"tcp 8080"}, verb.ExitOK},
		"show a pod with tiers": {fine, "show shop/tiered", []string{"guests, floor",
			"Ingress, tier Admin: the first line that matches decides",
			"Deny    all pods in namespaces with team=guest  all    3        guests",
			"Ingress: isolated by shop/web; only this of the rest is allowed",
			"Egress, tier Baseline: the first line that matches decides; everything else is allowed",
			"Deny    10.0.0.0/8  all    -        floor"}, verb.ExitOK},
		"show a pod with the fast path": {fine, "show shop/fast", []string{"Fast path  yes"},
			verb.ExitOK},
		"show a pod without it": {fine, "show shop/slow", []string{
			"Fast path  no: policies apply to it"}, verb.ExitOK},
		"show nobody":       {fine, "show shop/none", []string{"no such pod"}, verb.ExitWrong},
		"show what":         {fine, "show", []string{"NAMESPACE/NAME"}, verb.ExitUsage},
		"show no namespace": {fine, "show web", []string{"such as shop/web"}, verb.ExitUsage},
		"show too much":     {fine, "show a/b/c", []string{"such as shop/web"}, verb.ExitUsage},
		"show without veild": {"/nowhere/s", "show a/b", []string{"does not answer"},
			verb.ExitNoDaemon},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"policy"}, strings.Fields(c.args)...)
			err := run(t.Context(), append(args, "--socket", c.socket), &out, io.Discard)
			if got := verb.ExitStatus(err); got != c.status {
				t.Errorf("exit status %d (%v), want %d", got, err, c.status)
			}
			said := out.String()
			if said == "" && err != nil {
				said = err.Error()
			}
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in:\n%s", want, said)
				}
			}
		})
	}
}

func TestPolicyVerbsForPrograms(t *testing.T) {
	socket := policyDaemon(t, keeper.List{Node: "node-1", Listed: true,
		Policies: []policy.PolicyView{}}, webPod())
	for args, want := range map[string]string{"list": `"policies": []`,
		"show shop/web": `"mute": false`} {
		var out bytes.Buffer
		err := run(t.Context(), append(strings.Fields("policy "+args), "-o", "json", "--socket",
			socket), &out, io.Discard)
		if err != nil || !json.Valid(out.Bytes()) || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, no %s in:\n%s", args, err, want, &out)
		}
	}
}

func TestPodsAreCompleted(t *testing.T) {
	pods := " --socket " + policyDaemon(t, keeper.List{Listed: true, Policies: []policy.PolicyView{
		{Policy: "shop/web", Pods: []string{"shop/web", "shop/db"}},
		{Policy: "shop/all", Pods: []string{"shop/web"}}}})
	for name, tt := range map[string]struct{ args, want string }{
		"a pod":                     {"policy show" + pods + " ", "shop/db\nshop/web\n:4"},
		"the second end of a trace": {"policy trace" + pods + " shop/web ", "shop/db\n:4"},
		"no third end":              {"policy trace" + pods + " shop/web shop/db ", ":4"},
		"no daemon": {"policy show --socket " + filepath.Join(t.TempDir(), "none") + " ",
			":4"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verbtest.Completed(t, tt.args, Command()); got != tt.want {
				t.Errorf("completed to %q, want %q", got, tt.want)
			}
		})
	}
}
