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

// Every way to forge a Node or a VeilNode, who remains a peer, what pods may not reach, and why.
func TestForgedClaims(t *testing.T) {
	const api = "198.18.0.200"
	for name, c := range map[string]struct {
		last    []cluster.Node
		nodes   []cluster.Node
		peers   string
		keyless string
		refused string // the newcomer, "" when all is believed
		reason  string
		addrs   string // last parts of 198.18.0.x in NodeAddrs, self's 10 apart
	}{
		"nothing forged": {nodes: []cluster.Node{node(1), node(2)}, peers: "node-1 node-2", addrs: "11 12"},
		"a node without a claim": {
			nodes: []cluster.Node{node(1), keyless(node(2))}, peers: "node-1", keyless: "node-2", addrs: "11 12",
		},
		"a younger node repeats a key": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) { n.Claim.Keys[0].Public = key(1) })},
			peers: "node-1", keyless: "node-2", refused: "node-2", reason: "held by node-1, which is older", addrs: "11 12",
		},
		"an older node repeats the key of one in the last good table": {
			last:  []cluster.Node{node(2)},
			nodes: []cluster.Node{node(2), with(node(1), func(n *cluster.Node) { n.Claim.Keys[0].Public = key(2) })},
			peers: "node-2", keyless: "node-1", refused: "node-1", reason: "held by node-2, which was in the last good table", addrs: "11 12",
		},
		"a node in the last good table changes its key to another's": {
			last:  []cluster.Node{node(1), node(2)},
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) { n.Claim.Keys[0].Public = key(2) }), node(2)},
			peers: "node-2", keyless: "node-1", refused: "node-1", reason: "public key", addrs: "11 12",
		},
		"a key added as a second epoch is another's": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Claim.Keys = append(n.Claim.Keys, cluster.Key{Epoch: 2, Public: key(1)})
			})},
			peers: "node-1", keyless: "node-2", refused: "node-2", reason: "public key", addrs: "11 12",
		},
		"this node's key": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) { n.Created, n.Claim.Keys[0].Public = time.Time{}, key(0) })},
			peers: "", keyless: "node-1", refused: "node-1", reason: "is this node itself", addrs: "11",
		},
		"the zero key": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) { n.Claim.Keys[0].Public = wgkey.Public{} })},
			peers: "", keyless: "node-1", refused: "node-1", reason: "key of epoch 1 is zero", addrs: "11",
		},
		"a stolen prefix": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.PodPrefixes, n.Claim.PodPrefixes = node(1).PodPrefixes, node(1).PodPrefixes
			})},
			peers: "node-1", refused: "node-2", reason: "pod prefix 10.244.1.0/24", addrs: "11 12",
		},
		"a part of a prefix, by an older node": {
			last: []cluster.Node{node(2)},
			nodes: []cluster.Node{node(2), with(node(1), func(n *cluster.Node) {
				n.PodPrefixes = prefixes("10.244.2.128/25")
				n.Claim.PodPrefixes = n.PodPrefixes
			})},
			peers: "node-2", refused: "node-1", reason: "of which 10.244.2.0/24 is held by node-2", addrs: "11 12",
		},
		"a prefix around everybody's": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.PodPrefixes = prefixes("10.244.0.0/16")
				n.Claim.PodPrefixes = n.PodPrefixes
			})},
			peers: "node-1", refused: "node-2", reason: "is this node itself", addrs: "11 12",
		},
		"a prefix of a node without a key": {
			nodes: []cluster.Node{keyless(node(1)), with(node(2), func(n *cluster.Node) {
				n.PodPrefixes, n.Claim.PodPrefixes = node(1).PodPrefixes, node(1).PodPrefixes
			})},
			peers: "", keyless: "node-1", refused: "node-2", reason: "pod prefix", addrs: "11 12",
		},
		"a prefix outside of the cluster ranges": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.PodPrefixes = prefixes("198.19.0.0/24")
				n.Claim.PodPrefixes = n.PodPrefixes
			})},
			refused: "node-1", reason: "outside of every cluster range", addrs: "11",
		},
		"a prefix larger than the cluster range": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.PodPrefixes = prefixes("0.0.0.0/0")
				n.Claim.PodPrefixes = n.PodPrefixes
			})},
			refused: "node-1", reason: "outside of every cluster range", addrs: "11",
		},
		"a claim for more than the Node has": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Claim.PodPrefixes = prefixes("10.244.1.0/24", "10.244.9.0/24")
			})},
			keyless: "node-1", refused: "node-1", reason: "Node.spec.podCIDRs says [10.244.1.0/24]", addrs: "11",
		},
		"a claim for less than the Node has": {
			nodes:   []cluster.Node{with(node(1), func(n *cluster.Node) { n.Claim.PodPrefixes = nil })},
			keyless: "node-1", refused: "node-1", reason: "Node.spec.podCIDRs says", addrs: "11",
		},
		"a stolen address": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.12", "198.18.0.11") })},
			peers: "node-1", refused: "node-2", reason: "node address 198.18.0.11", addrs: "11 12",
		},
		"a stolen address, as IPv4 in IPv6": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.12", "::ffff:198.18.0.11") })},
			peers: "node-1", refused: "node-2", reason: "node address 198.18.0.11", addrs: "11 12",
		},
		"this node's address": {
			nodes:   []cluster.Node{with(node(1), func(n *cluster.Node) { n.Created, n.Addresses = time.Time{}, addrs("198.18.0.10", "198.18.0.11") })},
			refused: "node-1", reason: "is this node itself", addrs: "11",
		},
		"a worker claims the API server's address": {
			nodes:   []cluster.Node{with(node(1), func(n *cluster.Node) { n.Addresses = append(n.Addresses, addrs(api)...) })},
			refused: "node-1", reason: "an API server's, but is no control-plane node", addrs: "11",
		},
		"a worker claims the API server's address beside the control plane": {
			nodes: []cluster.Node{
				with(node(1), func(n *cluster.Node) { n.Created = time.Time{}; n.Addresses = append(n.Addresses, addrs(api)...) }),
				with(node(2), func(n *cluster.Node) { n.ControlPlane = true; n.Addresses = append(n.Addresses, addrs(api)...) }),
			},
			peers: "node-2", refused: "node-1", reason: "control-plane", addrs: "11 12 200",
		},
		"a control-plane node with a key of another is still unreachable in clear": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.ControlPlane, n.Addresses = true, append(n.Addresses, addrs(api)...)
				n.Claim.Keys[0].Public = key(1)
			})},
			peers: "node-1", keyless: "node-2", refused: "node-2", reason: "public key", addrs: "11 12 200",
		},
		"a gateway's address": {
			nodes:   []cluster.Node{with(node(1), func(n *cluster.Node) { n.ControlPlane, n.Addresses = true, append(n.Addresses, addrs("198.18.0.1")...) })},
			refused: "node-1", reason: "a gateway's", addrs: "11",
		},
		"a service's address": {
			nodes:   []cluster.Node{with(node(1), func(n *cluster.Node) { n.Addresses = append(n.Addresses, addrs("10.96.0.10")...) })},
			refused: "node-1", reason: "service range", addrs: "11",
		},
		"a pod's address": {
			nodes:   []cluster.Node{with(node(1), func(n *cluster.Node) { n.Addresses = append(n.Addresses, addrs("10.244.7.7")...) })},
			refused: "node-1", reason: "cluster range", addrs: "11",
		},
		"more addresses than any node has": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				for i := range 255 {
					n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{198, 18, 1, byte(i)}))
				}
			})},
			refused: "node-1", reason: "more than 64", addrs: "",
		},
		"an endpoint that is not the node's": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Claim.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.11:51820")}
			})},
			peers: "node-1", keyless: "node-2", refused: "node-2", reason: "endpoint 198.18.0.11:51820 is not an address of the node", addrs: "11 12",
		},
		"an endpoint without a port": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Claim.Endpoints = []netip.AddrPort{netip.AddrPortFrom(n.Addresses[0], 0)}
			})},
			keyless: "node-1", refused: "node-1", reason: "with a port", addrs: "11",
		},
		"two endpoints of one family": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = addrs("198.18.0.11", "198.18.0.12")
				n.Claim.Endpoints = append(n.Claim.Endpoints, netip.MustParseAddrPort("198.18.0.12:51820"))
			})},
			keyless: "node-1", refused: "node-1", reason: "more than one endpoint of a family", addrs: "11 12",
		},
		"a node that steals from one that steals leaves the honest in peace": {
			last: []cluster.Node{node(1), node(3)},
			nodes: []cluster.Node{
				node(1),
				with(node(2), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.12", "198.18.0.11") }),
				with(node(3), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.13", "198.18.0.14") }),
			},
			peers: "node-1 node-3", refused: "node-2", reason: "198.18.0.11", addrs: "11 12 13 14",
		},
		"a thief's loot is free for its other claimant": {
			nodes: []cluster.Node{
				node(1),
				with(node(2), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.11", "198.18.0.13") }),
				node(3),
			},
			peers: "node-1 node-3", refused: "node-2", reason: "198.18.0.11", addrs: "11 13",
		},
		"two nodes exchange their addresses": {
			last: []cluster.Node{node(1), node(2)},
			nodes: []cluster.Node{
				with(node(1), func(n *cluster.Node) { n.Addresses, n.Claim.Endpoints = node(2).Addresses, node(2).Claim.Endpoints }),
				with(node(2), func(n *cluster.Node) { n.Addresses, n.Claim.Endpoints = node(1).Addresses, node(1).Claim.Endpoints }),
			},
			peers: "node-1 node-2", addrs: "11 12",
		},
		"an old node steals from one in the last good table that grows": {
			last: []cluster.Node{node(1), node(3)},
			nodes: []cluster.Node{
				with(node(1), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.11", "198.18.0.13") }),
				with(node(3), func(n *cluster.Node) { n.Addresses = addrs("198.18.0.13", "198.18.0.23") }),
			},
			peers: "node-3", refused: "node-1", reason: "was in the last good table", addrs: "11 13 23",
		},
		"two nodes of one name": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) { n.Name = "node-1" })},
			peers: "node-1", refused: "node-1", reason: "another node of this name, which is older", addrs: "11 12",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var last *cluster.Table
			if c.last != nil {
				last = table(t, append(c.last, self())...)
			}
			state := synced(append([]cluster.Node{self()}, c.nodes...)...)
			got, refusals := cluster.Resolve(rules(), state, last)
			if names(got.Peers) != c.peers || names(got.Keyless) != c.keyless {
				t.Errorf("peers %q, keyless %q, want %q, %q (%v)", names(got.Peers), names(got.Keyless), c.peers, c.keyless, refusals)
			}
			want := addrs("198.18.0.10")
			for _, part := range strings.Fields(c.addrs) {
				want = append(want, netip.MustParseAddr("198.18.0."+part))
			}
			if !slices.Equal(got.NodeAddrs, want) {
				t.Errorf("node addresses %v, want %v", got.NodeAddrs, want)
			}
			checkRefusals(t, refusals, c.refused, c.reason)
			if got.Self == nil || got.Self.Name != "self" {
				t.Errorf("self is %v", got.Self)
			}
		})
	}
}

