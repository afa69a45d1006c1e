package cluster_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// There are so few names, addresses, prefixes and keys that the claims of random nodes often
// conflict.
var (
	someAddrs = addrs("198.18.0.10", "198.18.0.11", "198.18.0.12", "198.18.0.13", "fd42::10",
		"fd42::11", "198.18.0.200", "198.18.0.1", "10.96.0.1", "127.0.0.1")
	somePrefixes = prefixes("10.244.0.0/24", "10.244.1.0/24", "10.244.1.128/25", "10.244.0.0/23",
		"10.244.2.0/24", "fd42:244::/64", "fd42:244:0:1::/64", "198.19.0.0/24")
	someNames = []string{"self", "node-1", "node-2", "node-3", "node-4", "node-5"}
)

func genNode(name string) *rapid.Generator[cluster.Node] {
	return rapid.Custom(func(t *rapid.T) cluster.Node {
		n := cluster.Node{
			Name:         name,
			Created:      epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Hour),
			ControlPlane: rapid.Bool().Draw(t, "control plane"),
			Addresses:    rapid.SliceOfN(rapid.SampledFrom(someAddrs), 0, 3).Draw(t, "addresses"),
			PodPrefixes:  rapid.SliceOfN(rapid.SampledFrom(somePrefixes), 0, 2).Draw(t, "prefixes"),
		}
		if rapid.IntRange(0, 3).Draw(t, "claims") == 0 {
			return n
		}

		n.Claim = &cluster.Claim{PodPrefixes: slices.Clone(n.PodPrefixes)}
		if rapid.IntRange(0, 7).Draw(t, "claims other prefixes") == 0 {
			n.Claim.PodPrefixes = rapid.SliceOfN(rapid.SampledFrom(somePrefixes), 0, 2).Draw(t,
				"claimed prefixes")
		}

		for i := range rapid.IntRange(0, 2).Draw(t, "keys") {
			n.Claim.Keys = append(n.Claim.Keys,
				cluster.Key{Epoch: uint32(i), Public: key(rapid.IntRange(1, 6).Draw(t, "key"))})
		}

		if len(n.Addresses) > 0 {
			n.Claim.Endpoints = []netip.AddrPort{
				netip.AddrPortFrom(rapid.SampledFrom(n.Addresses).Draw(t, "endpoint"), 51820)}
		}

		return n
	})
}

func genState(t *rapid.T, label string) cluster.State {
	s := cluster.State{Revision: 1, Synced: rapid.Bool().Draw(t, label+" synced"),
		APIServers: addrs("198.18.0.200")}
	for _, name := range someNames {
		if rapid.IntRange(0, 4).Draw(t, label+" has") > 0 {
			s.Nodes = append(s.Nodes, genNode(name).Draw(t, label))
		}
	}
	if rapid.IntRange(0, 9).Draw(t, label+" twice") == 0 {
		s.Nodes = append(s.Nodes, genNode("node-1").Draw(t, label))
	}
	return s
}

// genLast returns no last good table, or the table of another state.
func genLast(t *rapid.T) *cluster.Table {
	if rapid.Bool().Draw(t, "no last good table") {
		return nil
	}
	last, _ := cluster.Resolve(rules(), genState(t, "last"), nil)
	return &last
}

func TestResolveDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last, state := genLast(t), genState(t, "state")
		want, wantRefusals := cluster.Resolve(rules(), state, last)
		state.Nodes = rapid.Permutation(state.Nodes).Draw(t, "order")
		for i, n := range state.Nodes {
			state.Nodes[i].Addresses = rapid.Permutation(n.Addresses).Draw(t, "addresses")
			state.Nodes[i].PodPrefixes = rapid.Permutation(n.PodPrefixes).Draw(t, "prefixes")
		}
		got, gotRefusals := cluster.Resolve(rules(), state, last)
		if d := gocmp.Diff(want, got, compareNetip); d != "" {
			t.Fatal(d)
		}
		if d := gocmp.Diff(wantRefusals, gotRefusals); d != "" {
			t.Fatal(d)
		}
	})
}

func TestResolveTwiceIsResolveOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last, state := genLast(t), genState(t, "state")
		once, _ := cluster.Resolve(rules(), state, last)
		twice, _ := cluster.Resolve(rules(), state, &once)
		if d := gocmp.Diff(once, twice, compareNetip); d != "" {
			t.Fatal(d)
		}
	})
}

