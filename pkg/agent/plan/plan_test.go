package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/agent/plan"
	"github.com/kubeveil/kubeveil/pkg/agent/plan/plantest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/hostnet/underlay"
	"github.com/kubeveil/kubeveil/pkg/node"
)

func TestDecideForTwoNodes(t *testing.T) {
	in := plantest.Two(t)
	d := plan.Decide(in)
	if len(d.Problems) > 0 {
		t.Fatalf("problems: %v", d.Problems)
	}

	want := hostnet.Want{
		Devices: []hostnet.TunnelDevice{{Name: "veil0", MTU: 1440}},
		Peers: []hostnet.Peer{{
			Name: "b", PodPrefixes: prefixes("198.19.2.0/24", "fd42:1:0:2::/64"),
			NodeAddrs: addrs("198.18.0.12", "fd42::c"), Devices: []string{"veil0"},
		}},
		ClusterRanges: in.Config.ClusterRanges, ServiceRanges: in.Config.ServiceRanges,
		NodeAddrs: in.Table.NodeAddrs, SelfAddrs: addrs("198.18.0.11", "fd42::b"), Masquerade: true,
		Flowtable: true, TunnelPort: abi.TunnelPort, ClosedRanges: in.Config.ClosedLinkLocal(),
	}

	ip := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
	if diff := cmp.Diff(want, d.Host, ip); diff != "" {
		t.Errorf("routing (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(in.Table.Self.PodPrefixes, d.Guard.PodPrefixes, ip); diff != "" {
		t.Errorf("the guard's pod prefixes (-want +got):\n%s", diff)
	}

	wantClaim := &cluster.Claim{
		Keys: []cluster.Key{{Public: in.Key.Public()}},
		Endpoints: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.11:51820"),
			netip.MustParseAddrPort("[fd42::b]:51820")},
		PodPrefixes: in.Table.Self.PodPrefixes,
		MTU:         1500,
		Features:    cluster.Features(),
	}
	if diff := cmp.Diff(wantClaim, d.Claim, ip); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}

	if len(d.Tunnel.Devices) != 1 || len(d.Tunnel.Devices[0].Peers) != 1 || !d.Tunnel.Prune {
		t.Fatalf("tunnel: %d devices", len(d.Tunnel.Devices))
	}
	allowed := prefixes("198.18.0.12/32", "198.19.2.0/24", "fd42::c/128", "fd42:1:0:2::/64")
	if diff := cmp.Diff(allowed, d.Tunnel.Devices[0].Peers[0].AllowedIPs, ip,
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
		change func(*plan.Inputs)
		want   *guard.Datagrams
		// sources are the sources that the tunnel accepts from its peer.
		sources []netip.Addr
		text    string
	}{
		{"all nodes bind their source", func(*plan.Inputs) {},
			&guard.Datagrams{Port: abi.TunnelPort, Sources: b, Bind: true}, b, "believed nodes"},
		{"an endpoint is contested", func(in *plan.Inputs) { in.Table.Peers[0].Addresses = b[:1] },
			&guard.Datagrams{Port: abi.TunnelPort, Sources: b, Bind: true}, b, "believed nodes"},
		{"a node is of an older version",
			func(in *plan.Inputs) { in.Table.Peers[0].Claim.Features = nil },
			&guard.Datagrams{Bind: true}, nil, "node b"},
		{"the source has not said all yet", func(in *plan.Inputs) {
			in.Synced, in.Table.Peers[0].Claim.Features = false, nil
		},
			&guard.Datagrams{Port: abi.TunnelPort, Sources: b, Add: true, Bind: true}, nil,
			"before"},
		{"the source is a snapshot", func(in *plan.Inputs) {
			in.Config.Source.Kind, in.Table.Peers[0].Claim.Features = config.SourceSnapshot, nil
		}, &guard.Datagrams{Port: abi.TunnelPort, Sources: b, Bind: true}, b, "believed nodes"},
		{"nodes are behind NAT", func(in *plan.Inputs) { in.Config.Tunnel.Roaming = true },
			&guard.Datagrams{}, nil, "tunnel.roaming"},
		{"there is no other node", func(in *plan.Inputs) { in.Table.Peers = nil },
			&guard.Datagrams{Port: abi.TunnelPort, Sources: []netip.Addr{}, Bind: true}, nil,
			"believed nodes"},
		{"nothing is known", func(in *plan.Inputs) { in.Table = cluster.Table{} }, nil, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := plantest.Two(t)
			in.Table.Peers[0].Claim.Features = cluster.Features()
			tt.change(&in)
			d := plan.Decide(in)
			ip := cmpopts.EquateComparable(netip.Addr{})
			if diff := cmp.Diff(tt.want, d.Guard.Datagrams, ip); diff != "" {
				t.Errorf("datagrams (-want +got):\n%s", diff)
			}
			if !strings.Contains(d.TunnelSources, tt.text) ||
				tt.text == "" && d.TunnelSources != "" {
				t.Errorf("status says %q, want %q", d.TunnelSources, tt.text)
			}

			for _, dev := range d.Tunnel.Devices {
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
		change func(*plan.Inputs)
		want   string
	}{
		{"the node is not in the cluster", func(in *plan.Inputs) { in.Table.Self = nil },
			`node "a" is not in the cluster`},
		{"nothing was heard of the cluster yet",
			func(in *plan.Inputs) {
				in.Table.Self, in.Complete = nil, false
			}, "the API server has not sent the nodes yet"},
		{"there is no snapshot yet", func(in *plan.Inputs) {
			in.Table.Self, in.Complete = nil, false
			in.Config.Source = config.Source{Kind: config.SourceSnapshot, File: "/run/s.json"}
		}, "source.file /run/s.json has not been read yet"},
		{"the node has no pod prefix", func(in *plan.Inputs) { in.Table.Self.PodPrefixes = nil },
			"Node.spec.podCIDRs"},
		{"its addresses are on no link",
			func(in *plan.Inputs) { in.LocalAddrs = addrs("198.18.0.99") },
			"--node-ip"},
		{"the underlay is too narrow for IPv6 pods",
			func(in *plan.Inputs) { in.UnderlayMTU = 1339 },
			"1340"},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := plantest.Two(t)
			tt.change(&in)
			d := plan.Decide(in)
			if len(d.Problems) != 1 || !strings.Contains(d.Problems[0], tt.want) {
				t.Errorf("problems %q do not say %q", d.Problems, tt.want)
			}
			if d.Claim != nil || d.PodMTU != 0 {
				t.Errorf("it claims %v with MTU %d all the same", d.Claim, d.PodMTU)
			}
			// In spite of the problem, the node must be closed.
			if len(d.Guard.Ranges) != 4 || len(d.Host.ClusterRanges) != 2 ||
				len(d.Host.NodeAddrs) != 4 {
				t.Errorf("it is not closed: %+v", d.Host)
			}
		})
	}
}

