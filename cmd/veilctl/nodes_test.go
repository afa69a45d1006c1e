package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// threeNodes returns the kubeconfig of a cluster: node-1 is well, the guard of node-2 is not in
// force, and node-3 has no veild. The pod shop/web is on node-1, and shop/late is on no node yet.
func threeNodes(t *testing.T) string {
	t.Helper()
	well := telemetry.Status{Node: "node-1", Guard: telemetry.Guard{InForce: true},
		Peers: []telemetry.Peer{{Name: "node-2", State: telemetry.PeerUp}}}
	pages := map[string]admin.Page{
		telemetry.PolicyPodPath: func(r *http.Request) (any, error) {
			if pod := r.FormValue("pod"); pod == "shop/web" {
				return policy.PodView{Pod: pod, Enforced: true}, nil
			}
			return nil, errors.New("not a pod of this node")
		},
		telemetry.TracePath: func(r *http.Request) (any, error) {
			return nil, errors.New("no service has " + r.FormValue("protocol"))
		}}
	c := verbtest.Cluster{Veilctl: run, Sockets: map[string]string{
		"node-1": verbtest.Daemon(t, well, true, pages),
		"node-2": verbtest.Daemon(t, telemetry.Status{Node: "node-2"}, true, nil), "node-3": ""},
		Pods: map[string]string{"shop/web": "node-1", "shop/late": ""}}
	return c.Kubeconfig(t)
}

func TestVerbsOnOtherNodes(t *testing.T) {
	kubeconfig := threeNodes(t)
	for name, tt := range map[string]struct {
		args   string
		status int
		// want holds strings that the output or the error contains.
		want []string
	}{
		"one node": {"guard --node node-1", verb.ExitOK, []string{"Attached, both ways"}},
		"one node that is not well": {"guard --node node-2", verb.ExitWrong,
			[]string{"Attached, both ways"}},
		"one node without veild": {"mtu --node node-3", verb.ExitNoDaemon,
			[]string{"node-3: no pod of veild on this node"}},
		"an unknown node": {"mtu --node node-9", verb.ExitWrong,
			[]string{`no Linux node "node-9" in http://`, "it has node-1, node-2, node-3"}},
		"all nodes": {"peers --cluster", verb.ExitWrong, []string{"==> node-1 <==\nNODE",
			"node-2  up", "\n\n==> node-2 <==", "\nnode-3: no pod of veild on this node\n" +
				"2 of 3 nodes answered\n"}},
		"all nodes, by --kubeconfig": {"mtu", verb.ExitWrong, []string{"==> node-2 <=="}},
		"flags and arguments": {"service trace 198.18.128.10:80 --udp --node node-1",
			verb.ExitWrong, []string{"node-1: no service has UDP"}},
		"a wrong argument": {"service show --cluster", verb.ExitUsage,
			[]string{"name one service as NAMESPACE/NAME"}},
		"the node of a pod": {"policy show shop/web --cluster", verb.ExitOK,
			[]string{"==> node-1 <==\nPod"}},
		"an unknown pod": {"policy show shop/none --cluster", verb.ExitWrong,
			[]string{"no pod none in namespace shop, which has: "}},
		"a pod that no node has": {"policy trace shop/web shop/late -p icmp --cluster",
			verb.ExitWrong, []string{"pod shop/late is on no node yet"}},
		"another node's pod": {"policy show shop/web --node node-2", verb.ExitWrong,
			[]string{"node-2: "}},
		"two ways": {"peers --node node-1 --cluster", verb.ExitUsage, []string{"not both"}},
		"a socket, too": {"peers --cluster --socket /x", verb.ExitUsage,
			[]string{"leave it out with --node"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append(strings.Fields(tt.args), "--kubeconfig", kubeconfig)
			err := run(t.Context(), args, &out, io.Discard)

			said := out.String()
			if err != nil {
				said += "error: " + err.Error()
			}
			if got := verb.ExitStatus(err); got != tt.status {
				t.Errorf("exit status %d, want %d", got, tt.status)
			}
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in:\n%s", want, said)
				}
			}
		})
	}
}

// version exits with 1 if nodes run different versions.
func TestVersionsOfACluster(t *testing.T) {
	for second, status := range map[string]int{"v0.1.0": verb.ExitOK, "v0.2.0": verb.ExitWrong} {
		c := verbtest.Cluster{Veilctl: run, Sockets: map[string]string{}}
		for node, version := range map[string]string{"node-1": "v0.1.0", "node-2": second} {
			s := telemetry.Status{Node: node, Version: version}
			c.Sockets[node] = verbtest.Daemon(t, s, true, nil)
		}
		var out bytes.Buffer
		err := run(t.Context(), []string{"version", "--cluster", "-o", "json", "--kubeconfig",
			c.Kubeconfig(t)}, &out, io.Discard)
		if got := verb.ExitStatus(err); got != status ||
			!strings.Contains(out.String(), `"version": "`+second+`"`) {
			t.Errorf("%s beside v0.1.0: exit status %d, want %d: %v\n%s", second, got, status, err,
				&out)
		}
	}
}

// With -o json, the output for one node is the output of its veilctl, and the output for several
// nodes is one document.
func TestVerbsOnOtherNodesForPrograms(t *testing.T) {
	kubeconfig := threeNodes(t)
	output := func(args string, v any) error {
		var out bytes.Buffer
		err := run(t.Context(), append(strings.Fields(args), "-o", "json", "--kubeconfig",
			kubeconfig), &out, io.Discard)
		if e := json.Unmarshal(out.Bytes(), v); e != nil {
			t.Fatalf("%v\n%s", e, &out)
		}
		return err
	}

	var peers []telemetry.Peer
	if err := output("peers --node node-1", &peers); err != nil || len(peers) != 1 {
		t.Errorf("%v, %+v", err, peers)
	}

	var all struct {
		Nodes []struct {
			Node, Error string
			Answer      []telemetry.Peer
		}
	}
	if err := output("peers --cluster", &all); !errors.Is(err, verb.ErrWrong) {
		t.Errorf("a node without veild: %v", err)
	}
	var got []string
	for _, n := range all.Nodes {
		got = append(got, strings.TrimSpace(n.Node+" "+n.Error))
	}
	want := []string{"node-1", "node-2", "node-3 no pod of veild on this node"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestNodesAreCompleted(t *testing.T) {
	var out bytes.Buffer
	args := []string{"__complete", "peers", "--kubeconfig", threeNodes(t), "--node", ""}
	errtest.Must(t, run(t.Context(), args, &out, io.Discard))
	if got := out.String(); !strings.HasPrefix(got, "node-1\nnode-2\nnode-3\n:4") {
		t.Errorf("completed to %q", got)
	}
}

// Each verb with veild's socket has --node and --cluster.
func TestVerbsOfVeildReachOtherNodes(t *testing.T) {
	// The first two implement --cluster themselves. The last reads frames on its own machine.
	own := []string{"veilctl status", "veilctl policy wait", "veilctl leakcheck"}
	everyVerb(newVeilctl(), func(v *cobra.Command) {
		reaches := v.Flag("node") != nil && v.Flag("cluster") != nil
		if v.Flag("socket") != nil && !reaches && !slices.Contains(own, v.CommandPath()) {
			t.Errorf("%s has no --node and --cluster: use verb.OnNode", v.CommandPath())
		}
	})
}