func checkRefusals(t *testing.T, refusals []cluster.Refusal, node, reason string) {
	t.Helper()
	if (node == "") != (len(refusals) == 0) {
		t.Errorf("refused %v, want %q", refusals, node)
	}
	found := false
	for _, r := range refusals {
		found = found || strings.Contains(r.Reason, reason)
		if r.Node != node {
			t.Errorf("refused %s: %s", r.Node, r.Reason)
		}
	}
	if !found && node != "" {
		t.Errorf("no reason holds %q: %v", reason, refusals)
	}
}

func TestAddressesThatAreNoNodes(t *testing.T) {
	for _, a := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1", "fe80::1%eth0", "255.255.255.255", "fd42::9%eth0", "::ffff:127.0.0.1"} {
		forged := with(node(1), func(n *cluster.Node) { n.Addresses = append(n.Addresses, netip.MustParseAddr(a)) })
		got, refusals := cluster.Resolve(rules(), synced(self(), forged), nil)
		if len(got.Peers) != 0 || !slices.Equal(got.NodeAddrs, addrs("198.18.0.10", "198.18.0.11")) {
			t.Errorf("%s: peers %q, node addresses %v", a, names(got.Peers), got.NodeAddrs)
		}
		checkRefusals(t, refusals, "node-1", "cannot be reached from other nodes")
	}
}

