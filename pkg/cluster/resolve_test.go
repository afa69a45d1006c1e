package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var compareNetip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

func rules() cluster.Rules {
	return cluster.Rules{
		Self:          "self",
		ClusterRanges: prefixes("10.244.0.0/16", "fd42:244::/48"),
		ServiceRanges: prefixes("10.96.0.0/12", "fd42:96::/112"),
		Sites:         sites(),
		Gateways:      addrs("198.18.0.1", "fd42::1"),
	}
}

// node n is created n hours after the epoch, has the address 198.18.0.(10+n),
// the prefix 10.244.n.0/24 and the key n.
func node(n int) cluster.Node {
	a := netip.AddrFrom4([4]byte{198, 18, 0, byte(10 + n)})
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n), 0}), 24)
	return cluster.Node{
		Name:        fmt.Sprintf("node-%d", n),
		Created:     epoch.Add(time.Duration(n) * time.Hour),
		Addresses:   []netip.Addr{a},
		PodPrefixes: []netip.Prefix{p},
		Claim: &cluster.Claim{
			Keys:        []cluster.Key{{Epoch: 1, Public: key(n)}},
			Endpoints:   []netip.AddrPort{netip.AddrPortFrom(a, 51820)},
			PodPrefixes: []netip.Prefix{p},
			MTU:         1500,
		},
	}
}

func self() cluster.Node {
	n := node(0)
	n.Name = "self"
	return n
}

func with(n cluster.Node, change func(n *cluster.Node)) cluster.Node {
	change(&n)
	return n
}

func keyless(n cluster.Node) cluster.Node {
	n.Claim = nil
	return n
}

func key(n int) (k wgkey.Public) {
	k[0], k[31] = byte(n+1), 7
	return k
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func synced(nodes ...cluster.Node) cluster.State {
	return cluster.State{Revision: 1, Synced: true, Nodes: nodes, APIServers: addrs("198.18.0.200")}
}

func table(t *testing.T, nodes ...cluster.Node) *cluster.Table {
	t.Helper()
	got, refusals := cluster.Resolve(rules(), synced(nodes...), nil)
	if len(refusals) > 0 {
		t.Fatalf("the last good table refuses %v", refusals)
	}
	return &got
}

func names(nodes []cluster.Node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return strings.Join(out, " ")
}

func TestAddressesThatNoNodeCanHaveAreRefused(t *testing.T) {
	for _, a := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1",
		"169.254.1.1", "fe80::1", "fe80::1%eth0", "255.255.255.255", "fd42::9%eth0",
		"::ffff:127.0.0.1"} {
		forged := with(node(1), func(n *cluster.Node) {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		})
		got, refusals := cluster.Resolve(rules(), synced(self(), forged), nil)
		if owners(got) != "node-1=11" ||
			!slices.Equal(got.NodeAddrs, addrs("198.18.0.10", "198.18.0.11")) {
			t.Errorf("%s: peers %q, node addresses %v", a, names(got.Peers), got.NodeAddrs)
		}
		checkRefusals(t, refusals, "node-1", "cannot be reached from other nodes")
	}
}

func TestNodeRangesBoundAddresses(t *testing.T) {
	r := rules()
	r.NodeRanges = prefixes("198.18.0.0/24")
	forged := with(node(1), func(n *cluster.Node) {
		n.Addresses = append(n.Addresses, netip.MustParseAddr("198.19.8.8"))
	})
	got, refusals := cluster.Resolve(r, synced(self(), forged, node(2)), nil)
	if owners(got) != "node-1=11 node-2=12" ||
		slices.Contains(got.NodeAddrs, netip.MustParseAddr("198.19.8.8")) {
		t.Errorf("peers %q, node addresses %v", names(got.Peers), got.NodeAddrs)
	}
	checkRefusals(t, refusals, "node-1", "outside of nodeRanges")
}

// This node is always believed, except for claims that would break it. These are reported.
func TestSelfKeepsWhatIsSound(t *testing.T) {
	me := with(self(), func(n *cluster.Node) {
		n.Addresses = addrs("198.18.0.10", "198.18.0.1", "198.18.0.200")
		n.PodPrefixes = prefixes("10.244.0.0/24", "198.19.0.0/24")
	})
	got, refusals := cluster.Resolve(rules(), synced(me, node(1)), nil)
	if got.Self == nil || !slices.Equal(got.Self.Addresses, addrs("198.18.0.10")) ||
		!slices.Equal(got.Self.PodPrefixes, prefixes("10.244.0.0/24")) {
		t.Errorf("self is %+v", got.Self)
	}
	if len(refusals) != 3 || names(got.Peers) != "node-1" {
		t.Errorf("refusals %v, peers %q", refusals, names(got.Peers))
	}
}