func TestResolveKeepsItsArguments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last, state := genLast(t), genState(t, "state")
		before := asJSON(t, last) + asJSON(t, state)
		cluster.Resolve(rules(), state, last)
		if after := asJSON(t, last) + asJSON(t, state); before != after {
			t.Fatalf("the arguments changed:\n%s\n%s", before, after)
		}
	})
}

// A node that holds what it held in the last good table, and nothing else, is
// believed regardless of what others claim.
func TestResolveKeepsTheHonest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := genState(t, "last")
		first.Synced = true
		last, _ := cluster.Resolve(rules(), first, nil)
		state := genState(t, "state")
		state.Synced = true

		for _, honest := range last.Peers {
			state.Nodes = slices.DeleteFunc(state.Nodes,
				func(n cluster.Node) bool { return n.Name == honest.Name })
		}

		// Self always wins conflicts, so it must also have its former claims.
		state.Nodes = slices.DeleteFunc(state.Nodes,
			func(n cluster.Node) bool { return n.Name == "self" })
		if last.Self != nil {
			state.Nodes = append(state.Nodes, *last.Self)
		}

		state.Nodes = append(state.Nodes, last.Peers...)
		got, refusals := cluster.Resolve(rules(), state, &last)
		for _, honest := range last.Peers {
			p, ok := peer(got, honest.Name)
			// A contested address may belong to it by now.
			p.Addresses = slices.DeleteFunc(p.Addresses, func(a netip.Addr) bool {
				return slices.Contains(honest.Contested, a)
			})
			honest.Contested, p.Contested = nil, nil
			if d := gocmp.Diff(honest, p, compareNetip, cmpopts.EquateEmpty()); !ok || d != "" {
				t.Fatalf("%s is lost or changed: %v\n%s", honest.Name, refusals, d)
			}
		}
	})
}

// before reports whether a was, in last, an address of the node.
func before(last *cluster.Table, name string, a netip.Addr) bool {
	return last != nil && slices.ContainsFunc(all(*last), func(n cluster.Node) bool {
		return n.Name == name && (slices.Contains(n.Addresses, a) ||
			slices.Contains(n.Contested, a))
	})
}

// all returns the nodes of a table.
func all(t cluster.Table) []cluster.Node {
	nodes := slices.Concat(t.Peers, t.Keyless)
	if t.Self != nil {
		nodes = append(nodes, *t.Self)
	}
	return nodes
}

// Properties that every table must have.
func TestResolveInvariants(t *testing.T) {
	r := rules()
	rapid.Check(t, func(t *rapid.T) {
		last, state := genLast(t), genState(t, "state")
		got, _ := cluster.Resolve(r, state, last)
		nodes := all(got)
		addrOf, keyOf := map[netip.Addr]string{}, map[wgkey.Public]string{}

		var held []netip.Prefix
		for _, n := range nodes {
			for _, a := range n.Addresses {
				if addrOf[a] != "" {
					t.Fatalf("%s is held by %s and %s", a, addrOf[a], n.Name)
				}
				addrOf[a] = n.Name
				if !slices.Contains(got.NodeAddrs, a) {
					t.Fatalf("%s of %s is not among the node addresses", a, n.Name)
				}
				if (a == netip.MustParseAddr("198.18.0.200") || slices.Contains(r.Gateways, a)) &&
					!n.ControlPlane && !before(last, n.Name, a) {
					t.Fatalf("the worker %s has %s, the API server's or a gateway's", n.Name, a)
				}
			}

			for _, p := range n.PodPrefixes {
				if slices.ContainsFunc(held, p.Overlaps) ||
					!p.Overlaps(r.ClusterRanges[0]) && !p.Overlaps(r.ClusterRanges[1]) {
					t.Fatalf("%s of %s overlaps another or is outside of the ranges", p, n.Name)
				}
				held = append(held, p)
			}

			if n.Claim != nil {
				for _, k := range n.Claim.Keys {
					if keyOf[k.Public] != "" && keyOf[k.Public] != n.Name {
						t.Fatalf("%s and %s have one key", keyOf[k.Public], n.Name)
					}
					keyOf[k.Public] = n.Name
				}
			}
		}

		for _, a := range got.NodeAddrs {
			bad := a.IsLoopback()
			for _, rg := range append(slices.Clone(r.ClusterRanges), r.ServiceRanges...) {
				bad = bad || rg.Contains(a)
			}
			if bad {
				t.Fatalf("%s is among the node addresses", a)
			}
		}

		sortedByName := func(a, b cluster.Node) int { return strings.Compare(a.Name, b.Name) }
		if !slices.IsSortedFunc(got.Peers, sortedByName) ||
			!slices.IsSortedFunc(got.Keyless, sortedByName) ||
			!slices.IsSortedFunc(got.NodeAddrs, netip.Addr.Compare) {
			t.Fatal("not sorted")
		}
	})
}

