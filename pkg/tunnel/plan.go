package tunnel

import (
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

// Inputs are what Plan decides from.
type Inputs struct {
	Devices []Local
	// Mark and MTU are those of every device.
	Mark uint32
	MTU  int
	// Peers are the believed nodes (cluster.Table.Peers). One without a claim is left out.
	Peers []cluster.Node
	// Underlay4 and Underlay6 say which families the underlay of this node has.
	Underlay4, Underlay6 bool
	// Keepalive is that of every peer.
	Keepalive time.Duration
	// Roaming lets a peer's endpoint have any address.
	Roaming bool
	// Prune is cluster.State.Synced.
	Prune bool
}

// Plan decides which devices and peers there should be. Each node is a peer of
// each device, with its newest key, its first endpoint of a family that this
// node has too, and its pod prefixes and node addresses as allowed IPs: node to
// pod and the replies of pods to nodes are inside.
func Plan(in Inputs) Spec {
	spec := Spec{Prune: in.Prune}
	for _, l := range in.Devices {
		d := Device{
			Name: l.Name, Epoch: l.Epoch, Lane: l.Lane, ListenPort: l.ListenPort,
			PrivateKey: l.PrivateKey, Mark: in.Mark, MTU: in.MTU,
		}
		for _, n := range in.Peers {
			key, ok := n.NewestKey()
			if !ok {
				continue
			}
			// Without one of a common family it is left to the peer to begin.
			endpoint, _ := n.Endpoint(cluster.Families{V4: in.Underlay4, V6: in.Underlay6})
			p := Peer{
				Name: n.Name, PublicKey: key.Public, Endpoint: endpoint, AllowedIPs: n.AllowedIPs(),
				Keepalive: in.Keepalive,
			}
			if !in.Roaming {
				p.Sources = n.TunnelSources()
			}
			d.Peers = append(d.Peers, p)
		}
		spec.Devices = append(spec.Devices, d)
	}
	return spec
}
