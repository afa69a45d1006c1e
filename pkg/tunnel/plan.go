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

// Inputs are the inputs of Plan.
type Inputs struct {
	Devices []Local
	// Mark and MTU apply to every device.
	Mark uint32
	MTU  int
	// Peers are the believed nodes (cluster.Table.Peers). A peer without a key is left out.
	Peers []cluster.Node
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
func Plan(in Inputs) Spec {
	underlay := cluster.Families{V4: in.Underlay4, V6: in.Underlay6}
	spec := Spec{Prune: in.Prune, Underlay: underlay}

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
			// Without a common family the peer must initiate.
			endpoint, _ := n.Endpoint(underlay)
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
