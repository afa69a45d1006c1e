package tunnel

import (
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Local is a device of this node before its peers are known.
type Local struct {
	Name       string
	Epoch      uint32
	Lane       int
	ListenPort int
	PrivateKey wgkey.Private
}

// Inputs are the inputs of Plan.
type Inputs struct {
	Devices []Local
	// Mark and MTU apply to every device.
	Mark uint32
	MTU  int
	// Peers are the believed nodes (cluster.Table.Peers). A peer without a key is left out.
	Peers []cluster.Node
	// Changed is the difference of Peers from the last ones. The zero value means that it is not
	// known.
	Changed cluster.Delta
	// Underlay4 and Underlay6 report which families this node's underlay has.
	Underlay4, Underlay6 bool
	// Keepalive applies to every peer.
	Keepalive time.Duration
	// Roaming allows a peer's endpoint to have any address.
	Roaming bool
	// Prune is cluster.State.Synced.
	Prune bool
}

// Plan returns the Spec for the inputs. Each node is a peer of each device, with its newest key and
// its first endpoint of a family that this node has too. The allowed IPs of a node are its pod
// prefixes and its addresses, because traffic between nodes and pods also uses the tunnel. Plan is
// pure.
func Plan(in Inputs) Spec { return new(Planner).Plan(in) }

// Planner plans successive inputs. Each Spec equals the result of Plan, but the Planner plans only
// peers that changed. The zero value is ready for use. It is not safe for concurrent use.
type Planner struct {
	peers  cluster.Memo[Peer]
	common common
}

// common holds the inputs that concern each peer.
type common struct {
	underlay  cluster.Families
	keepalive time.Duration
	roaming   bool
}

// Plan is the function Plan. The peers of in must be sorted by name. The caller must not change
// them, or the peers of the Spec.
func (p *Planner) Plan(in Inputs) Spec {
	c := common{cluster.Families{V4: in.Underlay4, V6: in.Underlay6}, in.Keepalive, in.Roaming}
	if c != p.common {
		p.peers.Forget()
		p.common = c
	}
	same := func(a, b Peer) bool { return a.equal(&b) }
	if !in.Changed.Is(in.Peers) {
		in.Changed = cluster.NewDelta(nil, in.Peers)
	}
	peers := p.peers.Map(in.Changed, same, c.peer)
	keyless := func(p Peer) bool { return p.PublicKey == wgkey.Public{} }
	if slices.ContainsFunc(peers, keyless) {
		peers = slices.DeleteFunc(slices.Clone(peers), keyless)
	}

	spec := Spec{Prune: in.Prune, Underlay: c.underlay}
	for _, l := range in.Devices {
		spec.Devices = append(spec.Devices, Device{
			Name: l.Name, Epoch: l.Epoch, Lane: l.Lane, ListenPort: l.ListenPort,
			PrivateKey: l.PrivateKey, Mark: in.Mark, MTU: in.MTU, Peers: peers,
		})
	}
	return spec
}

// peer returns the peer for a node. It has no public key if the node has none.
func (c common) peer(n cluster.Node) Peer {
	key, _ := n.NewestKey()
	// Without a common family the peer must initiate.
	endpoint, _ := n.Endpoint(c.underlay)
	p := Peer{Name: n.Name, PublicKey: key.Public, Endpoint: endpoint, AllowedIPs: n.AllowedIPs(),
		Keepalive: c.keepalive}
	if !c.roaming {
		p.Sources = n.TunnelSources()
	}
	return p
}
