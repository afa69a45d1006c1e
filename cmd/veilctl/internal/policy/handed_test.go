package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/policyfeed"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/known"
	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// The pages of an API server's lists.
const (
	firstPods = `{"kind": "PodList", "apiVersion": "v1", "metadata": {"continue": "two"}, "items": [
		{"metadata": {"namespace": "shop", "name": "web", "uid": "u1", "labels": {"app": "web"},
			"annotations": {"note": "not handed over"}},
		"spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i",
			"ports": [{"name": "http", "containerPort": 8080}]}], "initContainers": [{"name": "i",
			"restartPolicy": "Always", "ports": [{"name": "mesh", "containerPort": 15001,
			"protocol": "UDP"}]}]},
		"status": {"phase": "Running", "podIP": "198.18.1.2", "podIPs": [{"ip": "198.18.1.2"},
			{"ip": "fd42:1:1::2"}]}},
		{"metadata": {"namespace": "shop", "name": "job"}, "spec": {"nodeName": "node-1"},
		"status": {"phase": "Succeeded", "podIP": "198.18.1.2"}}]}`
	lastPods = `{"kind": "PodList", "apiVersion": "v1", "items": [
		{"metadata": {"namespace": "kube-system", "name": "static", "uid": "u2",
			"annotations": {"kubernetes.io/config.mirror": "u3"}},
		"spec": {"nodeName": "node-2"}, "status": {"phase": "Pending"}}]}`
	forbidden = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
		"message": "pods is forbidden: User \"eve\" cannot list resource \"pods\"", "code": 403}`
	notFound = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
		"code": 404}`
)

// lists is an API server that has these answers by path, and by the token of the page.
type lists map[string]string

func (l lists) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, has := l[r.URL.Path+r.FormValue("continue")]
	if !has {
		text = notFound
	}
	var status struct{ Code int }
	_ = json.Unmarshal([]byte(text), &status) // a list has no code
	w.Header().Set("Content-Type", "application/json")
	if status.Code != 0 {
		w.WriteHeader(status.Code)
	}
	fmt.Fprint(w, text)
}

func shopLists() lists {
	return lists{"/api/v1/pods": firstPods, "/api/v1/podstwo": lastPods,
		"/api/v1/namespaces": `{"kind": "NamespaceList", "apiVersion": "v1", "items": [
			{"metadata": {"name": "shop", "labels": {"team": "a"}}}]}`,
		"/api/v1/nodes": `{"kind": "NodeList", "apiVersion": "v1", "items": [
			{"metadata": {"name": "node-1", "labels": {"zone": "b"}}},
			{"metadata": {"name": "node-2"}}]}`,
		"/apis/networking.k8s.io/v1/networkpolicies": `{"kind": "NetworkPolicyList",
			"apiVersion": "networking.k8s.io/v1", "items": [{"metadata": {"namespace": "shop",
			"name": "web", "uid": "p1", "generation": 3}, "spec": {"podSelector": {},
			"policyTypes": ["Egress"]}}]}`}
}

// noneDaemon is a veild that enforces no policies, on node-1. It stores what is handed over in got.
func noneDaemon(t *testing.T, got *policy.Objects) string {
	read := func(h *policy.Handed) (err error) {
		if h == nil {
			return fmt.Errorf("write --hand-over")
		}
		*got, err = policyfeed.ReadHanded(*h, "node-1")
		return err
	}
	return verbtest.Daemon(t, telemetry.Status{}, true, map[string]admin.Page{
		telemetry.PolicyTryPage: func(r *http.Request) (any, error) {
			var w policy.Written
			if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
				return nil, err
			}
			return known.Tried{Node: "node-1"}, read(w.Handed)
		},
		telemetry.PolicySeenPage: func(r *http.Request) (any, error) {
			var h *policy.Handed
			if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
				return nil, err
			}
			return suggest.Seen{Node: "node-1"}, read(h)
		}})
}

// A veild without policies reads the same objects from veilctl as it would from the API server.
func TestObjectsAreHandedOver(t *testing.T) {
	server := shopLists()
	t.Setenv("KUBECONFIG", verbtest.Kubeconfig(t, server))
	want := policy.Objects{
		Namespaces: []policy.Namespace{{Name: "shop", Labels: map[string]string{"team": "a"}}},
		Pods: []policy.Pod{{Name: policy.Name{Namespace: "shop", Name: "web"}, UID: "u1",
			Node: "node-1", Labels: map[string]string{"app": "web"},
			Addrs: []netip.Addr{netip.MustParseAddr("198.18.1.2"),
				netip.MustParseAddr("fd42:1:1::2")},
			Ports: []policy.NamedPort{{Name: "http", Proto: policy.TCP, Port: 8080},
				{Name: "mesh", Proto: policy.UDP, Port: 15001}}},
			{Name: policy.Name{Namespace: "kube-system", Name: "static"}, UID: "u3", Node: "node-2",
				Mirror: true}},
		NodeLabels: map[string]map[string]string{"node-1": {"zone": "b"}, "node-2": {}},
		Policies: policy.Policies{Namespaced: []policy.Policy{{
			Name:   policy.Name{Namespace: "shop", Name: "web"},
			Object: policy.Object{UID: "p1", Generation: 3}, Isolates: [2]bool{false, true}}}}}

	var got policy.Objects
	socket := noneDaemon(t, &got)
	for _, line := range []string{"try --hand-over", "suggest shop --hand-over"} {
		got = policy.Objects{}
		out, err := verbRun(t, line+" --socket "+socket)
		errtest.Must(t, err)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: veild read\n%+v\nwant\n%+v\n%s", line, got, want, out)
		}
	}

	const path = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	server[path] = `{"kind": "ClusterNetworkPolicyList",
		"apiVersion": "policy.networking.k8s.io/v1alpha2", "items": [{"kind": "ClusterNetworkPolicy",
		"apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": "guests",
		"managedFields": [{"manager": "kubectl"}]}, "spec": {"tier": "Admin", "priority": 5,
		"subject": {"namespaces": {}}}}]}`
	_, err := verbRun(t, "try --hand-over --socket "+socket)
	errtest.Must(t, err)
	if all := got.Policies.Cluster; len(all) != 1 || all[0].Name != "guests" ||
		all[0].Invalid != "" {
		t.Errorf("ClusterNetworkPolicies: %+v", all)
	}
}

func verbRun(t *testing.T, line string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), append([]string{"policy"}, strings.Fields(line)...), &out, &out)
	return out.String(), err
}

func TestWhatCannotBeHandedOverIsNamed(t *testing.T) {
	var got policy.Objects
	socket := noneDaemon(t, &got)
	for name, c := range map[string]struct{ path, answer, want string }{
		"no right": {"/api/v1/pods", forbidden,
			`--hand-over: list pods: pods is forbidden: User "eve" cannot list resource "pods"`},
		"a page that is gone": {"/api/v1/podstwo", notFound, "--hand-over: list pods: "},
		"too much": {"/api/v1/podstwo", strings.Replace(lastPods, `"u2"`,
			`"u2", "labels": {"a": "`+strings.Repeat("x", 7<<20)+`"}`, 1),
			"need 10 MiB, more than veild reads (8 MiB): set policy: kubernetes"},
	} {
		server := shopLists()
		server[c.path] = c.answer
		t.Setenv("KUBECONFIG", verbtest.Kubeconfig(t, server))
		out, err := verbRun(t, "try --hand-over --socket "+socket)
		if err == nil || !strings.Contains(err.Error(), c.want) || out != "" {
			t.Errorf("%s: %v, want %q; output %q", name, err, c.want, out)
		}
	}
}
