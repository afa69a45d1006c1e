package agent

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/hostnet/rtnetlink"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// peer is a node with a claim; its endpoints are its addresses.
func peer(name string, mtu int, key byte, nodeAddrs []netip.Addr,
	pods []netip.Prefix) cluster.Node {
	n := cluster.Node{Name: name, Addresses: nodeAddrs, PodPrefixes: pods, Claim: &cluster.Claim{
		Keys: []cluster.Key{{Public: wgkey.Public{key}}}, PodPrefixes: pods, MTU: mtu,
	}}
	for _, a := range nodeAddrs {
		n.Claim.Endpoints = append(n.Claim.Endpoints, netip.AddrPortFrom(a, abi.TunnelPort))
	}
	return n
}

// two is a dual-stack cluster of this node and one peer.
func two(t *testing.T) inputs {
	t.Helper()
	key, err := wgkey.Generate()
	errtest.Must(t, err)
	cfg := config.Default()
	cfg.Node = "a"
	cfg.ClusterRanges = prefixes("198.19.0.0/16", "fd42:1::/48")
	cfg.ServiceRanges = prefixes("198.18.128.0/20", "fd42:2::/112")
	self := cluster.Node{Name: "a", Addresses: addrs("198.18.0.11", "fd42::b"),
		PodPrefixes: prefixes("198.19.1.0/24", "fd42:1:0:1::/64")}
	b := peer("b", 1500, 2, addrs("198.18.0.12", "fd42::c"),
		prefixes("198.19.2.0/24", "fd42:1:0:2::/64"))
	return inputs{
		cfg: cfg, key: key, complete: true, synced: true, underlayMTU: 1500,
		localAddrs: addrs("198.18.0.11", "fd42::b"),
		table: cluster.Table{Self: &self, Peers: []cluster.Node{b},
			NodeAddrs: addrs("198.18.0.11", "198.18.0.12", "fd42::b", "fd42::c")},
	}
}

func TestDecideForTwoNodes(t *testing.T) {
	in := two(t)
	d := decide(in)
	if len(d.problems) > 0 {
		t.Fatalf("problems: %v", d.problems)
	}

	want := hostnet.Want{
		Devices: []hostnet.TunnelDevice{{Name: "veil0", MTU: 1440}},
		Peers: []hostnet.Peer{{
			Name: "b", PodPrefixes: prefixes("198.19.2.0/24", "fd42:1:0:2::/64"),
			NodeAddrs: addrs("198.18.0.12", "fd42::c"), Devices: []string{"veil0"},
		}},
		ClusterRanges: in.cfg.ClusterRanges, ServiceRanges: in.cfg.ServiceRanges,
		NodeAddrs: in.table.NodeAddrs, SelfAddrs: addrs("198.18.0.11", "fd42::b"), Masquerade: true,
		Flowtable: true, TunnelPort: abi.TunnelPort, ClosedRanges: in.cfg.ClosedLinkLocal(),
	}

	ip := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
	if diff := cmp.Diff(want, d.host, ip); diff != "" {
		t.Errorf("routing (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(in.table.Self.PodPrefixes, d.guard.PodPrefixes, ip); diff != "" {
		t.Errorf("the guard's pod prefixes (-want +got):\n%s", diff)
	}

	wantClaim := &cluster.Claim{
		Keys: []cluster.Key{{Public: in.key.Public()}},
		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.11:51820"),
			netip.MustParseAddrPort("[fd42::b]:51820")},
		PodPrefixes: in.table.Self.PodPrefixes,
		MTU:         1500,
		Features:    cluster.Features(),
	}
	if diff := cmp.Diff(wantClaim, d.claim, ip); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}

	if len(d.tunnel.Devices) != 1 || len(d.tunnel.Devices[0].Peers) != 1 || !d.tunnel.Prune {
		t.Fatalf("tunnel: %d devices", len(d.tunnel.Devices))
	}
	allowed := prefixes("198.18.0.12/32", "198.19.2.0/24", "fd42::c/128", "fd42:1:0:2::/64")
	if diff := cmp.Diff(allowed, d.tunnel.Devices[0].Peers[0].AllowedIPs, ip,
		cmpopts.SortSlices(func(a, b netip.Prefix) bool {
			return a.String() < b.String()
		})); diff != "" {
		t.Errorf("allowed IPs (-want +got):\n%s", diff)
	}
}