func TestNodeRangesBoundAddresses(t *testing.T) {
	r := rules()
	r.NodeRanges = prefixes("198.18.0.0/24")
	forged := with(node(1), func(n *cluster.Node) { n.Addresses = append(n.Addresses, netip.MustParseAddr("198.19.8.8")) })
	got, refusals := cluster.Resolve(r, synced(self(), forged, node(2)), nil)
	if names(got.Peers) != "node-2" || slices.Contains(got.NodeAddrs, netip.MustParseAddr("198.19.8.8")) {
		t.Errorf("peers %q, node addresses %v", names(got.Peers), got.NodeAddrs)
	}
	checkRefusals(t, refusals, "node-1", "outside of nodeRanges")
}

// This node is always believed, less what would break it; it is told.
func TestSelfKeepsWhatIsSound(t *testing.T) {
	me := with(self(), func(n *cluster.Node) {
		n.Addresses = addrs("198.18.0.10", "198.18.0.1", "198.18.0.200")
		n.PodPrefixes = prefixes("10.244.0.0/24", "198.19.0.0/24")
	})
	got, refusals := cluster.Resolve(rules(), synced(me, node(1)), nil)
	if got.Self == nil || !slices.Equal(got.Self.Addresses, addrs("198.18.0.10")) || !slices.Equal(got.Self.PodPrefixes, prefixes("10.244.0.0/24")) {
		t.Errorf("self is %+v", got.Self)
	}
	if len(refusals) != 3 || names(got.Peers) != "node-1" {
		t.Errorf("refusals %v, peers %q", refusals, names(got.Peers))
	}
}

