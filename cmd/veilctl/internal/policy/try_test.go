package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// tryDaemon is a veild that answers each try with tried if it can read the policies. It stores the
// policies in got.
func tryDaemon(t *testing.T, tried known.Tried, got *policy.Policies) string {
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicyTryPage: func(r *http.Request) (any, error) {
			var w policy.Written
			if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
				return nil, err
			}
			policies, err := policyfeed.Read(w)
			if err == nil && got != nil {
				*got = policies
			}
			return tried, err
		}})
}

const webPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 8080}, {protocol: UDP, port: 53}]
`

const guestsPolicy = `---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: guests}
spec:
  tier: Admin
  priority: 5
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: guest}}}]}]
`

func try(t *testing.T, socket, text string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "new.yaml")
	filetest.Write(t, file, []byte(text), 0o600)
	var out bytes.Buffer
	err := run(t.Context(), append([]string{"policy", "try", "-f", file, "--socket", socket},
		args...), &out, &out)
	return out.String(), err
}

// veild reads the same policies from a try as from an API server.
func TestTryPassesPoliciesOn(t *testing.T) {
	var got policy.Policies
	socket := tryDaemon(t, known.Tried{Node: "node-1", Result: trial.Result{Connections: 5,
		Same: 5}}, &got)
	out, err := try(t, socket, webPolicy+guestsPolicy)
	errtest.Must(t, err)
	if len(got.Namespaced) != 1 || len(got.Cluster) != 1 {
		t.Fatalf("%+v", got)
	}
	p := got.Namespaced[0]
	if p.Name.String() != "shop/web" || !p.Isolates[policy.Ingress] || p.Isolates[policy.Egress] ||
		len(p.Rules[policy.Ingress]) != 1 || p.Rules[policy.Ingress][0].Ports[0] !=
		(policy.Port{Proto: policy.TCP, First: 8080, Last: 8080}) {
		t.Errorf("%+v", p)
	}
	want := "Node node-1: 0 of 5 known connections of its pods would end, 5 stay.\n"
	if out != want {
		t.Errorf("%q, want %q", out, want)
	}

	list := `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "networking.k8s.io/v1",
		"kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": {"podSelector": {}}}]}`
	if _, err := try(t, socket, list, "-n", "shop"); err != nil || len(got.Namespaced) != 1 ||
		got.Namespaced[0].Name.String() != "shop/deny" {
		t.Errorf("a list without namespaces: %+v, %v", got, err)
	}
}

// Items of a list of one kind may lack apiVersion and kind, as in lists of the API server. kubectl
// accepts the same.
func TestTryReadsListsOfTheAPIServer(t *testing.T) {
	var got policy.Policies
	socket := tryDaemon(t, known.Tried{Node: "node-1"}, &got)
	item := func(text string) string { // without apiVersion and kind
		return strings.Join(strings.Split(strings.TrimPrefix(text, "---\n"), "\n")[2:], "\n  ")
	}
	const listed = "kind: NetworkPolicyList\napiVersion: networking.k8s.io/v1\nmetadata:\n" +
		"  resourceVersion: '7'\nitems:\n- "
	const clusterListed = "---\nkind: ClusterNetworkPolicyList\n" +
		"apiVersion: policy.networking.k8s.io/v1alpha2\nitems:\n- "
	_, err := try(t, socket, listed+item(webPolicy)+"\n"+clusterListed+item(guestsPolicy)+"\n")
	if err != nil || len(got.Namespaced) != 1 || got.Namespaced[0].Name.String() != "shop/web" ||
		len(got.Cluster) != 1 || got.Cluster[0].Name != "guests" {
		t.Errorf("%+v, %v", got, err)
	}

	for name, text := range map[string]string{
		"of all kinds":      "kind: List\napiVersion: v1\nitems:\n- " + item(webPolicy),
		"with a kind alone": listed + "kind: Pod\n  " + item(webPolicy),
		"nested":            listed + "items: [{metadata: {name: web}}]\n",
	} {
		if _, err := try(t, socket, text); err == nil || !strings.Contains(err.Error(), "items[0]") {
			t.Errorf("a list %s: %v", name, err)
		}
	}
}

func TestTryShowsWhatWouldEnd(t *testing.T) {
	socket := tryDaemon(t, known.Tried{Node: "node-1", Notes: []string{"one note"},
		Problems: []string{"NetworkPolicy shop/web: too large"}, Result: trial.Result{
			Connections: 9, Same: 4, Denied: 1, Unknown: 2, Drops: 7, DropsDenied: 5,
			Ends: []trial.Row{{Pod: "shop/web", Direction: "ingress", Peer: "198.18.2.7",
				PeerUnknown: true, Protocol: "tcp", Port: 80, Connections: 3,
				Reason: "policy_ingress", Policies: []string{"shop/web"}},
				{Pod: "shop/web", Peer: trial.Others, Connections: 1}},
			Passes: []trial.Row{}}}, nil)
	out, err := try(t, socket, webPolicy)
	want := `PROBLEM NetworkPolicy shop/web: too large
