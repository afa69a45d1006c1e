package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

const (
	podsPath            = "/api/v1/pods"
	namespacesPath      = "/api/v1/namespaces"
	networkPoliciesPath = "/apis/networking.k8s.io/v1/networkpolicies"
	clusterPoliciesPath = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	adminPoliciesPath   = "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies"
	definitionsPath     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// policyTale is a sink that records its calls.
type policyTale struct {
	mu         sync.Mutex
	pods       map[policy.Name]policy.Pod
	namespaces map[string]policy.Namespace
	policies   map[policy.Name]policy.Policy
	cluster    map[string]policy.ClusterPolicy
	labels     map[string]map[string]string
	listed     int
	// failing is what SetFailing was called with, atChange the policies at the last call.
	failing  []bool
	atChange map[policy.Name]policy.Policy
}

func newPolicyTale() *policyTale {
	return &policyTale{pods: map[policy.Name]policy.Pod{},
		namespaces: map[string]policy.Namespace{}, policies: map[policy.Name]policy.Policy{},
		cluster: map[string]policy.ClusterPolicy{}, labels: map[string]map[string]string{}}
}

func (s *policyTale) PutClusterPolicy(v policy.ClusterPolicy) {
	s.do(func() { s.cluster[v.Name] = v })
}
func (s *policyTale) DeleteClusterPolicy(n string) { s.do(func() { delete(s.cluster, n) }) }

func (s *policyTale) SetNodeLabels(labels map[string]map[string]string, gone []string) {
	s.do(func() {
		maps.Copy(s.labels, labels)
		for _, name := range gone {
			delete(s.labels, name)
		}
	})
}

func (s *policyTale) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *policyTale) PutPod(v policy.Pod)       { s.do(func() { s.pods[v.Name] = v }) }
func (s *policyTale) DeletePod(n policy.Name)   { s.do(func() { delete(s.pods, n) }) }
func (s *policyTale) PutPolicy(v policy.Policy) { s.do(func() { s.policies[v.Name] = v }) }
func (s *policyTale) DeletePolicy(n policy.Name) {
	s.do(func() { delete(s.policies, n) })
}
func (s *policyTale) PutNamespace(v policy.Namespace) {
	s.do(func() { s.namespaces[v.Name] = v })
}
func (s *policyTale) DeleteNamespace(n string) { s.do(func() { delete(s.namespaces, n) }) }
func (s *policyTale) SetFailing(failing bool) {
	s.do(func() {
		s.failing = append(s.failing, failing)
		s.atChange = maps.Clone(s.policies)
	})
}
func (s *policyTale) Listed() { s.do(func() { s.listed++ }) }

func (s *policyTale) wait(t *testing.T, what string, so func() bool) {
	t.Helper()
	nettest.Until(t, time.Minute, what, func() (ok bool) {
		s.do(func() { ok = so() })
		return ok
	})
}

func podObject(name, node, phase, ip string) m {
	return m{"metadata": m{"name": name, "namespace": "shop", "labels": m{"app": name}},
		"spec": m{"nodeName": node, "containers": []any{m{"name": "c",
			"env": []any{m{"name": "SECRET",
				"value": "x"}}, "ports": []any{m{"name": "web", "containerPort": 8080,
				"protocol": "TCP"}}}}},
		"status": m{"phase": phase, "podIP": ip, "podIPs": []any{m{"ip": ip}}}}
}

func TestRunPolicies(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprint("noStream ", noStream), func(t *testing.T) { runPolicies(t, noStream) })
	}
}

func runPolicies(t *testing.T, noStream bool) {
	f := newFakeServer(t)
	f.noStream = noStream
	f.put(podsPath, podObject("web", "node-1", "Running", "198.18.1.1"))
	f.put(podsPath, podObject("done", "node-1", "Succeeded", "198.18.1.2"))
	f.put(namespacesPath, m{"metadata": m{"name": "shop", "labels": m{"team": "a"}}})
	f.put(networkPoliciesPath, m{"metadata": m{"name": "deny", "namespace": "shop"},
		"spec": m{"podSelector": m{}}})
	c, sink := startPolicies(t, f)
	sink.wait(t, "listed", func() bool {
		return sink.listed == 1 && len(sink.pods) == 1 && len(sink.namespaces) == 1 &&
			len(sink.policies) == 1
	})
	name := policy.Name{Namespace: "shop", Name: "web"}
	want := policy.Pod{Name: name, UID: sink.pods[name].UID, Node: "node-1",
		Labels: map[string]string{"app": "web"},
		Addrs:  []netip.Addr{netip.MustParseAddr("198.18.1.1")},
		Ports:  []policy.NamedPort{{Name: "web", Proto: policy.TCP, Port: 8080}}}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if d := cmp.Diff(want, sink.pods[name], same); d != "" || want.UID == "" {
		t.Errorf("pod:\n%s", d)
	}
	if got := sink.namespaces["shop"].Labels["team"]; got != "a" {
		t.Errorf("the namespace's team is %q", got)
	}
	deny := sink.policies[policy.Name{Namespace: "shop", Name: "deny"}]
	if deny.Isolates != [2]bool{true, false} || deny.Invalid != "" {
		t.Errorf("policy %+v", deny)
	}

	// The next list shows deletions that no watch reported.
	f.setAway(true)
	f.remove(podsPath, "web")
	f.put(podsPath, podObject("next", "node-2", "Running", "198.18.2.1"))
	f.setAway(false)
	sink.wait(t, "read again", func() bool {
		_, old := sink.pods[name]
		return !old && len(sink.pods) == 1
	})
	// A pod that finished no longer counts: another pod may have its address.
	f.put(podsPath, podObject("next", "node-2", "Failed", "198.18.2.1"))
	sink.wait(t, "finished", func() bool { return len(sink.pods) == 0 })
	// A policy that cannot be read denies traffic, and is reported as a problem.
	f.put(networkPoliciesPath, m{"metadata": m{"name": "deny", "namespace": "shop"},
		"spec": m{"podSelector": m{}, "ingress": []any{m{"ports": []any{m{"port": 0}}}}}})
	sink.wait(t, "invalid", func() bool {
		return sink.policies[policy.Name{Namespace: "shop", Name: "deny"}].Invalid != ""
	})
	nettest.Until(t, 10*time.Second, "a problem", func() bool {
		got := c.Problems()
		return len(got) == 1 && strings.Contains(got[0], "denies everything")
	})
	f.remove(networkPoliciesPath, "deny")
	sink.wait(t, "deleted", func() bool { return len(sink.policies) == 0 })
}

