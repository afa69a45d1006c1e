package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/logtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

type m = map[string]any

func key(n byte) wgkey.Public {
	var p wgkey.Public
	p[0], p[31] = n, n
	return p
}

func node(name string, i int) m {
	return m{
		"metadata": m{"name": name, "creationTimestamp": "2026-01-02T03:04:05Z",
			"managedFields": []any{m{"manager": strings.Repeat("x", 100)}}},
		"spec": m{"podCIDR": fmt.Sprintf("198.18.%d.0/24", i),
			"podCIDRs": []any{fmt.Sprintf("198.18.%d.0/24", i), fmt.Sprintf("fd42:0:%x::/64", i)}},
		"status": m{"addresses": []any{
			m{"type": "InternalIP", "address": fmt.Sprintf("198.19.0.%d", i)},
			m{"type": "Hostname", "address": name},
			m{"type": "Hostname", "address": "198.19.9.9"},
			m{"type": "InternalDNS", "address": "198.19.9.8"}, m{"address": "198.19.9.7"},
			m{"type": "ExternalIP", "address": fmt.Sprintf("198.19.0.%d", i)},
		}, "images": []any{m{"names": []any{strings.Repeat("image", 100)}}}},
	}
}

func claim(i byte) cluster.Claim {
	return cluster.Claim{
		Keys: []cluster.Key{{Epoch: 1, Public: key(i)}},
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 19, 0, i}),
			51820)},
		PodPrefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, i, 0}), 24)},
		MTU:         1500,
	}
}

func veilNode(name string, i int) m {
	return m{"metadata": m{"name": name}, "spec": m{
		"keys": []any{m{"epoch": 1, "publicKey": key(byte(i)).String()}}, "mtu": 1500,
		"endpoints":   []any{fmt.Sprintf("198.19.0.%d:51820", i)},
		"podPrefixes": []any{fmt.Sprintf("198.18.%d.0/24", i)},
	}}
}

func kubernetesSlice(addrs ...any) m {
	return m{"metadata": m{"name": "kubernetes", "namespace": "default"},
		"endpoints": []any{m{"addresses": addrs}}}
}

// running is a Client whose Run goes on until the test ends.
type running struct {
	*Client
	t   *testing.T
	log *logtest.Buffer

	mu     sync.Mutex
	states []cluster.State
	more   chan struct{}
}

func start(t *testing.T, f *fakeServer, name string, change ...func(*Client)) *running {
	t.Helper()
	r := &running{t: t, log: &logtest.Buffer{}, more: make(chan struct{}, 1)}
	c, err := newClient(ClientConfig{Node: name, Log: slog.New(slog.NewTextHandler(r.log, nil))},
		f.config())
	errtest.Must(t, err)

	quicken(c)
	for _, ch := range change {
		ch(c)
	}

	r.Client = c
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx, func(s cluster.State) {
			r.mu.Lock()
			r.states = append(r.states, s)
			r.mu.Unlock()
			api.Poke(r.more)
		})
	}()

	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v, want context.Canceled", err)
		}
		r.invariants()
	})
	return r
}

// invariants hold of every sequence of states.
func (r *running) invariants() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range r.states {
		if s.Revision != uint64(i+1) {
			r.t.Errorf("state %d has revision %d", i, s.Revision)
		}
		if i > 0 && r.states[i-1].Synced && !s.Synced {
			r.t.Errorf("revision %d is unsynced after a synced one", s.Revision)
		}
		for _, n := range s.Nodes {
			if !s.Synced && n.Claim != nil {
				r.t.Errorf("revision %d is unsynced and holds a claim of %s", s.Revision, n.Name)
			}
		}
	}
}

// until waits for a state for which cond holds and returns it.
func (r *running) until(what string, cond func(cluster.State) bool) cluster.State {
	r.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		r.mu.Lock()
		var last cluster.State
		if len(r.states) > 0 {
			last = r.states[len(r.states)-1]
		}
		r.mu.Unlock()
		if last.Revision > 0 && cond(last) {
			return last
		}
		select {
		case <-r.more:
		case <-limit:
			r.t.Fatalf("no state in which %s; last %+v, problems %q", what, last, r.Problems())
		}
	}
}

// eventually waits for cond.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	limit, tick := time.After(10*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

func synced(s cluster.State) bool { return s.Synced }

func find(s cluster.State, name string) *cluster.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