func TestOutsideClosesNodeRanges(t *testing.T) {
	in := plantest.Two(t)
	in.Config.NodeRanges = prefixes("198.18.0.0/24", "fd42::/64")
	in.Table.APIServers = addrs("198.18.0.12", "198.18.0.250", "203.0.113.1")
	linkLocal := in.Config.ClosedLinkLocal() // always
	if d := plan.Decide(in); !slices.Equal(d.Host.ClosedRanges, linkLocal) || len(d.Notes) > 0 {
		t.Errorf("outside is not written, but %v is closed: %q", d.Host.ClosedRanges, d.Notes)
	}
	in.Config.Outside = prefixes("fd42::/65")
	d := plan.Decide(in)
	want := append(prefixes("198.18.0.0/24", "fd42::8000:0:0:0/65"), linkLocal...)
	if got := d.Host.ClosedRanges; !slices.Equal(got, want) {
		t.Errorf("closed %v", got)
	}
	if len(d.Problems) > 0 || len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "198.18.0.250") {
		t.Errorf("problems %q, notes %q: want one of the API server that is closed", d.Problems,
			d.Notes)
	}
	// Before anything is known of the cluster it is closed, too.
	in.Table, in.Complete = cluster.Table{}, false
	if got := plan.Decide(in).Host.ClosedRanges; !slices.Equal(got, want) {
		t.Errorf("without a table closed %v", got)
	}
}

