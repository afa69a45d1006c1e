package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/pathmtu"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
)

// Planner makes the decisions of successive turns. Each equals the decision of the function Decide,
// but a planner plans only peers that changed, and parts of the decision that do not change keep
// their memory. The zero value is ready for use.
type Planner struct {
	tunnel tunnel.Planner
	// Changed is the difference of the peers of this turn from those of the last.
	Changed cluster.Delta
	last    []cluster.Node

	// ways holds the routes to peers for the inputs common and paths. peers and notes are the parts
	// of all in wayList.
	ways    cluster.Memo[way]
	common  routeInputs
	paths   map[string]int
	wayList []way
	peers   []hostnet.Peer
	notes   []string

	// probed holds the peers whose paths are probed, for the inputs probedBy.
	probed   cluster.Memo[pathmtu.Peer]
	probedBy routeInputs

	places cluster.Memo[place]
	// placeList, keyless, nodeAddrs and self are of the last call of samePlaces.
	placeList []place
	keyless   []cluster.Node
	nodeAddrs []netip.Addr
	self      *cluster.Node

	senders cluster.Memo[sender]
	// sources are the sources of all in bound, sorted.
	bound   []sender
	sources []netip.Addr
}

// routeInputs holds the inputs that concern the routes to each peer, besides the paths.
type routeInputs struct {
	underlay               cluster.Families
	underlayMTU, deviceMTU int
}

// way holds the routes to a peer, and a note if it is unreachable.
type way struct {
	peer hostnet.Peer
	note string
}

func sameWay(a, b way) bool { return a.note == b.note && a.peer.Equal(b.peer) }

// sender holds the sources of tunnel datagrams of a peer.
type sender struct {
	sources []netip.Addr
	// bound reports whether the peer's version sends from these sources only.
	bound bool
}

func sameSender(a, b sender) bool {
	return a.bound == b.bound && slices.Equal(a.sources, b.sources)
}

// senderOf returns the sender of a peer. A node of a site counts as bound regardless of its
// version, because another cluster must not open the port of this one.
func senderOf(n cluster.Node) sender {
	return sender{n.TunnelSources(), n.Claim == nil || n.Site() != "" ||
		n.Claim.Has(cluster.BoundSource)}
}

// datagrams decides from which sources tunnel datagrams are accepted: from the addresses of
// believed nodes, once every node sends only from its addresses. text describes the sources for
// status.
func (p *Planner) datagrams(in Inputs) (d *guard.Datagrams, text string) {
	if in.Config.Tunnel.Roaming {
		return &guard.Datagrams{}, "anywhere: tunnel.roaming is set"
	}
	senders := p.senders.Map(p.Changed, sameSender, senderOf)
	// A snapshot source does not contain versions of nodes. Its nodes count as having this version.
	if in.Synced && in.Config.Source.Kind == config.SourceKubernetes {
		i := slices.IndexFunc(senders, func(s sender) bool { return !s.bound })
		if i >= 0 {
			return &guard.Datagrams{Bind: true}, fmt.Sprintf(
				"anywhere: node %s has an older version, which sends from "+
					"any of its addresses: upgrade it, or delete its Node", in.Table.Peers[i].Name)
		}
	}

	if p.sources == nil || !SameSlice(senders, p.bound) {
		p.bound, p.sources = senders, []netip.Addr{}
		for _, s := range senders {
			p.sources = append(p.sources, s.sources...)
		}
		slices.SortFunc(p.sources, netip.Addr.Compare)
		p.sources = slices.Compact(p.sources)
	}
	d = &guard.Datagrams{Port: uint16(in.Config.Tunnel.Port), Sources: p.sources, Add: !in.Synced,
		Bind: true}
	if d.Add {
		return d, "the same sources as before; the versions of other nodes are not known yet"
	}
	return d, "believed nodes"
}