// Tunnel datagrams are taken from the addresses of believed nodes, and an endpoint is one of them.
func TestDecideFromWhereTunnelDatagramsAreTaken(t *testing.T) {
	b := addrs("198.18.0.12", "fd42::c")
	for _, tt := range []struct {
		name   string
		change func(*inputs)
		want   *guard.Datagrams
		// sources are the sources that the tunnel accepts from its peer.
		sources []netip.Addr
		text    string
	}{
		{"all nodes bind their source", func(*inputs) {},
			&guard.Datagrams{Port: abi.TunnelPort, Sources: b, Bind: true}, b, "believed nodes"},
		{"an endpoint is contested", func(in *inputs) { in.table.Peers[0].Addresses = b[:1] },
			&guard.Datagrams{Port: abi.TunnelPort, Sources: b, Bind: true}, b, "believed nodes"},
		{"a node is of an older version",
			func(in *inputs) { in.table.Peers[0].Claim.Features = nil },
			&guard.Datagrams{Bind: true}, nil, "node b"},
		{"the source has not said all yet", func(in *inputs) {
			in.synced, in.table.Peers[0].Claim.Features = false, nil
		},
			&guard.Datagrams{Port: abi.TunnelPort, Sources: b, Add: true, Bind: true}, nil,
			"before"},
		{"the source is a snapshot", func(in *inputs) {
			in.cfg.Source.Kind, in.table.Peers[0].Claim.Features = config.SourceSnapshot, nil
		}, &guard.Datagrams{Port: abi.TunnelPort, Sources: b, Bind: true}, b, "believed nodes"},
		{"nodes are behind NAT", func(in *inputs) { in.cfg.Tunnel.Roaming = true },
			&guard.Datagrams{}, nil, "tunnel.roaming"},
		{"there is no other node", func(in *inputs) { in.table.Peers = nil },
			&guard.Datagrams{Port: abi.TunnelPort, Sources: []netip.Addr{}, Bind: true}, nil,
			"believed nodes"},
		{"nothing is known", func(in *inputs) { in.table = cluster.Table{} }, nil, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := two(t)
			in.table.Peers[0].Claim.Features = cluster.Features()
			tt.change(&in)
			d := decide(in)
			ip := cmpopts.EquateComparable(netip.Addr{})
			if diff := cmp.Diff(tt.want, d.guard.Datagrams, ip); diff != "" {
				t.Errorf("datagrams (-want +got):\n%s", diff)
			}
			if !strings.Contains(d.tunnelSources, tt.text) ||
				tt.text == "" && d.tunnelSources != "" {
				t.Errorf("status says %q, want %q", d.tunnelSources, tt.text)
			}

			for _, dev := range d.tunnel.Devices {
				for _, p := range dev.Peers {
					if diff := cmp.Diff(tt.sources, p.Sources, ip); diff != "" {
						t.Errorf("the peer's sources (-want +got):\n%s", diff)
					}
				}
			}
		})
	}
}

