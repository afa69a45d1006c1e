package cluster_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// For every way to forge a Node or a VeilNode, the table has the right peers, closed addresses and
// refusals.
func TestForgedClaimsStealNothing(t *testing.T) {
	const api, evidence = "198.18.0.200", "198.18.0.99"
	for name, c := range map[string]struct {
		last    []cluster.Node
		nodes   []cluster.Node
		peers   string
		keyless string
		refused string // the newcomer, "" when all is believed
		reason  string
		addrs   string // last parts of 198.18.0.x in NodeAddrs, self's 10 apart
		own     string // those that each peer and keyless node has, "" when it does not matter

		api, gateway string // what the underlay says beside what is always so
		nodeRanges   string
	}{
		"nothing forged": {nodes: []cluster.Node{node(1), node(2)}, peers: "node-1 node-2",
			addrs: "11 12"},
		"a node without a claim": {
			nodes: []cluster.Node{node(1), keyless(node(2))}, peers: "node-1", keyless: "node-2",
			addrs: "11 12",
		},
		"a younger node repeats a key": {
			nodes: []cluster.Node{node(1), with(node(2),
				func(n *cluster.Node) { n.Claim.Keys[0].Public = key(1) })},
			peers: "node-1", keyless: "node-2", refused: "node-2",
			reason: "held by node-1, which is older", addrs: "11 12",
		},
		"an older node repeats the key of one in the last good table": {
			last: []cluster.Node{node(2)},
			nodes: []cluster.Node{node(2), with(node(1),
				func(n *cluster.Node) { n.Claim.Keys[0].Public = key(2) })},
			peers: "node-2", keyless: "node-1", refused: "node-1",
			reason: "held by node-2, which was in the last good table", addrs: "11 12",
		},
		"a node in the last good table changes its key to another's": {
			last: []cluster.Node{node(1), node(2)},
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Claim.Keys[0].Public = key(2)
			}), node(2)},
			peers: "node-2", keyless: "node-1", refused: "node-1", reason: "public key",
			addrs: "11 12",
		},
		"a key added as a second epoch belongs to another node": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Claim.Keys = append(n.Claim.Keys, cluster.Key{Epoch: 2, Public: key(1)})
			})},
			peers: "node-1", keyless: "node-2", refused: "node-2", reason: "public key",
			addrs: "11 12",
		},
		"this node's key": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Created, n.Claim.Keys[0].Public = time.Time{}, key(0)
			})},
			peers: "", keyless: "node-1", refused: "node-1", reason: "is this node itself",
			addrs: "11",
		},
		"the zero key": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Claim.Keys[0].Public = wgkey.Public{}
			})},
			peers: "", keyless: "node-1", refused: "node-1", reason: "key of epoch 1 is zero",
			addrs: "11",
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
			peers: "node-2", refused: "node-1", reason: "of which 10.244.2.0/24 is held by node-2",
			addrs: "11 12",
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
			keyless: "node-1", refused: "node-1", reason: "Node.spec.podCIDRs says [10.244.1.0/24]",
			addrs: "11",
		},
		"a claim for less than the Node has": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Claim.PodPrefixes = nil
			})},
			keyless: "node-1", refused: "node-1", reason: "Node.spec.podCIDRs says", addrs: "11",
		},
		"a stolen address": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Addresses = addrs("198.18.0.12", "198.18.0.11")
			})},
			peers: "node-1 node-2", refused: "node-1 node-2",
			reason: "198.18.0.11, and node-1 does, too: it belongs to no node", addrs: "11 12",
		},
		"a stolen address of one in the last good table": {
			last: []cluster.Node{node(1)},
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Created, n.Addresses = time.Time{}, addrs("198.18.0.12", "198.18.0.11")
			})},
			peers: "node-1 node-2", refused: "node-2",
			reason: "held by node-1, which had it in the last good table", addrs: "11 12",
			own: "node-1=11 node-2=12",
		},
		"all addresses of one in the last good table": {
			last: []cluster.Node{node(1)},
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Addresses, n.Claim.Endpoints = node(1).Addresses, node(1).Claim.Endpoints
			})},
			peers: "node-1 node-2", refused: "node-2", reason: "held by node-1", addrs: "11",
			own: "node-1=11 node-2=",
		},
		"a stolen address, as IPv4 in IPv6": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Addresses = addrs("198.18.0.12", "::ffff:198.18.0.11")
			})},
			peers: "node-1 node-2", refused: "node-1 node-2", reason: "node address 198.18.0.11",
			addrs: "11 12", own: "node-1= node-2=12",
		},
		"this node's address": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Created, n.Addresses = time.Time{}, addrs("198.18.0.10", "198.18.0.11")
			})},
			peers: "node-1", refused: "node-1", reason: "is this node itself", addrs: "11",
			own: "node-1=11",
		},
		"a worker claims the API server's address": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(api)...)
			})},
			peers: "node-1", refused: "node-1",
			reason: "of an API server, but is not a control-plane node", addrs: "11",
			own: "node-1=11",
		},
		"the underlay says that a worker in the last good table is the API server": {
			last: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(evidence)...)
			})},
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(evidence)...)
			})},
			api:   evidence,
			peers: "node-1", addrs: "11 99", own: "node-1=11,99",
		},
		"the underlay says that a worker in the last good table is a gateway": {
			last: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(evidence)...)
			})},
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(evidence)...)
			})},
			gateway: evidence,
			peers:   "node-1", addrs: "11 99", own: "node-1=11,99",
		},
		"the underlay says that a newcomer is a gateway": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(evidence)...)
			})},
			gateway: evidence,
			peers:   "node-1", refused: "node-1", reason: "of a gateway", addrs: "11",
			own: "node-1=11",
		},
		"the underlay says that a newcomer is a gateway, inside nodeRanges": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs(evidence)...)
			})},
			gateway: evidence, nodeRanges: "198.18.0.0/24",
			peers: "node-1", refused: "node-1", reason: "of a gateway", addrs: "11 99",
			own: "node-1=11",
		},
		"the underlay shows that the only address of a newcomer belongs to a gateway": {
			nodes:   []cluster.Node{with(node(9), func(n *cluster.Node) {})},
			gateway: "198.18.0.19", nodeRanges: "198.18.0.0/24",
			keyless: "node-9", refused: "node-9", reason: "of a gateway", addrs: "19",
			own: "node-9=",
		},
		"a control-plane node is the workers' gateway": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.ControlPlane, n.Addresses = true, append(n.Addresses, addrs(evidence)...)
			})},
			gateway: evidence,
			peers:   "node-1", addrs: "11 99", own: "node-1=11,99",
		},
		"a worker claims the API server's address beside the control plane": {
			nodes: []cluster.Node{
				with(node(1), func(n *cluster.Node) {
					n.Created = time.Time{}
					n.Addresses = append(n.Addresses, addrs(api)...)
				}),
				with(node(2), func(n *cluster.Node) {
					n.ControlPlane = true
					n.Addresses = append(n.Addresses, addrs(api)...)
				}),
			},
			peers: "node-1 node-2", refused: "node-1", reason: "control-plane", addrs: "11 12 200",
			own: "node-1=11 node-2=12,200",
		},
		"a control-plane node with a key of another is still unreachable in clear": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.ControlPlane, n.Addresses = true, append(n.Addresses, addrs(api)...)
				n.Claim.Keys[0].Public = key(1)
			})},
			peers: "node-1", keyless: "node-2", refused: "node-2", reason: "public key",
			addrs: "11 12 200",
		},
		"a gateway's address": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs("198.18.0.1")...)
			})},
			peers: "node-1", refused: "node-1", reason: "of a gateway", addrs: "11",
			own: "node-1=11",
		},
		"a service's address": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs("10.96.0.10")...)
			})},
			peers: "node-1", refused: "node-1", reason: "service range", addrs: "11",
			own: "node-1=11",
		},
		"a pod's address": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				n.Addresses = append(n.Addresses, addrs("10.244.7.7")...)
			})},
			peers: "node-1", refused: "node-1", reason: "cluster range", addrs: "11",
			own: "node-1=11",
		},
		"more addresses than any node has": {
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				for i := range 255 {
					n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{198, 18, 1, byte(i)}))
				}
			})},
			keyless: "node-1", refused: "node-1", reason: "more than 64", addrs: "",
		},
		"more addresses than any node has, of one in the last good table": {
			last: []cluster.Node{node(1)},
			nodes: []cluster.Node{with(node(1), func(n *cluster.Node) {
				for i := range 255 {
					n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{198, 18, 1, byte(i)}))
				}
			})},
			peers: "node-1", refused: "node-1", reason: "more than 64", addrs: "11",
			own: "node-1=11",
		},
		"an endpoint that the node does not have": {
			nodes: []cluster.Node{node(1), with(node(2), func(n *cluster.Node) {
				n.Claim.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.11:51820")}
			})},
			peers: "node-1", keyless: "node-2", refused: "node-2",
			reason: "endpoint 198.18.0.11:51820 is not an address of the node", addrs: "11 12",
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
				n.Claim.Endpoints = append(n.Claim.Endpoints,
					netip.MustParseAddrPort("198.18.0.12:51820"))
			})},
			keyless: "node-1", refused: "node-1", reason: "more than one endpoint of a family",
			addrs: "11 12",
		},
		"a node that steals from one that steals leaves the honest in peace": {
			last: []cluster.Node{node(1), node(3)},
			nodes: []cluster.Node{
				node(1),
				with(node(2), func(n *cluster.Node) {
					n.Addresses = addrs("198.18.0.12", "198.18.0.11")
				}),
				with(node(3), func(n *cluster.Node) {
					n.Addresses = addrs("198.18.0.13", "198.18.0.14")
				}),
			},
			peers: "node-1 node-2 node-3", refused: "node-2", reason: "198.18.0.11",
			addrs: "11 12 13 14", own: "node-1=11 node-2=12 node-3=13,14",
		},
		"no node has what a thief claims": {
			nodes: []cluster.Node{
				node(1),
				with(node(2), func(n *cluster.Node) {
					n.Addresses = addrs("198.18.0.11", "198.18.0.13")
				}),
				node(3),
			},
			peers: "node-1 node-3", keyless: "node-2", refused: "node-1 node-2 node-3",
			reason: "198.18.0.11", addrs: "11 13", own: "node-1= node-3= node-2=",
		},
		"two nodes exchange their addresses": {
			last: []cluster.Node{node(1), node(2)},
			nodes: []cluster.Node{
				with(node(1), func(n *cluster.Node) {
					n.Addresses, n.Claim.Endpoints = node(2).Addresses, node(2).Claim.Endpoints
				}),
				with(node(2), func(n *cluster.Node) {
					n.Addresses, n.Claim.Endpoints = node(1).Addresses, node(1).Claim.Endpoints
				}),
			},
			peers: "node-1 node-2", addrs: "11 12",
		},
		"an old node steals from one in the last good table that grows": {
			last: []cluster.Node{node(1), node(3)},
			nodes: []cluster.Node{
				with(node(1), func(n *cluster.Node) {
					n.Addresses = addrs("198.18.0.11", "198.18.0.13")
				}),
				with(node(3), func(n *cluster.Node) {
					n.Addresses = addrs("198.18.0.13", "198.18.0.23")
				}),
			},
			peers: "node-1 node-3", refused: "node-1", reason: "had it in the last good table",
			addrs: "11 13 23", own: "node-1=11 node-3=13,23",
		},
		"two nodes of one name": {
			nodes: []cluster.Node{node(1), with(node(2),
				func(n *cluster.Node) { n.Name = "node-1" })},
			peers: "node-1", refused: "node-1", reason: "another node of this name, which is older",
			addrs: "11 12",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var last *cluster.Table
			if c.last != nil {
				last = table(t, append(c.last, self())...)
			}
			state := synced(append([]cluster.Node{self()}, c.nodes...)...)
			r := rules()
			if c.gateway != "" {
				r.Gateways = append(r.Gateways, addrs(c.gateway)...)
			}
			if c.api != "" {
				state.APIServers = append(state.APIServers, addrs(c.api)...)
			}
			if c.nodeRanges != "" {
				r.NodeRanges = prefixes(c.nodeRanges)
			}
			got, refusals := cluster.Resolve(r, state, last)
			if names(got.Peers) != c.peers || names(got.Keyless) != c.keyless {
				t.Errorf("peers %q, keyless %q, want %q, %q (%v)", names(got.Peers),
					names(got.Keyless), c.peers, c.keyless, refusals)
			}
			want := addrs("198.18.0.10")
			for _, part := range strings.Fields(c.addrs) {
				want = append(want, netip.MustParseAddr("198.18.0."+part))
			}
			if !slices.Equal(got.NodeAddrs, want) {
				t.Errorf("node addresses %v, want %v", got.NodeAddrs, want)
			}
			checkRefusals(t, refusals, c.refused, c.reason)
			if own := owners(got); c.own != "" && own != c.own {
				t.Errorf("addresses are %q, want %q", own, c.own)
			}
			if got.Self == nil || got.Self.Name != "self" {
				t.Errorf("self is %v", got.Self)
			}
		})
	}
}

// owners returns the addresses of each peer and keyless node, by last parts.
func owners(t cluster.Table) string {
	var out []string
	for _, n := range slices.Concat(t.Peers, t.Keyless) {
		var parts []string
		for _, a := range n.Addresses {
			parts = append(parts, fmt.Sprint(a.As16()[15]))
		}
		out = append(out, n.Name+"="+strings.Join(parts, ","))
	}
	return strings.Join(out, " ")
}

// checkRefusals expects refusals of these nodes, separated by blanks, one of which contains reason.
func checkRefusals(t *testing.T, refusals []cluster.Refusal, nodes, reason string) {
	t.Helper()
	refused := map[string]bool{}
	found := false
	for _, r := range refusals {
		found = found || strings.Contains(r.Reason, reason)
		refused[r.Node] = true
	}
	if got := strings.Join(slices.Sorted(maps.Keys(refused)), " "); got != nodes {
		t.Errorf("refused %q, want %q: %v", got, nodes, refusals)
	}
	if !found && nodes != "" {
		t.Errorf("no reason holds %q: %v", reason, refusals)
	}
}