func TestRouteMTUIsTheNarrowest(t *testing.T) {
	tests := []struct {
		name   string
		change func(*plan.Inputs)
		want   int // 0 is the device's 1440
	}{
		{"all alike", func(*plan.Inputs) {}, 0},
		{"the peer's underlay is narrower",
			func(in *plan.Inputs) { in.Table.Peers[0].Claim.MTU = 1450 },
			1376}, // of 1390: padded packets must fit
		{"the peer's underlay is wider", func(in *plan.Inputs) {
			in.Table.Peers[0].Claim.MTU = 9000
		}, 0},
		{"the peer claims what cannot work",
			func(in *plan.Inputs) { in.Table.Peers[0].Claim.MTU = 100 }, 0},
		{"the probe found less",
			func(in *plan.Inputs) { in.PathMTU = map[string]int{"b": 1296} }, 1296},
		{"an earlier veild left another number",
			func(in *plan.Inputs) { in.PathMTU = map[string]int{"b": 1311} }, 1296},
		{"the probe found another peer's",
			func(in *plan.Inputs) { in.PathMTU = map[string]int{"c": 1296} }, 0},
		{"the peer is reached over IPv6 only", func(in *plan.Inputs) {
			in.Table.Peers[0].Claim.Endpoints = in.Table.Peers[0].Claim.Endpoints[1:]
		}, 1408}, // of 1420
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := plantest.Two(t)
			tt.change(&in)
			if got := plan.Decide(in).Host.Peers[0].MTU; got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestPathTooNarrowForIPv6CarriesIPv4Only(t *testing.T) {
	in := plantest.Two(t)
	in.PathMTU = map[string]int{"b": 1264}
	d := plan.Decide(in)
	p := d.Host.Peers[0]
	if len(p.PodPrefixes) != 1 || !p.PodPrefixes[0].Addr().Is4() || len(p.NodeAddrs) != 1 ||
		p.MTU != 1264 {
		t.Errorf("routes %+v", p)
	}
	if len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "1280") || len(d.Problems) != 0 {
		t.Errorf("notes %q, problems %q", d.Notes, d.Problems)
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
			in := plantest.Two(t)
			in.WideMTU = node.WideMTU(tt.configured, tt.link)
			d := plan.Decide(in)
			if noted := len(d.Notes) == 1 &&
				strings.Contains(d.Notes[0], "more than the MTU 1500 of eth9"); noted != tt.noted ||
				len(d.Problems) != 0 {
				t.Errorf("notes %q, problems %q", d.Notes, d.Problems)
			}
		})
	}
}

func TestPeerOnAnotherFamilyStaysUnreachable(t *testing.T) {
	in := plantest.Two(t)
	in.LocalAddrs = addrs("198.18.0.11")
	in.Table.Peers[0].Claim.Endpoints = in.Table.Peers[0].Claim.Endpoints[1:]
	p := plan.Decide(in).Host.Peers[0]
	if len(p.Devices) != 0 {
		t.Errorf("a peer without a common family has device %v", p.Devices)
	}
}

// The last good table may lack a peer that veild added before it was killed.
func TestNoPeerIsRemovedBeforeTheFirstList(t *testing.T) {
	for name, complete := range map[string]bool{"no last good table": false,
		"a last good table": true} {
		t.Run(name, func(t *testing.T) {
			in := plantest.Two(t)
			in.Complete, in.Synced = complete, false
			if plan.Decide(in).Tunnel.Prune {
				t.Error("peers would be removed")
			}
		})
	}
}

func TestAddressMayBeOnAnotherLinkThanNodeTraffic(t *testing.T) {
	in := plantest.Two(t)
	in.LocalAddrs, in.OtherAddrs = addrs("198.18.0.99"), addrs("198.18.0.11", "198.18.0.99")
	d := plan.Decide(in)
	if len(d.Problems) > 0 || !slices.Equal(d.Host.SelfAddrs, addrs("198.18.0.11")) {
		t.Errorf("own addresses %v, problems %q", d.Host.SelfAddrs, d.Problems)
	}
}

// With services, marks are reflected, so that messages that the kernel sends about a service
// packet, such as resets, take the same way as the packet.
func TestMarksAreReflectedForServices(t *testing.T) {
	for proxy, want := range map[string]bool{config.ServiceProxyNone: false,
		config.ServiceProxyEBPF: true} {
		in := plantest.Two(t)
		in.Config.ServiceProxy = proxy
		if got := plan.Decide(in).Host.ReflectMarks; got != want {
			t.Errorf("%s: reflected is %t, want %t", proxy, got, want)
		}
	}
}

// A node that had tunnels follows its peers, regardless of its own problems.
func TestPeersAreFollowedThroughAProblem(t *testing.T) {
	for name, spoil := range map[string]func(*plan.Inputs){
		"its Node was deleted":       func(in *plan.Inputs) { in.Table.Self = nil },
		"its underlay became narrow": func(in *plan.Inputs) { in.UnderlayMTU = 1300 },
	} {
		t.Run(name, func(t *testing.T) {
			in := plantest.Two(t)
			before := plan.Decide(in)
			in.LastSelf, in.LastMTU = before.Self, before.PodMTU
			spoil(&in)
			in.Table.Peers = nil
			d := plan.Decide(in)
			if len(d.Problems) != 1 || d.Claim != nil {
				t.Errorf("problems %q, claim %v", d.Problems, d.Claim)
			}
			if len(d.Tunnel.Devices) != 1 || len(d.Tunnel.Devices[0].Peers) != 0 ||
				d.PodMTU != 1440 {
				t.Errorf("the removed peer stays: %d devices, mtu %d", len(d.Tunnel.Devices),
					d.PodMTU)
			}
		})
	}
}

var prefixes, addrs = nettest.Prefixes, nettest.Addrs
