package policy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/planner"
	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
	"github.com/kubeveil/kubeveil/pkg/policy/trial"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

func seenDaemon(t *testing.T, s suggest.Seen) string {
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicySeenPage: func(r *http.Request) (any, error) {
			if r.FormValue("namespace") != "shop" {
				return nil, errors.New("namespace does not exist: the cluster has shop")
			}
			return s, nil
		}})
}

// shopPods holds the addresses of the pods of shop, keyed by their label app.
var shopPods = map[string]string{"client": "198.18.1.1", "web": "198.18.1.2", "db": "198.18.1.3"}

func rowOf(subject string, egress bool, peer string, port uint16) suggest.Row {
	pods := func(app string) suggest.Pods {
		return suggest.Pods{Namespace: "shop", Example: app + "-1",
			Labels: map[string]string{"app": app}}
	}
	p := suggest.Peer{Addr: peer}
	if shopPods[peer] != "" {
		of := pods(peer)
		p = suggest.Peer{Pods: &of}
	}
	return suggest.Row{Subject: pods(subject), Egress: egress, Peer: p, Protocol: "TCP", Port: port,
		Connections: 1}
}

var seenByTwo = []suggest.Seen{
	{Node: "node-1", Rows: []suggest.Row{rowOf("client", true, "web", 8080),
		rowOf("web", false, "client", 8080)}},
	{Node: "node-2", Rows: []suggest.Row{rowOf("web", true, "db", 5432),
		rowOf("db", false, "web", 5432), rowOf("web", true, "203.0.113.1", 443)}}}

// Suggested policies are a valid file of policies. A try of them ends none of the connections from
// which they were made, and denies other connections.
func TestSuggestedPoliciesEndNothing(t *testing.T) {
	var text bytes.Buffer
	errtest.Must(t, suggest.Write(&text, "shop", seenByTwo, nil))
	var w policy.Written
	errtest.Must(t, read(&text, "", &w))
	policies, err := policyfeed.Read(w)
	errtest.Must(t, err)
	if len(policies.Namespaced) != 3 {
		t.Fatalf("%d policies of three workloads", len(policies.Namespaced))
	}

	p := planner.New("here")
	p.PutNamespace(policy.Namespace{Name: "shop",
		Labels: map[string]string{"kubernetes.io/metadata.name": "shop"}})
	for app, addr := range shopPods {
		pod := policy.Pod{Name: policy.Name{Namespace: "shop", Name: app + "-1"}, UID: app,
			Node: "here", Labels: map[string]string{"app": app}}
		p.PutPod(pod)
		p.SetAttached(pod.Key(), []netip.Addr{netip.MustParseAddr(addr)})
	}
	before := p.Plan()
	for _, v := range policies.Namespaced {
		p.PutPolicy(v)
	}
	after := p.Plan()
	try := func(from, to string, port uint16) trial.Result {
		tr := trial.New(trial.Config{Before: before, After: after,
			Name: func(a netip.Addr) trial.End { return trial.End{Name: a.String()} }})
		tr.Known(policy.Known{Client: netip.MustParseAddr(from), Server: netip.MustParseAddr(to),
			Proto: policy.TCP, Port: port})
		return tr.Result()
	}
	client, web, db := shopPods["client"], shopPods["web"], shopPods["db"]
	for _, r := range []trial.Result{try(client, web, 8080), try(web, db, 5432),
		try(web, "203.0.113.1", 443)} {
		if r.Same != 1 {
			t.Errorf("a connection that was known ends: %+v", r)
		}
	}
	for _, r := range []trial.Result{try(client, web, 8081), try(client, db, 5432),
		try(web, "203.0.113.2", 443), try(db, web, 8080)} {
		if len(r.Ends) != 1 {
			t.Errorf("a connection that was not known is allowed: %+v", r)
		}
	}
}

// With --cluster, the answers of all nodes become one document.
func TestSuggestMergesNodes(t *testing.T) {
	cluster := &verbtest.Cluster{Sockets: map[string]string{"node-1": seenDaemon(t, seenByTwo[0]),
		"node-2": seenDaemon(t, seenByTwo[1]), "node-3": ""},
		Veilctl: func(ctx context.Context, args []string, out, progress io.Writer) error {
			return run(ctx, args, out, progress)
		}}
	kubeconfig := cluster.Kubeconfig(t)
	on := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"policy", "suggest", "--kubeconfig", kubeconfig},
			args...), &out, io.Discard)
		return out.String(), err
	}

	out, err := on("shop", "--cluster")
	if !errors.Is(err, verb.ErrWrong) || strings.Count(out, "kind: NetworkPolicy") != 3 ||
		!strings.Contains(out, `these nodes know now: "node-1", "node-2".`) ||
		!strings.Contains(out, `did not answer: "node-3: no pod of veild on this node"`) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = on("shop", "--node", "node-1")
	if err != nil || strings.Count(out, "kind: NetworkPolicy") != 2 {
		t.Errorf("one node: %v\n%s", err, out)
	}
	out, err = on("shop", "--node", "node-1", "-o", "json")
	if err != nil || !strings.Contains(out, `"node": "node-1"`) {
		t.Errorf("one node for programs: %v\n%s", err, out)
	}
	if _, err = on("shp", "--node", "node-1"); err == nil || !strings.Contains(err.Error(),
		"the cluster has shop") {
		t.Errorf("no such namespace: %v", err)
	}
	if _, err = on("--node", "node-1"); verb.ExitStatus(err) != verb.ExitUsage {
		t.Errorf("no namespace: %v", err)
	}
}