// Until every source has synced, no known node, claim, address or API server is removed.
// Afterwards, those that do not exist any more are removed.
func TestUnsyncedStateForgetsNothing(t *testing.T) {
	refused := with(node(4), func(n *cluster.Node) {
		n.Claim.PodPrefixes = nil
		n.PodPrefixes = prefixes("10.244.1.0/24")
	})
	last, _ := cluster.Resolve(rules(), synced(self(), node(1), node(2), keyless(node(3)), refused),
		nil)

	for name, state := range map[string]cluster.State{
		"nothing listed": {Revision: 1},
		"nodes listed, claims not": {Revision: 1,
			Nodes: []cluster.Node{keyless(self()), keyless(node(1)), keyless(node(3))}},
		"one node listed, all of it": {Revision: 1, Nodes: []cluster.Node{node(2)}},
		"everything listed, unsynced": {Revision: 1,
			Nodes: []cluster.Node{self(), node(1), node(2), keyless(node(3))}},
	} {
		t.Run(name, func(t *testing.T) {
			got, refusals := cluster.Resolve(rules(), state, &last)
			if d := cmp.Diff(last, got, compareNetip); d != "" || len(refusals) != 0 {
				t.Errorf("refusals %v, difference:\n%s", refusals, d)
			}
		})
	}

	got, _ := cluster.Resolve(rules(), synced(self(), node(1), keyless(node(2))), &last)
	if names(got.Peers) != "node-1 node-2" || names(got.Keyless) != "" ||
		!slices.Equal(got.NodeAddrs, addrs("198.18.0.10", "198.18.0.11", "198.18.0.12")) {
		t.Errorf("synced: peers %q, keyless %q, node addresses %v", names(got.Peers),
			names(got.Keyless), got.NodeAddrs)
	}
}

// A contested address stays unowned while nodes are missing from the list, and belongs to the only
// claimant once all are listed.
func TestContestedIsRemembered(t *testing.T) {
	thief := with(node(2), func(n *cluster.Node) {
		n.Addresses = append(n.Addresses, node(1).Addresses...)
	})
	last, _ := cluster.Resolve(rules(), synced(self(), node(1), thief), nil)
	if owners(last) != "node-1= node-2=12" {
		t.Fatalf("contested, the addresses are %q", owners(last))
	}
	for _, only := range []cluster.Node{node(1), thief} {
		got, refusals := cluster.Resolve(rules(),
			cluster.State{Revision: 2, Nodes: []cluster.Node{self(), only}}, &last)
		if owners(got) != "node-1= node-2=12" ||
			!slices.Contains(got.NodeAddrs, node(1).Addresses[0]) {
			t.Errorf("only %s listed: addresses are %q, node addresses %v (%v)", only.Name,
				owners(got), got.NodeAddrs, refusals)
		}
		state := synced(self(), only)
		got, refusals = cluster.Resolve(rules(), state, &last)
		if len(refusals) > 0 || !slices.Contains(got.Peers[0].Addresses, node(1).Addresses[0]) {
			t.Errorf("%s is the only one of all: addresses are %q, refusals %v", only.Name,
				owners(got), refusals)
		}
	}

	// One of the two claimants is refused as a whole, so the table does not have it.
	refused := with(thief, func(n *cluster.Node) { n.PodPrefixes = prefixes("198.19.0.0/24") })
	last, _ = cluster.Resolve(rules(), synced(self(), node(1), refused), nil)
	got, _ := cluster.Resolve(rules(),
		cluster.State{Revision: 2, Nodes: []cluster.Node{self(), node(1)}}, &last)
	if owners(got) != "node-1=" {
		t.Errorf("the refused node is not listed yet: addresses are %q", owners(got))
	}
}

