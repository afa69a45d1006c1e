package cluster_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

func TestMemoMapsEachNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m cluster.Memo[string]
		var nodes []cluster.Node
		for range 10 {
			before := nodes
			nodes = slices.Clone(nodes)
			if len(nodes) > 0 && rapid.Bool().Draw(t, "removes") {
				at := rapid.IntRange(0, len(nodes)-1).Draw(t, "at")
				nodes = slices.Delete(nodes, at, at+1)
			}
			if rapid.Bool().Draw(t, "puts") {
				n := cluster.Node{Name: rapid.SampledFrom(someNames).Draw(t, "name"),
					Zone: rapid.SampledFrom(someNames).Draw(t, "zone")}
				same := func(o cluster.Node) bool { return o.Name == n.Name }
				nodes = append(slices.DeleteFunc(nodes, same), n)
			}
			slices.SortFunc(nodes,
				func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) })

			calls := 0
			same := func(a, b string) bool { return a == b }
			from := before
			if rapid.Bool().Draw(t, "from elsewhere") {
				from = slices.Clone(nodes)
			}
			got := m.Map(cluster.NewDelta(from, nodes), same, func(n cluster.Node) string {
				calls++
				return n.Name + n.Zone
			})
			var want []string
			changed := 0
			for _, n := range nodes {
				want = append(want, n.Name+n.Zone)
				if !slices.ContainsFunc(before, n.Equal) {
					changed++
				}
			}
			if !slices.Equal(got, want) || calls != changed {
				t.Fatalf("%q after %d calls, want %q and %d calls", got, calls, want, changed)
			}
		}
	})
}

func TestMemoKeepsItsSliceIfNoValueChanged(t *testing.T) {
	_, s := manyNodes(100)
	var m cluster.Memo[string]
	name := func(n cluster.Node) string { return n.Name }
	same := func(a, b string) bool { return a == b }
	first := m.Map(cluster.NewDelta(nil, s.Nodes), same, name)
	nodes := slices.Clone(s.Nodes)
	nodes[50].Zone = "z"
	next := m.Map(cluster.NewDelta(s.Nodes, nodes), same, name)
	if &next[0] != &first[0] || len(next) != 100 {
		t.Errorf("another slice of %d, although no value changed", len(next))
	}
	if fewer := m.Map(cluster.NewDelta(nodes, nodes[:99]), same, name); len(fewer) != 99 {
		t.Errorf("%d values of 99 nodes", len(fewer))
	}
}
