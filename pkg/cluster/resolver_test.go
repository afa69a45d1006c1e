package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// world is a random cluster that changes step by step, and what a loop keeps of it.
type world struct {
	rules    cluster.Rules
	state    cluster.State
	resolver cluster.Resolver
	lastGood *cluster.Table
}

// change changes one thing, or nothing.
func (w *world) change(t *rapid.T) {
	w.state.Revision++
	w.state.Nodes = slices.Clone(w.state.Nodes)
	at := rapid.IntRange(0, max(0, len(w.state.Nodes)-1)).Draw(t, "at")
	some := len(w.state.Nodes) > 0

	switch rapid.IntRange(0, 17).Draw(t, "change") {
	case 0, 1, 2, 3, 4:
		w.put(genNode(rapid.SampledFrom(someNames).Draw(t, "name")).Draw(t, "node"))
	case 5, 6:
		if some {
			w.state.Nodes = slices.Delete(w.state.Nodes, at, at+1)
		}
	case 7, 8:
		if some { // a VeilNode changes or disappears
			n := w.state.Nodes[at]
			n.Claim = genNode(n.Name).Draw(t, "claim").Claim
			w.state.Nodes[at] = n
		}
	case 9:
		if some { // an address moves to another place of the same Node
			n := w.state.Nodes[at]
			n.Contested = rapid.SliceOfN(rapid.SampledFrom(someAddrs), 0, 2).Draw(t, "contested")
			w.state.Nodes[at] = n
		}
	case 10:
		w.state.Nodes = rapid.Permutation(w.state.Nodes).Draw(t, "order")
	case 11:
		w.state.APIServers = rapid.SliceOfN(rapid.SampledFrom(someAddrs), 0, 2).Draw(t, "servers")
	case 12:
		w.state.Synced = rapid.IntRange(0, 3).Draw(t, "synced") > 0
		w.state.SitesUnlisted = rapid.IntRange(0, 3).Draw(t, "sites unlisted") == 0
	case 13:
		w.rules = rules()
		w.rules.NodeRanges = rapid.SampledFrom([][]netip.Prefix{nil,
			prefixes("198.18.0.0/24")}).Draw(t, "node ranges")
		w.rules.Sites[1].Reach = rapid.SampledFrom([]string{cluster.ReachNone, cluster.ReachExports,
			cluster.ReachAll}).Draw(t, "reach")
	case 14:
		if some && rapid.IntRange(0, 3).Draw(t, "twice") == 0 {
			w.state.Nodes = append(w.state.Nodes, genNode(w.state.Nodes[at].Name).Draw(t, "second"))
		}
	case 15, 16:
		w.put(genSiteNode(t))
	}
}

// put adds or replaces a node.
func (w *world) put(n cluster.Node) {
	same := func(m cluster.Node) bool { return m.Name == n.Name }
	if i := slices.IndexFunc(w.state.Nodes, same); i >= 0 {
		w.state.Nodes[i] = n
		return
	}
	w.state.Nodes = append(w.state.Nodes, n)
}

// keep makes a last good table of the result: mostly the result itself, or the one before, as after
// a failed turn, or a table from elsewhere.
func (w *world) keep(t *rapid.T, result cluster.Table) {
	switch rapid.IntRange(0, 15).Draw(t, "last good table") {
	case 0, 1, 2:
	case 3:
		w.lastGood = genLast(t)
	case 4:
		other := result
		other.NodeAddrs = slices.Clone(result.NodeAddrs)
		other.Peers = slices.Clone(result.Peers)
		slices.Reverse(other.Peers)
		w.lastGood = &other
	default:
		w.lastGood = &result
	}
}