// Before API servers are listed, their last known addresses count, so a worker cannot claim them in
// that time.
func TestAPIServersAreRemembered(t *testing.T) {
	last := table(t, self())
	forged := with(node(1), func(n *cluster.Node) {
		n.Addresses = append(n.Addresses, netip.MustParseAddr("198.18.0.200"))
	})
	for _, isSynced := range []bool{false, true} {
		state := cluster.State{Revision: 2, Synced: isSynced, Nodes: []cluster.Node{self(), forged}}
		got, refusals := cluster.Resolve(rules(), state, last)
		if owners(got) != "node-1=11" ||
			slices.Contains(got.NodeAddrs, netip.MustParseAddr("198.18.0.200")) {
			t.Errorf("synced %v: peers %q, node addresses %v", isSynced, names(got.Peers),
				got.NodeAddrs)
		}
		checkRefusals(t, refusals, "node-1", "API server")
	}
}

func TestChangedKeyOfAPeerIsBelieved(t *testing.T) {
	last := table(t, self(), node(1), node(2))
	changed := with(node(1), func(n *cluster.Node) {
		n.Claim.Keys[0] = cluster.Key{Epoch: 2, Public: key(50)}
	})
	got, refusals := cluster.Resolve(rules(), synced(self(), changed, node(2)), last)
	if p, ok := peer(got, "node-1"); !ok || p.Claim.Keys[0].Public != key(50) || len(refusals) > 0 {
		t.Errorf("peer %+v, refusals %v", p, refusals)
	}
}

// If a VeilNode or its CustomResourceDefinition is deleted, the peer stays. If the Node is deleted,
// the peer is removed.
func TestKeyLivesAsLongAsItsNode(t *testing.T) {
	last := table(t, self(), node(1), node(2))
	got, refusals := cluster.Resolve(rules(), synced(self(), keyless(node(1)), keyless(node(2))),
		last)
	if d := cmp.Diff(*last, got, compareNetip); d != "" || len(refusals) > 0 {
		t.Errorf("without VeilNodes: refusals %v, difference:\n%s", refusals, d)
	}
	if got, _ = cluster.Resolve(rules(), synced(self(), keyless(node(1))),
		last); names(got.Peers) != "node-1" {
		t.Errorf("a Node was deleted: peers %q", names(got.Peers))
	}
	again := with(keyless(node(1)), func(n *cluster.Node) { n.Created = n.Created.Add(time.Hour) })
	if got, _ = cluster.Resolve(rules(), synced(self(), again), last); names(got.Peers) != "" ||
		names(got.Keyless) != "node-1" {
		t.Errorf("a Node of the same name: peers %q, keyless %q", names(got.Peers),
			names(got.Keyless))
	}
	moved := with(keyless(node(1)), func(n *cluster.Node) {
		n.PodPrefixes = prefixes("10.244.77.0/24")
	})
	if got, refusals = cluster.Resolve(rules(), synced(self(), moved),
		last); names(got.Keyless) != "node-1" || len(refusals) > 0 {
		t.Errorf("what was claimed does not fit any more: keyless %q, refusals %v",
			names(got.Keyless), refusals)
	}
}

func TestNodeDerivations(t *testing.T) {
	n := with(node(1), func(n *cluster.Node) {
		n.Addresses = addrs("198.18.0.11", "fd42::11")
		n.PodPrefixes = prefixes("10.244.1.0/24", "fd42:244:0:1::/64")
		n.Claim.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.11:51820"),
			netip.MustParseAddrPort("[fd42::11]:51820")}
		n.Claim.Keys = []cluster.Key{{Epoch: 9, Public: key(9)}, {Epoch: 3, Public: key(3)}}
	})
	if got := n.AllowedIPs(); !slices.Equal(got,
		prefixes("10.244.1.0/24", "198.18.0.11/32", "fd42::11/128", "fd42:244:0:1::/64")) {
		t.Errorf("allowed IPs %v", got)
	}

	for underlay, want := range map[cluster.Families]string{dual: "198.18.0.11:51820",
		onlyV4: "198.18.0.11:51820", onlyV6: "[fd42::11]:51820", {}: "invalid AddrPort"} {
		if got, ok := n.Endpoint(underlay); got.String() != want || ok != (want[0] != 'i') {
			t.Errorf("endpoint over %+v: %v, %v", underlay, got, ok)
		}
	}

	if k, ok := n.NewestKey(); !ok || k.Epoch != 9 {
		t.Errorf("newest key %+v", k)
	}
	if n.PodFamilies() != dual || n.AddressFamilies() != dual {
		t.Error("families are not both")
	}

}
