package suggest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/policy/suggest"
)

var (
	web    = suggest.Pods{Namespace: "shop", Example: "web-1", Labels: map[string]string{"app": "web"}}
	client = suggest.Pods{Namespace: "shop", Example: "client-1",
		Labels: map[string]string{"app": "client"}, Others: 1, Other: "client-canary"}
	dns = suggest.Pods{Namespace: "kube-system", Example: "coredns-1",
		Labels: map[string]string{"k8s-app": "kube-dns"}}
	bare = suggest.Pods{Namespace: "other", Example: "bare"}
)

func written(t *testing.T, missing []string, seen ...suggest.Seen) string {
	t.Helper()
	var out bytes.Buffer
	errtest.Must(t, suggest.Write(&out, "shop", seen, missing))
	return out.String()
}

// Two nodes know different connections of the same pods.
func TestPoliciesAllowWhatNodesKnow(t *testing.T) {
	row := func(egress bool, peer suggest.Peer, protocol string, port uint16) suggest.Row {
		return suggest.Row{Subject: web, Egress: egress, Peer: peer, Protocol: protocol, Port: port,
			Connections: 2}
	}
	text := written(t, []string{"node-3: no pod"},
		suggest.Seen{Node: "b", Denied: 4, Rows: []suggest.Row{
			row(false, suggest.Peer{Pods: &client}, "TCP", 8080),
			row(true, suggest.Peer{Pods: &dns}, "UDP", 53),
			row(true, suggest.Peer{Addr: "198.18.2.9", Unknown: true}, "TCP", 1)}},
		suggest.Seen{Node: "a", LeftOut: 3, Other: 1, Rows: []suggest.Row{
			row(false, suggest.Peer{Pods: &client}, "TCP", 8080),
			row(false, suggest.Peer{Addr: "192.0.2.2", Node: "node-2"}, "TCP", 8080),
			row(true, suggest.Peer{Addr: "2001:db8::1"}, "TCP", 443),
			row(true, suggest.Peer{Pods: &bare}, "TCP", 9)}})

	_, body, _ := strings.Cut(text, "they would end.\n")
	want := `# NOTE 3 connections are beyond a bound, and left out
# NOTE 1 connections have a protocol without ports, which NetworkPolicy does not know
# NOTE 4 connections are denied now, and left out
# NOTE nodes that did not answer: "node-3: no pod"
---
# Pods such as "web-1".
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: "suggested-fdcc3210bc", namespace: "shop"}
spec:
  podSelector: {matchLabels: {"app":"web"}}
  policyTypes: [Ingress, Egress]
  ingress:
  # connections: 2
  # node "node-2"
  - from: [{ipBlock: {cidr: "192.0.2.2/32"}}]
    ports: [{protocol: TCP, port: 8080}]
  # connections: 4
  # pods such as "client-1" in "shop"
  # NOTE these labels select 1 more pods, such as "client-canary"
  - from: [{podSelector: {matchLabels: {"app":"client"}}}]
    ports: [{protocol: TCP, port: 8080}]
  # NOTE left out: to "198.18.2.9", TCP 1, a pod's address of which no pod is known
  egress:
  # connections: 2
  - to: [{ipBlock: {cidr: "2001:db8::1/128"}}]
    ports: [{protocol: TCP, port: 443}]
  # connections: 2
  # pods such as "coredns-1" in "kube-system"
  - to: [{namespaceSelector: {matchLabels: {"kubernetes.io/metadata.name":"kube-system"}}, podSelector: {matchLabels: {"k8s-app":"kube-dns"}}}]
    ports: [{protocol: UDP, port: 53}]
  # connections: 2
  # pods such as "bare" in "other"
  # NOTE they have no labels that select them: the whole namespace
  - to: [{namespaceSelector: {matchLabels: {"kubernetes.io/metadata.name":"other"}}}]
    ports: [{protocol: TCP, port: 9}]
`
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(text, `these nodes know now: "a", "b"`) {
		t.Error(text)
	}
}

// A pod without labels, or a pod of another namespace, gets a comment instead of a policy, because
// a policy would select other pods too.
func TestPodsThatNoLabelSelectsGetNoPolicy(t *testing.T) {
	for _, subject := range []suggest.Pods{{Namespace: "shop", Example: "bare"}, dns} {
		text := written(t, nil, suggest.Seen{Node: "a", Rows: []suggest.Row{{Subject: subject,
			Peer: suggest.Peer{Pods: &web}, Protocol: "TCP", Port: 80, Connections: 1}}})
		if strings.Contains(text, "kind:") || !strings.Contains(text, "no policy is written") {
			t.Error(text)
		}
	}
	text := written(t, nil, suggest.Seen{Node: "a", Rows: []suggest.Row{{Subject: web, Egress: true,
		Peer: suggest.Peer{Pods: &dns}, Protocol: "UDP", Port: 53}}})
	if !strings.Contains(text, "# NOTE no rule for ingress: all of it is denied\n") {
		t.Error(text)
	}
	if text := written(t, nil); !strings.Contains(text, "no connections of its pods are known") {
		t.Error(text)
	}
}

