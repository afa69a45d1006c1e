package cluster_test

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Evidence from the underlay about gateways and API servers does not open a closed address. It does
// not take an address from a node that had it before and still lists it.
func TestEvidenceOpensNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last, state, r := genLast(t), genState(t, "state"), rules()
		if rapid.Bool().Draw(t, "with nodeRanges") {
			r.NodeRanges = prefixes("198.18.0.0/24", "fd42::/64")
		}
		honest, _ := cluster.Resolve(r, state, last)

		forged := r
		forged.Gateways = append(slices.Clone(r.Gateways),
			rapid.SliceOf(rapid.SampledFrom(someAddrs)).Draw(t, "gateways")...)
		state.APIServers = append(slices.Clone(state.APIServers),
			rapid.SliceOf(rapid.SampledFrom(someAddrs)).Draw(t, "API servers")...)
		got, _ := cluster.Resolve(forged, state, last)

		had := map[netip.Addr]string{}
		if last != nil {
			for _, n := range all(*last) {
				for _, a := range n.Addresses {
					had[a] = n.Name
				}
			}
		}
		for _, n := range all(honest) {
			for _, a := range n.Addresses {
				if had[a] != n.Name {
					continue
				}
				for _, other := range all(got) {
					if has := slices.Contains(other.Addresses, a); has != (other.Name == n.Name) {
						t.Fatalf("%s was %s's; by evidence %s has it: %t", a, n.Name, other.Name,
							has)
					}
				}
			}
		}
		for _, a := range honest.NodeAddrs {
			closed := last != nil && slices.Contains(last.NodeAddrs, a) ||
				slices.ContainsFunc(r.NodeRanges,
					func(p netip.Prefix) bool { return p.Contains(a) })
			if closed && !slices.Contains(got.NodeAddrs, a) {
				t.Fatalf("%s is opened by evidence", a)
			}
		}
	})
}

// Age and name do not matter for addresses. Without a last good table, an address that two nodes
// list belongs to no node, unless this node lists it, and is closed.
func TestContestedAddressHasNoOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := genSound(t, "state")
		for i := range state.Nodes {
			state.Nodes[i].PodPrefixes = nil
			state.Nodes[i].Claim = nil
		}

		got, _ := cluster.Resolve(rules(), state, nil)
		listed := map[netip.Addr][]string{}
		for _, n := range state.Nodes {
			for _, a := range n.Addresses {
				listed[a] = append(listed[a], n.Name)
			}
		}

		for a, by := range listed {
			want := by
			switch {
			case slices.Contains(by, "self"):
				want = []string{"self"}
			case len(by) > 1:
				want = nil
			}
			var have []string
			for _, n := range all(got) {
				if slices.Contains(n.Addresses, a) {
					have = append(have, n.Name)
				}
			}
			if !slices.Equal(have, want) || !slices.Contains(got.NodeAddrs, a) {
				t.Fatalf("%s, listed by %v, is held by %v, want %v; closed: %v", a, by, have, want,
					got.NodeAddrs)
			}
		}
	})
}
