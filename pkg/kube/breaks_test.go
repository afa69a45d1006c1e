package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// knownWithin is the longest time until a new object is known after the connections broke for the
// last time, if requests take no time. A failed request is repeated after at most 6 s, a list
// begins at most 5 s after the last one, and a server waits at most 3 s for its cache.
const knownWithin = 15 * time.Second

// cut waits until there is a connection, and then closes all connections.
func (f *fakeServer) cut() {
	for ended := 0; ended == 0; time.Sleep(10 * time.Millisecond) {
		f.mu.Lock()
		for conn := range f.conns {
			_ = conn.Close()
			ended++
		}
		clear(f.conns)
		f.mu.Unlock()
	}
}

// everything holds the objects of all kinds that a node reads.
type everything struct {
	c        *Client
	policies *policyTale
	services *tellTale

	mu    sync.Mutex
	nodes map[string]bool
}

// readEverything reads all kinds, with the times of a real client, until the test ends.
func readEverything(t *testing.T, f *fakeServer) *everything {
	t.Helper()
	c, err := newClient(ClientConfig{Node: "node-1"}, f.config())
	errtest.Must(t, err)
	e := &everything{c: c, policies: newPolicyTale(), nodes: map[string]bool{},
		services: &tellTale{services: map[service.Name]service.Service{},
			slices: map[string]service.Slice{}}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.RunPolicies(ctx, e.policies) })
	wg.Go(func() { _ = c.RunServices(ctx, smallRoom, e.services) })
	wg.Go(func() {
		_ = c.Run(ctx, func(s cluster.State) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, n := range s.Nodes {
				e.nodes[n.Name] = n.Claim != nil
			}
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e
}

// putOfEachKind makes one object of each kind.
func putOfEachKind(f *fakeServer, i int) {
	name := fmt.Sprint("late-", i)
	f.put(nodesPath, node(name, i))
	f.put(veilNodesPath, veilNode(name, i))
	f.put(podsPath, podObject(name, "node-1", "Running", fmt.Sprint("198.18.1.", i)))
	f.put(namespacesPath, m{"metadata": m{"name": name}})
	f.put(networkPoliciesPath, wide("shop", name, 1))
	f.put(clusterPoliciesPath, denyTheClient(name))
	f.put(servicesPath, serviceObject(name, 80))
	f.put(allSlicesPath, sliceObject(name, "web", "198.18.1.1"))
}

// unknown returns the kinds of which fewer than n objects are known, and failing if new pods stay
// mute.
func (e *everything) unknown(n int) (kinds []string) {
	known := map[string]int{}
	e.policies.do(func() {
		known["pods"], known["namespaces"] = len(e.policies.pods), len(e.policies.namespaces)
		known["policies"], known["cluster policies"] = len(e.policies.policies),
			len(e.policies.cluster)
		if tells := e.policies.failing; len(tells) > 0 && tells[len(tells)-1] {
			kinds = append(kinds, "failing")
		}
	})

	e.services.do(func() {
		known["services"] = 0
		for name := range e.services.services {
			if name.Namespace == "shop" {
				known["services"]++
			}
		}
		known["slices"] = len(e.services.slices)
	})
	e.mu.Lock()
	known["nodes"] = len(e.nodes)
	known["claims"] = 0
	for _, has := range e.nodes {
		if has {
			known["claims"]++
		}
	}
	e.mu.Unlock()

	for kind, count := range known {
		if count < n {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// become waits until n objects of each kind are known, and returns how long that took.
func (e *everything) become(t *testing.T, what string, n int) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		synctest.Wait()
		late := e.unknown(n)
		took := time.Since(began)
		switch {
		case len(late) == 0:
			return took
		case took > 2*time.Minute:
			t.Fatalf("%s: %v are not known; problems %q", what, late, e.c.Problems())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Connections break again and again, or the server is away for a while each time. What is written
// then is known soon after, of each kind, beside many namespaces that exceed their share.
func TestObjectsThatComeWhenConnectionsBreakAreKnownSoon(t *testing.T) {
	handlers := utilruntime.ErrorHandlers
	// One of client-go's handlers compares the real time of its start with the clock of a bubble.
	utilruntime.ErrorHandlers = nil
	defer func() { utilruntime.ErrorHandlers = handlers }()
	away := func(f *fakeServer) {
		f.setAway(true)
		time.Sleep(2 * time.Second)
		f.setAway(false)
	}
	for name, tc := range map[string]struct {
		breaks func(f *fakeServer)
		slow   time.Duration
	}{
		"connections":                           {(*fakeServer).cut, 0},
		"connections while requests take 50 ms": {(*fakeServer).cut, 50 * time.Millisecond},
		"connections while requests take 1 s":   {(*fakeServer).cut, time.Second},
		"the server is away for 2 s":            {away, 0},
		"the server fails for 7 s":              {(*fakeServer).fail, 0},
	} {
		for _, noStream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/without streams %t", name, noStream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testBreaks(t, tc.breaks, tc.slow, noStream) })
			})
		}
	}
}

// fail refuses all requests for 7 s.
func (f *fakeServer) fail() {
	for path := range kinds {
		f.setRefuse("GET "+path, 500)
	}
	f.cut()
	time.Sleep(7 * time.Second)
	for path := range kinds {
		f.setRefuse("GET "+path, 0)
	}
}

func testBreaks(t *testing.T, breaks func(*fakeServer), slow time.Duration, noStream bool) {
	f := newFakeServer(t)
	f.noStream, f.slow, f.caches = noStream, slow, map[string]int{}
	f.put(definitionsPath, clusterPolicyDefinition())
	for i := range 4 {
		for j := range 65 { // 64 malformed ones are the share of a namespace
			o := serviceObject(fmt.Sprintf("evil-%02d-%02d", i, j), 70000)
			o["metadata"].(m)["namespace"] = fmt.Sprint("evil-", i)
			f.put(servicesPath, o)
		}
	}
	e := readEverything(t, f)
	putOfEachKind(f, 1)
	e.become(t, "first", 1)
	if left := len(e.c.LeftOut()); left != 4 {
		t.Errorf("objects of %d namespaces are left out, want 4", left)
	}

	known := 1
	for round := range 3 {
		for range 5 {
			breaks(f)
		}
		known++
		putOfEachKind(f, known)
		took := e.become(t, fmt.Sprint("round ", round), known)
		t.Logf("round %d: known after %v", round, took)
		if most := knownWithin + 4*slow; took > most {
			t.Errorf("round %d: known after %v, want %v at most", round, took, most)
		}
		time.Sleep(time.Duration(round) * 10 * time.Second)
	}
}