// A node that was taken over writes no YAML of its own: not into a comment, and not as a value.
// What cannot exist in a cluster is left out.
func TestTextOfANodeStaysText(t *testing.T) {
	good := suggest.Row{Subject: web, Peer: suggest.Peer{Pods: &client}, Protocol: "TCP", Port: 80,
		Connections: 1}
	for _, bad := range []string{"x\nspec: {}\n---\n", "a\u0085  - {} #", "a\u009b2J", "a\u202eb",
		"a\u2028  - {} #", `"}`, "a # b"} {
		row := func(change func(r *suggest.Row)) suggest.Row {
			r, peer := good, client
			r.Peer.Pods = &peer
			change(&r)
			return r
		}
		rows := []suggest.Row{good,
			row(func(r *suggest.Row) { r.Subject.Example = bad }),
			row(func(r *suggest.Row) { r.Subject.Other, r.Subject.Others = bad, 1 }),
			row(func(r *suggest.Row) { r.Subject.Labels = map[string]string{"app": bad} }),
			row(func(r *suggest.Row) { r.Peer.Pods.Labels = map[string]string{bad: "a"} }),
			row(func(r *suggest.Row) { r.Peer.Pods.Namespace = bad }),
			row(func(r *suggest.Row) { r.Peer = suggest.Peer{Addr: bad} }),
			row(func(r *suggest.Row) { r.Peer = suggest.Peer{Addr: "fe80::1%" + bad} }),
			row(func(r *suggest.Row) { r.Peer = suggest.Peer{Addr: "198.18.1.1", Node: bad} }),
			row(func(r *suggest.Row) { r.Protocol = bad }),
			row(func(r *suggest.Row) { r.Port = 0 }),
		}
		text := written(t, []string{bad}, suggest.Seen{Node: bad, Rows: rows})
		unsafe := func(r rune) bool { return r > '~' || r < ' ' && r != '\n' }
		if strings.ContainsFunc(text, unsafe) ||
			!strings.Contains(text, "connections that cannot exist") {
			t.Errorf("%q: %s", bad, text)
		}

		rules := 0
		for document := range strings.SplitSeq(text, "\n---\n") {
			var p struct {
				Spec struct{ Ingress, Egress []any }
			}
			if err := yaml.Unmarshal([]byte(document), &p); err != nil {
				t.Errorf("%q: %v", bad, err)
			}
			rules += len(p.Spec.Ingress) + len(p.Spec.Egress)
		}
		if rules != 1 {
			t.Errorf("%q: %d rules, want 1:\n%s", bad, rules, text)
		}
	}
}

// Ports that are not characters of Unicode are different ports.
func TestEachPortIsARow(t *testing.T) {
	var c suggest.Collector
	for _, port := range []uint16{55296, 57343, 65533} {
		c.Add(suggest.Row{Subject: web, Peer: suggest.Peer{Pods: &client}, Protocol: "TCP",
			Port: port})
	}
	if rows := c.Result().Rows; len(rows) != 3 {
		t.Errorf("rows %+v", rows)
	}
}

func TestStableLabelsIdentifyAWorkload(t *testing.T) {
	got := suggest.Stable(map[string]string{"app": "web", "pod-template-hash": "1",
		"statefulset.kubernetes.io/pod-name": "web-0", "batch.kubernetes.io/job-name": "x",
		"controller-revision-hash": "2", "app.kubernetes.io/name": "web"})
	if want := map[string]string{"app": "web", "app.kubernetes.io/name": "web"}; !maps.Equal(got,
		want) {
		t.Errorf("stable labels %v, want %v", got, want)
	}
}

func TestSeenIsBounded(t *testing.T) {
	var c suggest.Collector
	for i := range suggest.MaxPeers + 10 {
		for range 2 {
			c.Add(suggest.Row{Subject: web, Peer: suggest.Peer{Addr: fmt.Sprint(i)}, Protocol: "TCP"})
		}
	}
	c.Add(suggest.Row{Subject: client, Peer: suggest.Peer{Pods: &web}, Protocol: "TCP", Port: 1})
	s := c.Result()
	if len(s.Rows) != suggest.MaxPeers+1 || s.LeftOut != 20 {
		t.Errorf("%d rows, %d left out", len(s.Rows), s.LeftOut)
	}
}

// The labels of two pods repeat in each row.
func TestSeenIsBoundedInBytes(t *testing.T) {
	var c suggest.Collector
	for i := range suggest.MaxRows {
		pods := suggest.Pods{Namespace: "shop", Example: "p", Labels: map[string]string{}}
		for j := range 128 {
			pods.Labels[fmt.Sprint("label-", j)] = fmt.Sprintf("%060d", i)
		}
		c.Add(suggest.Row{Subject: pods, Peer: suggest.Peer{Pods: &pods}, Protocol: "TCP", Port: 1})
	}
	s := c.Result()
	text, err := json.Marshal(s)
	if err != nil || len(text) > 9<<20 || len(s.Rows) < 100 ||
		len(s.Rows)+s.LeftOut != suggest.MaxRows {
		t.Errorf("%v: %d bytes, %d rows, %d left out", err, len(text), len(s.Rows), s.LeftOut)
	}
}