func TestRunYieldsWhatTheClusterHolds(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		t.Run(fmt.Sprintf("server without streaming lists %t", noStream), func(t *testing.T) {
			f := newFakeServer(t)
			f.noStream = noStream
			n := node("a", 1)
			n["metadata"].(m)["labels"] = m{controlPlaneLabel: ""}
			f.put(nodesPath, n)
			f.put(nodesPath, node("b", 2))
			f.put(veilNodesPath, veilNode("a", 1))
			f.put(slicesPath, kubernetesSlice("198.19.0.250"))
			got := start(t, f, "a").until("all is listed", func(s cluster.State) bool {
				return s.Synced && s.RangesListed
			})
			c := claim(1)

			created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			want := cluster.State{Revision: got.Revision, Synced: true, RangesListed: true,
				APIServers: []netip.Addr{netip.MustParseAddr("198.18.0.1"),
					netip.MustParseAddr("198.19.0.250")},
				Nodes: []cluster.Node{
					{Name: "a", Created: created, ControlPlane: true,
						Addresses: []netip.Addr{netip.MustParseAddr("198.19.0.1")},
						PodPrefixes: []netip.Prefix{netip.MustParsePrefix("198.18.1.0/24"),
							netip.MustParsePrefix("fd42:0:1::/64")}, Claim: &c},
					{Name: "b", Created: created,
						Addresses: []netip.Addr{netip.MustParseAddr("198.19.0.2")},
						PodPrefixes: []netip.Prefix{netip.MustParsePrefix("198.18.2.0/24"),
							netip.MustParsePrefix("fd42:0:2::/64")}},
				}}

			if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{},
				netip.Prefix{})); d != "" {
				t.Errorf("state (-want +got):\n%s", d)
			}
		})
	}
}

func TestRunFollowsChanges(t *testing.T) {
	f := newFakeServer(t)
	r := start(t, f, "a")
	r.until("an empty cluster is synced", synced)
	f.put(nodesPath, node("a", 1))
	r.until("a is there", func(s cluster.State) bool { return find(s, "a") != nil })
	f.put(veilNodesPath, veilNode("a", 1))
	r.until("a has a claim", func(s cluster.State) bool { return find(s, "a").Claim != nil })
	f.put(veilNodesPath, veilNode("a", 9))
	r.until("a has another key", func(s cluster.State) bool {
		return find(s, "a").Claim.Keys[0].Public == key(9)
	})
	f.remove(veilNodesPath, "a")
	r.until("a has no claim", func(s cluster.State) bool { return find(s, "a").Claim == nil })
	f.remove(nodesPath, "a")
	r.until("a is gone", func(s cluster.State) bool { return find(s, "a") == nil })
}

func TestRunIgnoresChangesOfNothingThatIsUsed(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("a", 1))
	r := start(t, f, "a")
	before := r.until("all is listed", func(s cluster.State) bool {
		return s.Synced && s.RangesListed // ranges of services have a revision of their own
	})
	for i := range 50 {
		n := node("a", 1)
		n["status"].(m)["conditions"] = []any{m{"heartbeat": i}}
		f.put(nodesPath, n)
	}
	f.put(nodesPath, node("b", 2))
	after := r.until("b is there", func(s cluster.State) bool { return find(s, "b") != nil })
	if after.Revision != before.Revision+1 {
		t.Errorf("revision went from %d to %d for one change that matters", before.Revision,
			after.Revision)
	}
}

func TestRunCoalescesABurst(t *testing.T) {
	f := newFakeServer(t)
	r := start(t, f, "a")
	before := r.until("synced", synced)
	began := time.Now()
	for i := range 200 {
		f.put(nodesPath, node(fmt.Sprintf("n%d", i), i))
	}
	after := r.until("all are there", func(s cluster.State) bool { return len(s.Nodes) == 200 })
	most := uint64(time.Since(began)/quick.coalesce) + 2
	if got := after.Revision - before.Revision; got > most {
		t.Errorf("200 changes made %d states, want at most %d", got, most)
	}
}

func TestRunHoldsClaimsBackUntilEverythingIsListed(t *testing.T) {
	for _, path := range []string{veilNodesPath, slicesPath} {
		t.Run(path, func(t *testing.T) {
			f := newFakeServer(t)
			f.put(nodesPath, node("a", 1))
			f.put(veilNodesPath, veilNode("a", 1))
			f.setRefuse("GET "+path, 403)
			r := start(t, f, "a")
			s := r.until("the node is known",
				func(s cluster.State) bool { return len(s.Nodes) == 1 })
			if s.Synced || s.Nodes[0].Claim != nil {
				t.Errorf("state %+v: synced or with a claim, but %s was not listed", s, path)
			}
			f.setRefuse("GET "+path, 0)
			r.until("synced with the claim", func(s cluster.State) bool {
				return s.Synced && s.Nodes[0].Claim != nil
			})
		})
	}
}

