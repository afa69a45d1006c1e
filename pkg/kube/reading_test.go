package kube

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// While policies cannot be read, the sink is in the state failing. When they can be read again, the
// sink receives all policies before that state ends.
func TestPoliciesThatCannotBeReadAreTold(t *testing.T) {
	for _, path := range []string{networkPoliciesPath, namespacesPath} {
		t.Run(path, func(t *testing.T) {
			f := newFakeServer(t)
			f.put(networkPoliciesPath, m{"metadata": m{"name": "old", "namespace": "shop"},
				"spec": m{"podSelector": m{}}})
			_, sink := startPolicies(t, f)
			sink.wait(t, "listed", func() bool { return sink.listed == 1 })

			f.setRefuse("GET "+path, http.StatusInternalServerError)
			f.endWatches()
			sink.wait(t, "failing", func() bool { return slices.Equal(sink.failing, []bool{true}) })
			f.put(podsPath, podObject("web", "node-1", "Running", "198.18.1.1"))
			sink.wait(t, "a new pod", func() bool { return len(sink.pods) == 1 })
			f.put(networkPoliciesPath, m{"metadata": m{"name": "new", "namespace": "shop"},
				"spec": m{"podSelector": m{}}})
			f.setRefuse("GET "+path, 0)
			sink.wait(t, "no longer", func() bool {
				return slices.Equal(sink.failing, []bool{true, false})
			})
			sink.do(func() {
				_, has := sink.atChange[policy.Name{Namespace: "shop", Name: "new"}]
				if !has && path == networkPoliciesPath {
					t.Errorf("policies count as read before the new one was put")
				}
			})
		})
	}
}

// A watch that ends regularly, or that breaks and goes on at once, does not count as a failure.
func TestWatchOfPoliciesThatEndsIsNotAFailure(t *testing.T) {
	f := newFakeServer(t)
	c, sink := startPolicies(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed == 1 })
	for i := range 3 {
		f.endWatches()
		f.put(networkPoliciesPath, m{"metadata": m{"name": string(rune('a' + i)),
			"namespace": "shop"}, "spec": m{"podSelector": m{}}})
		sink.wait(t, "the next policy", func() bool { return len(sink.policies) == i+1 })
	}
	sink.do(func() {
		if len(sink.failing) != 0 || len(c.Problems()) != 0 {
			t.Errorf("failing %v, problems %q", sink.failing, c.Problems())
		}
	})
}

func servedVersions(versions ...any) m {
	d := clusterPolicyDefinition()
	d["spec"] = m{"versions": versions}
	return d
}

func version(name string, served bool) m { return m{"name": name, "served": served} }

// A definition without the version that is read stops new pods, and is reported. It undoes nothing.
func TestServedVersionsOfClusterPolicies(t *testing.T) {
	hasProblem := func(c *Client, text string) bool {
		return strings.Contains(strings.Join(c.Problems(), "\n"), text)
	}
	const problem = "it serves the versions [v1beta1, v1], but veild reads v1alpha2"

	f := newFakeServer(t)
	f.put(clusterPoliciesPath, denyTheClient("deny"))
	f.put(definitionsPath, servedVersions(version("v1beta1", true), version("v1alpha2", false),
		version("v1", true)))
	c, sink := startPolicies(t, f)
	nettest.Until(t, 10*time.Second, "problem", func() bool { return hasProblem(c, problem) })
	sink.wait(t, "failing", func() bool { return len(sink.failing) > 0 })
	sink.do(func() {
		if sink.listed != 0 || !slices.Equal(sink.failing, []bool{true}) {
			t.Errorf("listed %d, failing %v", sink.listed, sink.failing)
		}
	})
	if n := f.count("GET " + clusterPoliciesPath); n != 0 {
		t.Errorf("asked %d times for a version that is not served", n)
	}

	f.put(definitionsPath, servedVersions(version("v1beta1", true), version("v1alpha2", true)))
	sink.wait(t, "served", func() bool { return sink.listed == 1 && len(sink.cluster) == 1 })
	nettest.Until(t, 10*time.Second, "no problem", func() bool { return len(c.Problems()) == 0 })

	f.put(definitionsPath, servedVersions(version("v1beta1", true), version("v1", true)))
	nettest.Until(t, 10*time.Second, "problem again", func() bool { return hasProblem(c, problem) })
	sink.wait(t, "failing again", func() bool { return sink.failing[len(sink.failing)-1] })
	sink.do(func() {
		if len(sink.cluster) != 1 {
			t.Errorf("policies %v", sink.cluster)
		}
	})
	f.remove(definitionsPath, object.ClusterPolicies.What)
	sink.wait(t, "removed", func() bool {
		return len(sink.cluster) == 0 && !sink.failing[len(sink.failing)-1]
	})
}

// Kinds that are not enforced are a problem where the cluster has objects of them.
func TestAdminNetworkPoliciesAreAProblem(t *testing.T) {
	f := newFakeServer(t)
	f.put(adminPoliciesPath, m{"metadata": m{"name": "a"}})
	c, sink := startPolicies(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed == 1 })
	if p := c.Problems(); len(p) != 0 {
		t.Errorf("without their definition: %q", p)
	}
	f.put(definitionsPath, m{"metadata": m{"name": object.IgnoredPolicies[0].What}, "spec": m{
		"versions": []any{version("v1alpha1", true)}}})
	nettest.Until(t, 10*time.Second, "problem", func() bool {
		return slices.ContainsFunc(c.Problems(), func(p string) bool {
			return strings.HasPrefix(p, object.IgnoredPolicies[0].What+": the cluster has 1,")
		})
	})
	f.remove(adminPoliciesPath, "a")
	nettest.Until(t, 10*time.Second, "no problem", func() bool { return len(c.Problems()) == 0 })
}
