package kube

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

func clusterPolicyDefinition() m {
	return m{"metadata": m{"name": "clusternetworkpolicies.policy.networking.k8s.io"}}
}

// denyTheClient is a ClusterNetworkPolicy.
func denyTheClient(name string) m {
	return m{"metadata": m{"name": name}, "spec": m{"tier": "Admin", "priority": 7,
		"subject": m{"namespaces": m{}}, "ingress": []any{m{"action": "Deny",
			"from": []any{m{"pods": m{"namespaceSelector": m{},
				"podSelector": m{"matchLabels": m{"app": "client"}}}}}}}}}
}

// startPolicies runs RunPolicies until the test ends.
func startPolicies(t *testing.T, f *fakeServer) (*Client, *policyTale) {
	t.Helper()
	c, err := newClient(ClientConfig{Node: "node-1"}, f.config())
	errtest.Must(t, err)
	quicken(c)
	sink := newPolicyTale()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.RunPolicies(ctx, sink) })
	wg.Go(func() { c.server.Reflect(ctx, object.Nodes, c.nodes) }) // as Run does
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c, sink
}

func TestLabelsOfNodesAreTold(t *testing.T) {
	f := newFakeServer(t)
	node := func(name, gpu string) m {
		return m{"metadata": m{"name": name, "labels": m{"gpu": gpu}}}
	}
	f.put(nodesPath, node("node-1", "no"))
	_, sink := startPolicies(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed == 1 })
	sink.do(func() {
		if got := sink.labels["node-1"]["gpu"]; len(sink.labels) != 1 || got != "no" {
			t.Errorf("labels before the end of the lists: %v", sink.labels)
		}
	})
	f.put(nodesPath, node("node-1", "yes"))
	f.put(nodesPath, node("node-2", "yes"))
	sink.wait(t, "changed", func() bool {
		return sink.labels["node-1"]["gpu"] == "yes" && sink.labels["node-2"]["gpu"] == "yes"
	})
	f.remove(nodesPath, "node-1")
	sink.wait(t, "gone", func() bool { return len(sink.labels) == 1 })
}

func TestClusterPoliciesAreReadWhereTheyAreInstalled(t *testing.T) {
	f := newFakeServer(t)
	asked := func() int { return f.count("GET " + clusterPoliciesPath) }
	f.setRefuse("GET "+clusterPoliciesPath, 404)
	c, sink := startPolicies(t, f)
	sink.wait(t, "listed", func() bool { return sink.listed == 1 })
	if n, problems := asked(), c.Problems(); n != 0 || len(problems) > 0 {
		t.Errorf("asked %d times for a kind that is not installed, problems %q", n, problems)
	}

	// An API server serves a kind some time after its definition is there.
	f.put(definitionsPath, clusterPolicyDefinition())
	nettest.Until(t, 10*time.Second, "problem", func() bool {
		got := c.Problems()
		return len(got) == 1 && strings.Contains(got[0], "clusternetworkpolicies")
	})
	f.put(clusterPoliciesPath, denyTheClient("deny"))
	f.setRefuse("GET "+clusterPoliciesPath, 0)
	sink.wait(t, "installed", func() bool { return len(sink.cluster) == 1 })
	nettest.Until(t, 10*time.Second, "no problem", func() bool { return len(c.Problems()) == 0 })

	f.put(clusterPoliciesPath, denyTheClient("another"))
	sink.wait(t, "another", func() bool { return len(sink.cluster) == 2 })
	f.remove(clusterPoliciesPath, "another")
	sink.wait(t, "deleted", func() bool { return len(sink.cluster) == 1 })

	f.setRefuse("GET "+clusterPoliciesPath, 404)
	f.remove(definitionsPath, object.ClusterPolicies.What)
	sink.wait(t, "removed", func() bool { return len(sink.cluster) == 0 })
	before := asked()
	f.setRefuse("GET "+clusterPoliciesPath, 0)
	nettest.Until(t, 10*time.Second, "no problem of a kind that is not installed", func() bool {
		return len(c.Problems()) == 0
	})

	f.put(definitionsPath, clusterPolicyDefinition())
	sink.wait(t, "installed again", func() bool { return len(sink.cluster) == 1 })
	if asked() == before {
		t.Error("a kind that came back was not asked for")
	}
}

// If the client may not read ClusterNetworkPolicies, no new policies are put in force.
func TestClusterPoliciesThatMayNotBeReadAreNotListed(t *testing.T) {
	f := newFakeServer(t)
	f.put(definitionsPath, clusterPolicyDefinition())
	f.setRefuse("GET "+clusterPoliciesPath, 403)
	c, sink := startPolicies(t, f)
	nettest.Until(t, 10*time.Second, "problem", func() bool {
		got := c.Problems()
		return len(got) == 1 && strings.Contains(got[0], object.PolicyRights)
	})
	sink.do(func() {
		if sink.listed > 0 {
			t.Error("listed without ClusterNetworkPolicies")
		}
	})
	f.setRefuse("GET "+clusterPoliciesPath, 0)
	sink.wait(t, "listed", func() bool { return sink.listed == 1 })
}