func TestDecideNamesWhatKeepsTheNodeClosed(t *testing.T) {
	tests := []struct {
		name   string
		change func(*inputs)
		want   string
	}{
		{"the node is not in the cluster", func(in *inputs) { in.table.Self = nil },
			`node "a" is not in the cluster`},
		{"nothing was heard of the cluster yet",
			func(in *inputs) {
				in.table.Self, in.complete = nil, false
			}, "the API server has not sent the nodes yet"},
		{"there is no snapshot yet", func(in *inputs) {
			in.table.Self, in.complete = nil, false
			in.cfg.Source = config.Source{Kind: config.SourceSnapshot, File: "/run/s.json"}
		}, "source.file /run/s.json has not been read yet"},
		{"the node has no pod prefix", func(in *inputs) { in.table.Self.PodPrefixes = nil },
			"Node.spec.podCIDRs"},
		{"its addresses are on no link", func(in *inputs) { in.localAddrs = addrs("198.18.0.99") },
			"--node-ip"},
		{"the underlay is too narrow for IPv6 pods", func(in *inputs) { in.underlayMTU = 1339 },
			"1340"},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := two(t)
			tt.change(&in)
			d := decide(in)
			if len(d.problems) != 1 || !strings.Contains(d.problems[0], tt.want) {
				t.Errorf("problems %q do not say %q", d.problems, tt.want)
			}
			if d.claim != nil || d.podMTU != 0 {
				t.Errorf("it claims %v with MTU %d all the same", d.claim, d.podMTU)
			}
			// In spite of the problem, the node must be closed.
			if len(d.guard.Ranges) != 4 || len(d.host.ClusterRanges) != 2 ||
				len(d.host.NodeAddrs) != 4 {
				t.Errorf("it is not closed: %+v", d.host)
			}
		})
	}
}

func TestOutsideClosesNodeRanges(t *testing.T) {
	in := two(t)
	in.cfg.NodeRanges = prefixes("198.18.0.0/24", "fd42::/64")
	in.table.APIServers = addrs("198.18.0.12", "198.18.0.250", "203.0.113.1")
	linkLocal := in.cfg.ClosedLinkLocal() // always
	if d := decide(in); !slices.Equal(d.host.ClosedRanges, linkLocal) || len(d.notes) > 0 {
		t.Errorf("outside is not written, but %v is closed: %q", d.host.ClosedRanges, d.notes)
	}
	in.cfg.Outside = prefixes("fd42::/65")
	d := decide(in)
	want := append(prefixes("198.18.0.0/24", "fd42::8000:0:0:0/65"), linkLocal...)
	if got := d.host.ClosedRanges; !slices.Equal(got, want) {
		t.Errorf("closed %v", got)
	}
	if len(d.problems) > 0 || len(d.notes) != 1 || !strings.Contains(d.notes[0], "198.18.0.250") {
		t.Errorf("problems %q, notes %q: want one of the API server that is closed", d.problems,
			d.notes)
	}
	// Before anything is known of the cluster it is closed, too.
	in.table, in.complete = cluster.Table{}, false
	if got := decide(in).host.ClosedRanges; !slices.Equal(got, want) {
		t.Errorf("without a table closed %v", got)
	}
}