// The function Resolve is the oracle of a Resolver. RAPID_CHECKS=1000 does 10^5 steps.
func TestResolverEqualsResolve(t *testing.T) {
	together, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := world{rules: rules(), state: cluster.State{Synced: true,
			APIServers: addrs("198.18.0.200")}}
		for step := range 100 {
			w.change(t)
			want, wantRefusals := cluster.Resolve(w.rules, w.state, w.lastGood)
			got, refusals := w.resolver.Resolve(w.rules, w.state, w.lastGood)
			if d := gocmpDiff(want, got); d != "" {
				t.Fatalf("step %d: %s", step, d)
			}
			if d := gocmp.Diff(wantRefusals, refusals); d != "" {
				t.Fatalf("step %d: refusals: %s", step, d)
			}
			all++
			if w.resolver.Decided() < len(w.state.Nodes) {
				together++
			}
			w.keep(t, got)
		}
	})
	if t.Logf("%d of %d steps decided about some nodes only", together, all); 10*together < all {
		t.Errorf("%d of %d steps decided about some nodes only: the test shows little", together, all)
	}
}

// gocmpDiff compares tables in all fields, also nil with empty lists.
func gocmpDiff(want, got cluster.Table) string { return gocmp.Diff(want, got, compareNetip) }

// One changed node of a large cluster is decided with the nodes that are related to it, and what
// did not change stays in its place.
func TestResolverDecidesWhatChanged(t *testing.T) {
	rules, s := manyNodes(1000)
	var r cluster.Resolver
	first, _ := r.Resolve(rules, s, nil)
	last, _ := r.Resolve(rules, s, &first)

	next := func(what string, want int, change func(nodes []cluster.Node) []cluster.Node) {
		t.Helper()
		s.Revision++
		s.Nodes = change(slices.Clone(s.Nodes))
		before := last
		got, refusals := r.Resolve(rules, s, &before)
		if r.Decided() != want {
			t.Errorf("%s: decided about %d nodes, want %d; %v", what, r.Decided(), want, refusals)
		}
		oracle, _ := cluster.Resolve(rules, s, &before)
		if d := gocmpDiff(oracle, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
		last = got
	}

	next("nothing", 0, func(nodes []cluster.Node) []cluster.Node { return nodes })
	next("a new key", 1, func(nodes []cluster.Node) []cluster.Node {
		claim := *nodes[500].Claim
		claim.Keys = []cluster.Key{{Public: key(9)}}
		nodes[500].Claim = &claim
		return nodes
	})
	// The table has that key now, which the last one lacks.
	next("nothing, after a change", 1, func(nodes []cluster.Node) []cluster.Node { return nodes })
	next("nothing, later", 0, func(nodes []cluster.Node) []cluster.Node { return nodes })
	next("an address of another node", 2, func(nodes []cluster.Node) []cluster.Node {
		nodes[500].Addresses = nodes[600].Addresses
		return nodes
	})
	next("nothing, after a conflict", 2, func(nodes []cluster.Node) []cluster.Node { return nodes })
	next("another node in a conflict", 1, func(nodes []cluster.Node) []cluster.Node {
		nodes[700].Zone = "z"
		return nodes
	})
	next("the end of a conflict", 3, func(nodes []cluster.Node) []cluster.Node {
		return slices.Delete(nodes, 600, 601)
	})
	next("half of the nodes", 499, func(nodes []cluster.Node) []cluster.Node {
		return nodes[:499]
	})
}

// BenchmarkOneChangedNode measures both ways to decide about a cluster in which one node changed.
func BenchmarkOneChangedNode(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		rules, s := manyNodes(n)
		last, _ := cluster.Resolve(rules, s, nil)
		var r cluster.Resolver
		for what, resolve := range map[string]func(cluster.Rules, cluster.State,
			*cluster.Table) (cluster.Table, []cluster.Refusal){
			"all": cluster.Resolve, "changed": r.Resolve,
		} {
			b.Run(fmt.Sprintf("%s/%d", what, n), func(b *testing.B) {
				b.ReportAllocs()
				last := last
				change := func() {
					s.Revision++
					s.Nodes = slices.Clone(s.Nodes)
					claim := *s.Nodes[500].Claim
					claim.MTU = 1400 + int(s.Revision%100)
					s.Nodes[500].Claim = &claim
					given := last
					last, _ = resolve(rules, s, &given)
					if len(last.Peers) != n-1 {
						b.Fatalf("%d peers", len(last.Peers))
					}
				}
				change() // The first calls of a Resolver decide about all nodes.
				change()
				for b.Loop() {
					change()
				}
			})
		}
	}
}