// Resolve agrees with an oracle that compares all pairs of nodes without indexes. The nodes are
// valid by themselves, so only conflicts matter.
func TestResolveAgreesWithPairwiseOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := genSound(t, "state")
		var last *cluster.Table
		if rapid.Bool().Draw(t, "with last") {
			l, _ := cluster.Resolve(rules(), genSound(t, "last"), nil)
			last = &l
		}
		got, refusals := cluster.Resolve(rules(), state, last)
		wantPeers, wantKeyless := oracle(state, last)
		if d := gocmp.Diff(wantPeers, names(got.Peers)); d != "" {
			t.Fatalf("peers: %s\n%v", d, refusals)
		}
		if d := gocmp.Diff(wantKeyless, names(got.Keyless)); d != "" {
			t.Fatalf("keyless: %s\n%v", d, refusals)
		}
	})
}

// genSound returns a synced state of nodes that are valid by themselves, but may conflict with each
// other.
func genSound(t *rapid.T, label string) cluster.State {
	s := synced()
	for _, name := range someNames {
		n := cluster.Node{Name: name, Created: epoch.Add(
			time.Duration(rapid.IntRange(0, 3).Draw(t, label+" age")) * time.Hour)}
		n.Addresses = rapid.SliceOfNDistinct(rapid.SampledFrom(someAddrs[:6]), 1, 2,
			rapid.ID[netip.Addr]).Draw(t, label+" addresses")
		n.PodPrefixes = prefixes(rapid.SampledFrom([]string{"10.244.0.0/24", "10.244.1.0/24",
			"10.244.1.128/25", "10.244.0.0/23", "10.244.2.0/24", "10.244.3.0/24",
			"10.244.4.0/24"}).Draw(t, label+" prefix"))
		if rapid.IntRange(0, 3).Draw(t, label+" claims") > 0 {
			n.Claim = &cluster.Claim{PodPrefixes: n.PodPrefixes,
				Endpoints: []netip.AddrPort{netip.AddrPortFrom(n.Addresses[0], 1)}}
			for i, k := range rapid.SliceOfNDistinct(rapid.IntRange(1, 8), 1, 2,
				rapid.ID[int]).Draw(t, label+" keys") {
				n.Claim.Keys = append(n.Claim.Keys, cluster.Key{Epoch: uint32(i), Public: key(k)})
			}
		}
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

func oracle(state cluster.State, last *cluster.Table) (peers, keyless string) {
	before := map[string]cluster.Node{}
	if last != nil {
		for _, n := range append(append([]cluster.Node{*last.Self}, last.Peers...),
			last.Keyless...) {
			before[n.Name] = n
		}
	}

	// TestContestedAddressHasNoOwner checks addresses. This test checks prefixes and keys.
	things := func(n cluster.Node) (out []netip.Prefix) { return n.PodPrefixes }
	keys := func(n cluster.Node) (out []wgkey.Public) {
		if n.Claim != nil {
			for _, k := range n.Claim.Keys {
				out = append(out, k.Public)
			}
		}
		return out
	}

	nodes := pick(state.Nodes, before, things, netip.Prefix.Overlaps,
		func(had, claimed netip.Prefix) bool {
			return had.Overlaps(claimed) && had.Bits() <= claimed.Bits() &&
				(claimed.IsSingleIP() == had.IsSingleIP())
		})
	var claimed []cluster.Node

	var own []netip.Addr
	for _, n := range state.Nodes {
		if n.Name == "self" {
			own = n.Addresses
		}
	}

	for i, n := range nodes {
		// A key stays as long as its Node exists, if the other claims still fit.
		was := before[n.Name]
		if n.Claim == nil && was.Claim != nil && was.Created.Equal(n.Created) &&
			(n.Name == "self" ||
				slices.Equal(was.PodPrefixes, n.PodPrefixes) &&
					slices.Contains(n.Addresses, was.Claim.Endpoints[0].Addr())) {
			nodes[i].Claim = was.Claim
			n = nodes[i]
		}
		// An endpoint that is this node's own address belongs to no other node.
		if n.Claim != nil && (n.Name == "self" ||
			!slices.Contains(own, n.Claim.Endpoints[0].Addr())) {
			claimed = append(claimed, n)
		}
	}

	same := func(a, b wgkey.Public) bool { return a == b }
	believed := pick(claimed, before, keys, same, same)
	var p, k []string
	for _, n := range nodes {
		isPeer := slices.ContainsFunc(believed,
			func(b cluster.Node) bool { return b.Name == n.Name })
		switch {
		case n.Name == "self":
		case isPeer:
			p = append(p, n.Name)
		default:
			k = append(k, n.Name)
		}
	}

	slices.Sort(p)
	slices.Sort(k)
	return strings.Join(p, " "), strings.Join(k, " ")
}

// pick accepts nodes one by one: self, then nodes that claim nothing that another claims and had,
// then the rest, each by age and name.
func pick[T any](nodes []cluster.Node, before map[string]cluster.Node,
	things func(cluster.Node) []T, clash, had func(a, b T) bool) (accepted []cluster.Node) {
	incumbent := func(n cluster.Node, thing T) bool {
		return n.Name == "self" ||
			slices.ContainsFunc(things(before[n.Name]), func(h T) bool { return had(h, thing) })
	}

	// Self is its own incumbent for all it claims, also against the last good table.
	holds := func(n cluster.Node, thing T) bool {
		if !incumbent(n, thing) {
			return false
		}
		for _, s := range nodes {
			if s.Name == "self" && n.Name != "self" &&
				slices.ContainsFunc(things(s), func(x T) bool { return clash(x, thing) }) {
				return false
			}
		}
		return true
	}

	rank := func(n cluster.Node) int {
		if n.Name == "self" {
			return 0
		}
		for _, mine := range things(n) {
			for _, o := range nodes {
				for _, theirs := range things(o) {
					if o.Name != n.Name && clash(mine, theirs) && holds(o, theirs) {
						return 2
					}
				}
			}
		}
		return 1
	}

	order := slices.Clone(nodes)
	slices.SortFunc(order, func(a, b cluster.Node) int {
		return cmp.Or(rank(a)-rank(b), a.Created.Compare(b.Created),
			strings.Compare(a.Name, b.Name))
	})

	for _, n := range order {
		free := true
		for _, o := range accepted {
			for _, mine := range things(n) {
				free = free && !slices.ContainsFunc(things(o),
					func(theirs T) bool { return clash(mine, theirs) })
			}
		}
		if free {
			accepted = append(accepted, n)
		}
	}

	return accepted
}

func asJSON(t *rapid.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// BenchmarkResolve1000 measures Resolve for a large cluster, which is part of the time from a
// change to the device.
func BenchmarkResolve1000(b *testing.B) {
	state := synced(self())
	for i := range 1000 {
		n := node(1)
		n.Name = fmt.Sprintf("node-%d", i)
		n.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})}
		n.PodPrefixes = []netip.Prefix{netip.PrefixFrom(
			netip.AddrFrom4([4]byte{10, 244, byte(i >> 2), byte(i << 6)}), 26)}
		n.Claim.PodPrefixes = n.PodPrefixes
		n.Claim.Endpoints = []netip.AddrPort{netip.AddrPortFrom(n.Addresses[0], 51820)}
		n.Claim.Keys[0].Public[2], n.Claim.Keys[0].Public[3] = byte(i>>8), byte(i)
		state.Nodes = append(state.Nodes, n)
	}
	state.Nodes[0].PodPrefixes = prefixes("10.244.255.0/24")
	last, refusals := cluster.Resolve(rules(), state, nil)
	if len(last.Peers) != 1000 {
		b.Fatal(refusals[:1])
	}
	for b.Loop() {
		cluster.Resolve(rules(), state, &last)
	}
}

func peer(t cluster.Table, name string) (cluster.Node, bool) {
	i := slices.IndexFunc(t.Peers, func(n cluster.Node) bool { return n.Name == name })
	if i < 0 {
		return cluster.Node{}, false
	}
	return t.Peers[i], true
}