// Until every source has synced nothing known is forgotten: not a node, a
// claim, an address or an API server; afterwards all that is gone goes.
func TestUnsyncedStateForgetsNothing(t *testing.T) {
	refused := with(node(4), func(n *cluster.Node) { n.Claim.PodPrefixes = nil; n.PodPrefixes = prefixes("10.244.1.0/24") })
	last, _ := cluster.Resolve(rules(), synced(self(), node(1), node(2), keyless(node(3)), refused), nil)
	for name, state := range map[string]cluster.State{
		"nothing listed":              {Revision: 1},
		"nodes listed, claims not":    {Revision: 1, Nodes: []cluster.Node{keyless(self()), keyless(node(1)), keyless(node(3))}},
		"one node listed, all of it":  {Revision: 1, Nodes: []cluster.Node{node(2)}},
		"everything listed, unsynced": {Revision: 1, Nodes: []cluster.Node{self(), node(1), node(2), keyless(node(3))}},
	} {
		t.Run(name, func(t *testing.T) {
			got, refusals := cluster.Resolve(rules(), state, &last)
			if d := cmp.Diff(last, got, compareNetip); d != "" || len(refusals) != 0 {
				t.Errorf("refusals %v, difference:\n%s", refusals, d)
			}
		})
	}
	got, _ := cluster.Resolve(rules(), synced(self(), node(1), keyless(node(2))), &last)
	if names(got.Peers) != "node-1" || names(got.Keyless) != "node-2" || !slices.Equal(got.NodeAddrs, addrs("198.18.0.10", "198.18.0.11", "198.18.0.12")) {
		t.Errorf("synced: peers %q, keyless %q, node addresses %v", names(got.Peers), names(got.Keyless), got.NodeAddrs)
	}
}

// A worker cannot use the moment before API servers are listed.
func TestAPIServersAreRemembered(t *testing.T) {
	last := table(t, self())
	forged := with(node(1), func(n *cluster.Node) { n.Addresses = append(n.Addresses, netip.MustParseAddr("198.18.0.200")) })
	for _, isSynced := range []bool{false, true} {
		state := cluster.State{Revision: 2, Synced: isSynced, Nodes: []cluster.Node{self(), forged}}
		got, refusals := cluster.Resolve(rules(), state, last)
		if len(got.Peers) != 0 || slices.Contains(got.NodeAddrs, netip.MustParseAddr("198.18.0.200")) {
			t.Errorf("synced %v: peers %q, node addresses %v", isSynced, names(got.Peers), got.NodeAddrs)
		}
		checkRefusals(t, refusals, "node-1", "API server")
	}
}

func TestChangedKeyOfAPeerIsBelieved(t *testing.T) {
	last := table(t, self(), node(1), node(2))
	changed := with(node(1), func(n *cluster.Node) { n.Claim.Keys[0] = cluster.Key{Epoch: 2, Public: key(50)} })
	got, refusals := cluster.Resolve(rules(), synced(self(), changed, node(2)), last)
	if p, ok := got.Peer("node-1"); !ok || p.Claim.Keys[0].Public != key(50) || len(refusals) > 0 {
		t.Errorf("peer %+v, refusals %v", p, refusals)
	}
}

func TestNodeDerivations(t *testing.T) {
	n := with(node(1), func(n *cluster.Node) {
		n.Addresses = addrs("198.18.0.11", "fd42::11")
		n.PodPrefixes = prefixes("10.244.1.0/24", "fd42:244:0:1::/64")
		n.Claim.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.11:51820"), netip.MustParseAddrPort("[fd42::11]:51820")}
		n.Claim.Keys = []cluster.Key{{Epoch: 9, Public: key(9)}, {Epoch: 3, Public: key(3)}}
	})
	if got := n.AllowedIPs(); !slices.Equal(got, prefixes("10.244.1.0/24", "198.18.0.11/32", "fd42::11/128", "fd42:244:0:1::/64")) {
		t.Errorf("allowed IPs %v", got)
	}
	for underlay, want := range map[cluster.Families]string{dual: "198.18.0.11:51820", onlyV4: "198.18.0.11:51820", onlyV6: "[fd42::11]:51820", {}: "invalid AddrPort"} {
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
	tab := cluster.Table{Peers: []cluster.Node{n}, NodeAddrs: addrs("198.18.0.11", "198.18.0.99", "fd42::11")}
	if got := tab.Unreachable(); !slices.Equal(got, addrs("198.18.0.99")) {
		t.Errorf("unreachable %v", got)
	}
}