// ListPolicies returns the revisions that were passed on.
func TestListPoliciesReturnsWhatIsPassedOn(t *testing.T) {
	f := newFakeServer(t)
	f.setRefuse("GET "+clusterPoliciesPath, 404)
	f.put(networkPoliciesPath, m{"metadata": m{"name": "web", "namespace": "shop"},
		"spec": m{"podSelector": m{"matchLabels": m{"app": "web"}}, "ingress": []any{m{
			"from": []any{m{"podSelector": m{}}}, "ports": []any{m{"port": 80}}}}}})
	f.put(networkPoliciesPath, m{"metadata": m{"name": "bad", "namespace": "shop"},
		"spec": m{"podSelector": m{}, "ingress": []any{m{"ports": []any{m{"port": 0}}}}}})
	c, sink := startPolicies(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed == 1 && len(sink.policies) == 2 })
	wantNoDifference(t, c, sink)
	f.put(definitionsPath, clusterPolicyDefinition())
	f.put(clusterPoliciesPath, denyTheClient("deny"))
	f.setRefuse("GET "+clusterPoliciesPath, 0)
	sink.wait(t, "ClusterNetworkPolicy", func() bool { return len(sink.cluster) == 1 })
	wantNoDifference(t, c, sink)

	f.setAway(true)
	if list, err := c.ListPolicies(t.Context()); err == nil {
		t.Errorf("listed %+v of a server that is away", list)
	}
}

// Neither a change of a policy nor a new pod makes a node read again what it has read: no request
// follows. (An ADD is answered from files of the node, by packages that cannot send requests.)
func TestPolicyEditsAndNewPodsCauseNoRequest(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprint("noStream ", noStream), func(t *testing.T) {
			f := newFakeServer(t)
			f.noStream = noStream
			f.put(podsPath, podObject("web", "node-1", "Running", "198.18.1.1"))
			f.put(namespacesPath, m{"metadata": m{"name": "shop"}})
			_, sink := startPolicies(t, f)
			sink.wait(t, "listed", func() bool { return sink.listed == 1 })
			nettest.Until(t, time.Minute, "all kinds are watched", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				watched := map[string]bool{}
				for _, w := range f.watchers {
					watched[w.path] = true
				}
				return watched[podsPath] && watched[namespacesPath] && watched[networkPoliciesPath] &&
					watched[nodesPath] && watched[definitionsPath]
			})
			// A kind that the server may lack is requested from time to time.
			requests := func() map[string]int {
				f.mu.Lock()
				defer f.mu.Unlock()
				all := maps.Clone(f.writes)
				delete(all, "GET "+definitionsPath)
				return all
			}

			before := requests()
			for i := range 20 {
				app := fmt.Sprint("app-", i)
				f.put(networkPoliciesPath, m{"metadata": m{"name": "p", "namespace": "shop"},
					"spec": m{"podSelector": m{"matchLabels": m{"app": app}}, "ingress": []any{
						m{"from": []any{m{"namespaceSelector": m{"matchLabels": m{"team": app}}}}}}}})
				f.put(podsPath, podObject(app, "node-1", "Pending", fmt.Sprint("198.18.1.", 10+i)))
				sink.wait(t, "the pod and the edit are known", func() bool {
					p := sink.policies[policy.Name{Namespace: "shop", Name: "p"}]
					return sink.pods[policy.Name{Namespace: "shop", Name: app}].Node == "node-1" &&
						len(p.Subjects) == 1 && p.Subjects[0].Values[0] == app
				})
			}
			if d := cmp.Diff(before, requests()); d != "" {
				t.Errorf("requests:\n%s", d)
			}
		})
	}
}