NOTE one note
ENDS
POD       DIRECTION  PEER                  PORT    CONNECTIONS  DROPS  REASON          POLICIES
shop/web  ingress    198.18.2.7 (unknown)  tcp/80  3            0      policy_ingress  shop/web
shop/web  -          others                -       1            0      -               -

Node node-1: 4 of 9 known connections of its pods would end, 4 stay, 1 are denied before and after; in 2, the other pod is unknown.
2 of the last 7 packets that policies dropped would pass.
`
	if out != want || verb.ExitStatus(err) != verb.ExitWrong {
		t.Errorf("%v:\n%s\nwant:\n%s", err, out, want)
	}
}

func TestTrySaysWhatIsWrongWithAFile(t *testing.T) {
	socket := tryDaemon(t, known.Tried{}, nil)
	change := func(old, with string) string { return strings.Replace(webPolicy, old, with, 1) }

	for name, c := range map[string]struct{ text, want string }{
		"another kind": {"apiVersion: v1\nkind: Pod\n", `document 1: kind "Pod" is not known here`},
		"another version": {change("networking.k8s.io/v1", "extensions/v1beta1"),
			`apiVersion "extensions/v1beta1": write networking.k8s.io/v1`},
		"no object":     {"node-1\n", "document 1: it is not an object with apiVersion and kind"},
		"no YAML":       {webPolicy + "---\n}{", "document 2: "},
		"a field twice": {change("podSelector:", "podSelector: {}\n  podSelector:"), `"podSelector" already set`},
		"a field that does not exist": {change("ingress:", "ingres:"),
			`unknown field "spec.ingres"`},
		"no namespace": {change(", namespace: shop", ""), "metadata.namespace is missing"},
		"a bad name":   {change("name: web", "name: We_b"), "metadata.name: Invalid value"},
		"a bad label": {change("app: client", "app: 'a b'"),
			"spec.ingress[0].from[0].podSelector.matchLabels: Invalid value"},
		"a bad type": {change("ingress:", "policyTypes: [Inside]\n  ingress:"),
			`spec.policyTypes[0]: Unsupported value: "Inside"`},
		"a bad port": {change("port: 8080", "port: 80800"), "NetworkPolicy shop/web: spec.ingress[0]"},
		"a bad protocol": {change("UDP", "ICMP"),
			`NetworkPolicy shop/web: spec.ingress[0]: protocol "ICMP" is not known`},
		"a bad action": {strings.Replace(guestsPolicy, "Deny", "Reject", 1),
			`ClusterNetworkPolicy guests: spec: ingress[0]: action "Reject" is not known`},
		"nothing":   {"# nothing\n", "there is nothing to try"},
		"too large": {strings.Repeat("# comment\n", maxFile/10+1), "more than 1024 KiB"},
		"too many": {strings.Repeat(webPolicy+"---\n", policy.MaxWritten+1),
			fmt.Sprintf("more than %d policies", policy.MaxWritten)},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := try(t, socket, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) || out != "" ||
				verb.ExitStatus(err) != verb.ExitWrong {
				t.Errorf("%v, want %q; output %q", err, c.want, out)
			}
		})
	}
}

func TestTryNeedsSomethingToTry(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "write -f FILE, --delete",
		"--delete shop/web":           "write NetworkPolicy/NAMESPACE/NAME",
		"--delete NetworkPolicy//web": "write NetworkPolicy/NAMESPACE/NAME",
		"what":                        "unexpected argument",
	} {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"policy", "try"}, strings.Fields(args)...), &out, &out)
		if verb.ExitStatus(err) != verb.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// Other nodes get the content of the user's file, and each evaluates its own pods.
func TestTryOnOtherNodes(t *testing.T) {
	var got policy.Policies
	tried := known.Tried{Node: "node-1", Result: trial.Result{Connections: 5, Same: 5}}
	cluster := &verbtest.Cluster{Sockets: map[string]string{"node-1": tryDaemon(t, tried, &got)}}
	cluster.Veilctl = func(ctx context.Context, args []string, out, progress io.Writer) error {
		root := &cobra.Command{Use: "veilctl"}
		verb.Root(root)
		root.AddCommand(Command())
		root.SetIn(cluster.In)
		return verb.Run(ctx, root, args, out, progress)
	}
	kubeconfig := cluster.Kubeconfig(t)
	file := filepath.Join(t.TempDir(), "new.yaml")
	filetest.Write(t, file, []byte(webPolicy), 0o600)
	on := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"policy", "try", "-f", file, "--kubeconfig",
			kubeconfig, "--cluster"}, args...), &out, &out)
		return out.String(), err
	}

	out, err := on()
	if err != nil || !strings.Contains(out, "==> node-1 <==\nNode node-1: 0 of 5") ||
		len(got.Namespaced) != 1 {
		t.Errorf("%v, %+v\n%s", err, got, out)
	}
	out, err = on("-o", "json", "--delete", "NetworkPolicy/shop/old")
	if err != nil || !strings.Contains(out, `"connections": 5`) {
		t.Errorf("%v\n%s", err, out)
	}

	filetest.Write(t, file, []byte("kind: Pod\n"), 0o600)
	if _, err := on(); err == nil || !strings.Contains(err.Error(), `kind "Pod"`) {
		t.Errorf("a file that is wrong is sent: %v", err)
	}
}