func TestRunSurvivesTheAPIServerBeingAway(t *testing.T) {
	f := newFakeServer(t)
	f.put(nodesPath, node("a", 1))
	f.put(veilNodesPath, veilNode("a", 1))
	r := start(t, f, "a")
	before := r.until("synced", synced)
	f.setAway(true)
	eventually(t, "the problem is shown", func() bool {
		return strings.Contains(fmt.Sprint(r.Problems()), "cannot be reached")
	})
	f.put(nodesPath, node("b", 2))
	f.remove(veilNodesPath, "a")
	r.mu.Lock()
	during := r.states[len(r.states)-1]
	r.mu.Unlock()
	if during.Revision != before.Revision {
		t.Errorf("a state was yielded while the API server was away: %+v", during)
	}
	f.setAway(false)
	r.until("what happened meanwhile is known", func(s cluster.State) bool {
		return len(s.Nodes) == 2 && find(s, "a").Claim == nil
	})
	eventually(t, "the problem is gone", func() bool { return len(r.Problems()) == 0 })
}

func TestMalformedVeilNodeCostsItsClaimOnly(t *testing.T) {
	for name, spec := range map[string]any{
		"no spec": nil, "a string": "x", "keys a number": m{"keys": 1},
		"no keys":        m{"keys": []any{}},
		"short key":      m{"keys": []any{m{"epoch": 1, "publicKey": "AAAA"}}},
		"negative epoch": m{"keys": []any{m{"epoch": -1, "publicKey": key(1).String()}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t)
			f.put(nodesPath, node("good", 1))
			f.put(nodesPath, node("bad", 2))
			f.put(veilNodesPath, veilNode("good", 1))
			f.put(veilNodesPath, m{"metadata": m{"name": "bad"}, "spec": spec})
			r := start(t, f, "good")
			s := r.until("synced", synced)
			if find(s, "good").Claim == nil || find(s, "bad").Claim != nil {
				t.Errorf("claims: good %v, bad %v", find(s, "good").Claim, find(s, "bad").Claim)
			}

			for i := range 3 { // more states, and the same object again
				f.put(veilNodesPath, m{"metadata": m{"name": "bad",
					"labels": m{"n": fmt.Sprint(i)}}, "spec": spec})
				f.put(nodesPath, node(fmt.Sprint("more", i), 10+i))
				r.until("more nodes", func(s cluster.State) bool { return len(s.Nodes) == 3+i })
			}

			if n := strings.Count(r.log.String(), "VeilNode bad"); n != 1 {
				t.Errorf("logged %d times, want once:\n%s", n, r.log)
			}

			f.put(veilNodesPath, veilNode("bad", 2))
			r.until("repaired", func(s cluster.State) bool { return find(s, "bad").Claim != nil })
			if p := r.Problems(); len(p) != 0 {
				t.Errorf("problems after the repair: %q", p)
			}
		})
	}
}

func TestVeilNodeOfAnEarlierNodeIsNotBelieved(t *testing.T) {
	f := newFakeServer(t)
	n := node("a", 1)
	n["metadata"].(m)["uid"] = "new"
	f.put(nodesPath, n)
	v := veilNode("a", 1)
	v["metadata"].(m)["ownerReferences"] = []any{m{"apiVersion": "v1", "kind": "Node", "name": "a",
		"uid": "old"}}
	f.put(veilNodesPath, v)
	r := start(t, f, "b")
	if s := r.until("synced", synced); s.Nodes[0].Claim != nil {
		t.Error("the claim of an earlier node of the same name was taken")
	}
}

func TestHostNameOfTheAPIServerIsLookedUp(t *testing.T) {
	f := newFakeServer(t)
	r := start(t, f, "a", func(c *Client) {
		c.host = "api.example"
		c.lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("::ffff:198.19.0.7"),
				netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fd42::7")}, nil
		}
	})
	r.until("both addresses are known, without loopback", func(s cluster.State) bool {
		return cmp.Equal(s.APIServers, []netip.Addr{netip.MustParseAddr("198.19.0.7"),
			netip.MustParseAddr("fd42::7")}, cmpopts.EquateComparable(netip.Addr{}))
	})
}

// The addresses of the API server's name may change within minutes. So the name is looked up for
// each new watch, and no list counts as complete before the first look-up has ended.
func TestHostNameIsLookedUpWithEachWatch(t *testing.T) {
	f := newFakeServer(t)
	answer, first := make(chan netip.Addr, 1), make(chan struct{})
	r := start(t, f, "a", func(c *Client) {
		c.host = "api.example"
		c.lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
			select {
			case <-first:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			select {
			case a := <-answer:
				answer <- a
				return []netip.Addr{a}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	if s := r.until("the lists are there", func(cluster.State) bool { return true }); s.Synced {
		t.Error("it is synced before the API server's name was looked up")
	}
	is := func(text string) func(cluster.State) bool {
		return func(s cluster.State) bool {
			return s.Synced && slices.Equal(s.APIServers, []netip.Addr{netip.MustParseAddr(text)})
		}
	}
	answer <- netip.MustParseAddr("198.19.0.7")
	close(first)
	r.until("the first answer", is("198.19.0.7"))

	<-answer
	answer <- netip.MustParseAddr("198.19.0.8")
	f.setAway(true) // ends all watches
	f.setAway(false)
	r.until("the second answer, the look-up by time being an hour away", is("198.19.0.8"))
}