func TestRouteMTUIsTheNarrowest(t *testing.T) {
	tests := []struct {
		name   string
		change func(*inputs)
		want   int // 0 is the device's 1440
	}{
		{"all alike", func(*inputs) {}, 0},
		{"the peer's underlay is narrower", func(in *inputs) { in.table.Peers[0].Claim.MTU = 1450 },
			1376}, // of 1390: padded packets must fit
		{"the peer's underlay is wider", func(in *inputs) {
			in.table.Peers[0].Claim.MTU = 9000
		}, 0},
		{"the peer claims what cannot work",
			func(in *inputs) { in.table.Peers[0].Claim.MTU = 100 }, 0},
		{"the probe found less", func(in *inputs) { in.pathMTU = map[string]int{"b": 1296} }, 1296},
		{"an earlier veild left another number",
			func(in *inputs) { in.pathMTU = map[string]int{"b": 1311} }, 1296},
		{"the probe found another peer's",
			func(in *inputs) { in.pathMTU = map[string]int{"c": 1296} }, 0},
		{"the peer is reached over IPv6 only", func(in *inputs) {
			in.table.Peers[0].Claim.Endpoints = in.table.Peers[0].Claim.Endpoints[1:]
		}, 1408}, // of 1420
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := two(t)
			tt.change(&in)
			if got := decide(in).host.Peers[0].MTU; got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestPathTooNarrowForIPv6CarriesIPv4Only(t *testing.T) {
	in := two(t)
	in.pathMTU = map[string]int{"b": 1264}
	d := decide(in)
	p := d.host.Peers[0]
	if len(p.PodPrefixes) != 1 || !p.PodPrefixes[0].Addr().Is4() || len(p.NodeAddrs) != 1 ||
		p.MTU != 1264 {
		t.Errorf("routes %+v", p)
	}
	if len(d.notes) != 1 || !strings.Contains(d.notes[0], "1280") || len(d.problems) != 0 {
		t.Errorf("notes %q, problems %q", d.notes, d.problems)
	}
}

func TestWideMTUIsNoted(t *testing.T) {
	for name, tt := range map[string]struct {
		configured int
		link       underlay.Link
		noted      bool
	}{
		"none":           {0, underlay.Link{Name: "eth9", MTU: 1500}, false},
		"the link's":     {1500, underlay.Link{Name: "eth9", MTU: 1500}, false},
		"less":           {1400, underlay.Link{Name: "eth9", MTU: 1500}, false},
		"more":           {9000, underlay.Link{Name: "eth9", MTU: 1500}, true},
		"no link so far": {9000, underlay.Link{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := two(t)
			in.wideMTU = node.WideMTU(tt.configured, tt.link)
			d := decide(in)
			if noted := len(d.notes) == 1 &&
				strings.Contains(d.notes[0], "more than the MTU 1500 of eth9"); noted != tt.noted ||
				len(d.problems) != 0 {
				t.Errorf("notes %q, problems %q", d.notes, d.problems)
			}
		})
	}
}

func TestPeerOnAnotherFamilyStaysUnreachable(t *testing.T) {
	in := two(t)
	in.localAddrs = addrs("198.18.0.11")
	in.table.Peers[0].Claim.Endpoints = in.table.Peers[0].Claim.Endpoints[1:]
	p := decide(in).host.Peers[0]
	if len(p.Devices) != 0 {
		t.Errorf("a peer without a common family has device %v", p.Devices)
	}
}

// The last good table may lack a peer that veild added before it was killed.
func TestNoPeerIsRemovedBeforeTheFirstList(t *testing.T) {
	for name, complete := range map[string]bool{"no last good table": false,
		"a last good table": true} {
		t.Run(name, func(t *testing.T) {
			in := two(t)
			in.complete, in.synced = complete, false
			if decide(in).tunnel.Prune {
				t.Error("peers would be removed")
			}
		})
	}
}

func TestAddressMayBeOnAnotherLinkThanNodeTraffic(t *testing.T) {
	in := two(t)
	in.localAddrs, in.otherAddrs = addrs("198.18.0.99"), addrs("198.18.0.11", "198.18.0.99")
	d := decide(in)
	if len(d.problems) > 0 || !slices.Equal(d.host.SelfAddrs, addrs("198.18.0.11")) {
		t.Errorf("own addresses %v, problems %q", d.host.SelfAddrs, d.problems)
	}
}

// A node that publishes this node's key, before this node does or after this node's VeilNode was
// deleted, is refused. As a peer, it would make every configuration of the device fail.
func TestOwnKeyIsThisNodesAlone(t *testing.T) {
	in := two(t)
	own := in.key.Public()
	thief := peer("b", 1500, 2, addrs("198.18.0.12"), prefixes("198.19.2.0/24"))
	thief.Claim.Keys[0].Public = own
	state := withOwnKey(cluster.State{Synced: true, Nodes: []cluster.Node{thief, *in.table.Self}},
		"a", own)
	table, refusals := cluster.Resolve(in.cfg.Rules(nil), state, nil)
	if len(table.Peers) != 0 || len(refusals) != 1 || refusals[0].Node != "b" {
		t.Errorf("peers %v, refusals %v", table.Peers, refusals)
	}
}

func TestProbesOfOthersAreForgotten(t *testing.T) {
	a := &Agent{wake: make(chan struct{}, 1)}
	a.view.Store(&view{news: news{pathMTU: map[string]int{"b": 1296, "gone": 1300}}})
	l := &loop{Agent: a, probes: probes{ctx: t.Context(), run: func(func() error) {},
		log: slog.New(slog.DiscardHandler)}}
	peers := []pathmtu.Peer{{Name: "b", Device: "veil0", Addr: addrs("198.18.0.12")[0],
		DeviceMTU: 1440}}
	sources := addrs("198.18.0.11")
	l.probe(sources, peers)
	if found := a.view.Load().pathMTU; !maps.Equal(found, map[string]int{"b": 1296}) {
		t.Errorf("found %v after a peer went", found)
	}
	select {
	case <-a.wake:
	default:
		t.Error("the loop does not hear of it")
	}
}

// With services, marks are reflected, so that messages that the kernel sends about a service
// packet, such as resets, take the same way as the packet.
func TestMarksAreReflectedForServices(t *testing.T) {
	for proxy, want := range map[string]bool{config.ServiceProxyNone: false,
		config.ServiceProxyEBPF: true} {
		in := two(t)
		in.cfg.ServiceProxy = proxy
		if got := decide(in).host.ReflectMarks; got != want {
			t.Errorf("%s: reflected is %t, want %t", proxy, got, want)
		}
	}
}

func TestPathMTUOfAnEarlierVeildIsRecalled(t *testing.T) {
	in := two(t)
	routes := hostnet.Plan(decide(withPathMTU(in, 1296)).host).Routes
	if got := routedMTU(routes, in.table.Peers); !maps.Equal(got, map[string]int{"b": 1296}) {
		t.Errorf("recalled %v", got)
	}
	if got := routedMTU(hostnet.Plan(decide(in).host).Routes, in.table.Peers); len(got) != 0 {
		t.Errorf("recalled %v from routes as wide as the device", got)
	}
}

func withPathMTU(in inputs, mtu int) inputs {
	in.pathMTU = map[string]int{"b": mtu}
	return in
}

// A node that had tunnels follows its peers, regardless of its own problems.
func TestPeersAreFollowedThroughAProblem(t *testing.T) {
	for name, spoil := range map[string]func(*inputs){
		"its Node was deleted":       func(in *inputs) { in.table.Self = nil },
		"its underlay became narrow": func(in *inputs) { in.underlayMTU = 1300 },
	} {
		t.Run(name, func(t *testing.T) {
			in := two(t)
			before := decide(in)
			in.lastSelf, in.lastMTU = before.self, before.podMTU
			spoil(&in)
			in.table.Peers = nil
			d := decide(in)
			if len(d.problems) != 1 || d.claim != nil {
				t.Errorf("problems %q, claim %v", d.problems, d.claim)
			}
			if len(d.tunnel.Devices) != 1 || len(d.tunnel.Devices[0].Peers) != 0 ||
				d.podMTU != 1440 {
				t.Errorf("the removed peer stays: %d devices, mtu %d", len(d.tunnel.Devices),
					d.podMTU)
			}
		})
	}
}

// If veild was killed between an apply and the snapshot, only the guard's map has the address of a
// new node. The address stays closed.
func TestNodeOfTheGuardAloneStaysClosed(t *testing.T) {
	in := two(t)
	in.table.NodeAddrs = union(in.table.NodeAddrs, addrs("198.18.0.13", "198.18.0.12"))
	want := addrs("198.18.0.11", "198.18.0.12", "198.18.0.13", "fd42::b", "fd42::c")
	d := decide(in)
	if !slices.Equal(d.guard.NodeAddrs, want) || !slices.Equal(d.host.NodeAddrs, want) {
		t.Errorf("closed for %v and %v, want %v", d.guard.NodeAddrs, d.host.NodeAddrs, want)
	}
	unreachable := slices.ContainsFunc(hostnet.Plan(d.host).Routes, func(r rtnetlink.Route) bool {
		return r.Table == abi.TablePod && r.Device == "" &&
			r.Dst == netip.MustParsePrefix("198.18.0.13/32")
	})
	if !unreachable {
		t.Error("its address is not unreachable for pods")
	}
}

var prefixes, addrs = nettest.Prefixes, nettest.Addrs