// hostPeers returns the routes to believed peers, and notes about unreachable peers. A peer without
// a common family has no device. If the path to a peer is too narrow for IPv6, the peer has no IPv6
// routes: its IPv6 addresses are then unreachable, instead of a black hole.
func (p *Planner) hostPeers(in Inputs, underlay cluster.Families,
	deviceMTU int) (peers []hostnet.Peer, notes []string) {
	if now := (routeInputs{underlay, in.UnderlayMTU, deviceMTU}); now != p.common ||
		!maps.Equal(in.PathMTU, p.paths) {
		p.ways.Forget()
		p.common, p.paths = now, in.PathMTU
	}
	ways := p.ways.Map(p.Changed, sameWay, func(n cluster.Node) way {
		peer, note := hostPeer(n, in, underlay, deviceMTU)
		return way{peer, note}
	})
	if SameSlice(ways, p.wayList) {
		return p.peers, p.notes
	}

	p.wayList, p.peers, p.notes = ways, make([]hostnet.Peer, 0, len(ways)), nil
	for _, w := range ways {
		p.peers = append(p.peers, w.peer)
		if w.note != "" {
			p.notes = append(p.notes, w.note)
		}
	}
	return p.peers, p.notes
}

// ProbePeers returns the peers whose paths are probed, with an address of the family that their
// tunnel uses. If no peer changed, it is the slice of the last turn.
func (p *Planner) ProbePeers(in Inputs, d Decision) []pathmtu.Peer {
	underlay := cluster.Node{Addresses: d.Host.SelfAddrs}.AddressFamilies()
	if now := (routeInputs{underlay: underlay, deviceMTU: d.PodMTU}); now != p.probedBy {
		p.probed.Forget()
		p.probedBy = now
	}
	same := func(a, b pathmtu.Peer) bool { return a == b }
	peers := p.probed.Map(p.Changed, same, func(n cluster.Node) pathmtu.Peer {
		endpoint, ok := n.Endpoint(underlay)
		if !ok || !slices.Contains(n.Addresses, endpoint.Addr()) {
			// A contested address is an endpoint, but no packet inside the tunnel has it.
			return pathmtu.Peer{}
		}
		return pathmtu.Peer{Name: n.Name, Device: DeviceName, Addr: endpoint.Addr(),
			DeviceMTU: d.PodMTU}
	})
	unprobed := func(p pathmtu.Peer) bool { return p.Device == "" }
	if slices.ContainsFunc(peers, unprobed) {
		return slices.DeleteFunc(slices.Clone(peers), unprobed)
	}
	return peers
}

// place holds what features use of a peer besides its name.
type place struct {
	addrs     []netip.Addr
	prefixes  []netip.Prefix
	endpoints []netip.AddrPort
}

func placeOf(n cluster.Node) place {
	p := place{addrs: n.Addresses, prefixes: n.PodPrefixes}
	if n.Claim != nil {
		p.endpoints = n.Claim.Endpoints
	}
	return p
}

func (p place) equal(q place) bool {
	return slices.Equal(p.addrs, q.addrs) && slices.Equal(p.prefixes, q.prefixes) &&
		slices.Equal(p.endpoints, q.endpoints)
}

// SamePlaces returns feature.Turn.SamePlaces for the table of the last Decide. If in doubt, it
// returns false.
func (p *Planner) SamePlaces(t cluster.Table) bool {
	if !p.Changed.Is(t.Peers) {
		p.placeList = nil
		return false
	}
	places := p.places.Map(p.Changed, place.equal, placeOf)
	same := p.placeList != nil && SameSlice(places, p.placeList) &&
		SameSlice(t.Keyless, p.keyless) && SameSlice(t.NodeAddrs, p.nodeAddrs) &&
		t.Self == p.self
	p.placeList, p.keyless, p.nodeAddrs, p.self = places, t.Keyless, t.NodeAddrs, t.Self
	return same
}

// SameSlice reports whether a and b are the same slice, with the same memory.
func SameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
