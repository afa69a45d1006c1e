package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/guard"
	"github.com/kubeveil/kubeveil/pkg/hostnet"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// DeviceName is the name of the only tunnel device. Further devices would get further numbers.
const DeviceName = abi.TunnelDevicePrefix + "0"

// Inputs holds all inputs of the decision of one turn.
type Inputs struct {
	Config config.Config
	Key    wgkey.Private
	Table  cluster.Table
	// Since is when the source sent the first state after the last turn; zero if it sent none.
	Since time.Time
	// Complete reports whether table can be applied: it comes from the source, or it is the last
	// good one.
	Complete bool
	// Synced reports whether the source has sent everything. Before that the features of nodes are
	// not known, and no peer is removed.
	Synced bool
	// UnderlayMTU is the configured MTU, or the smallest MTU of the links that carry node traffic,
	// in bytes.
	UnderlayMTU int
	// WideMTU is a sentence about a configured MTU that exceeds the MTU of the link, or empty.
	WideMTU string
	// Overlaps is a sentence about links of other programs inside the cluster's ranges, or empty.
	Overlaps string
	// LocalAddrs are the addresses on the link that carries node traffic. otherAddrs are the
	// addresses on all links. They are used if none of the node's addresses is in localAddrs.
	LocalAddrs, OtherAddrs []netip.Addr
	// LastSelf and lastMTU are this node and the pods' MTU in the last turn with tunnels. If this
	// node or the link has a problem now, they are used to update the peers, so that a removed peer
	// does not stay.
	LastSelf *cluster.Node
	LastMTU  int
	// VIPs are the addresses of services outside the ranges.
	VIPs []netip.Addr
	// Openings are the exported endpoints of this node.
	Openings []cluster.Opening
	// RangeProblems are sentences about service ranges that the guard does not close.
	RangeProblems []string
	// ClockNote is a sentence about a clock that was set back, or empty.
	ClockNote string
	// PathMTU holds the inner MTUs that the prober found, by peer.
	PathMTU map[string]int
}

// Decision holds the desired state of the kernel and the claim that this node publishes.
type Decision struct {
	Guard  guard.Settings
	Host   hostnet.Want
	Tunnel tunnel.Spec
	// Self is this node; nil if there are no tunnels.
	Self *cluster.Node
	// PodMTU is the MTU of tunnel devices and pods in bytes; 0 while unknown.
	PodMTU int
	// PodPrefixes are the prefixes of this node's pods.
	PodPrefixes []netip.Prefix
	// Claim is what this node publishes about itself; nil while a problem prevents that.
	Claim *cluster.Claim
	// Problems are sentences about why the node is not ready for pods.
	Problems []string
	// TunnelSources is a text for status: the sources from which tunnel datagrams are accepted.
	TunnelSources string
	// linkProblem is the sentence among problems about the link between nodes. It is empty if the
	// link has no problem.
	linkProblem string
	// Notes are sentences about other problems, with which the node is still ready.
	Notes []string
}

// Decide computes the decision of a turn. It is a pure function.
func Decide(in Inputs) Decision { return new(Planner).Decide(in) }

// Decide returns what the function Decide returns.
func (p *Planner) Decide(in Inputs) Decision {
	p.Changed, p.last = cluster.NewDelta(p.last, in.Table.Peers), in.Table.Peers
	d := Decision{Notes: slices.Clone(in.RangeProblems)}
	if in.ClockNote != "" {
		d.Notes = append(d.Notes, in.ClockNote)
	}
	in.Config.ServiceRanges = slices.Concat(in.Config.ServiceRanges, in.Table.ServiceRanges)
	d.Guard, d.Host = node.Closed(in.Config, in.Table.NodeAddrs, in.VIPs)
	d.Guard.Openings = in.Openings

	self := in.Table.Self
	if self == nil {
		d.Problems = append(d.Problems, absent(in))
		if self = in.LastSelf; self == nil {
			return d
		}
	}

	if len(self.PodPrefixes) == 0 {
		d.Problems = append(d.Problems,
			fmt.Sprintf("node %q has no pod prefix (Node.spec.podCIDRs): start "+
				"kube-controller-manager with --allocate-node-cidrs, or set them", in.Config.Node))
		return d
	}

	d.PodPrefixes = self.PodPrefixes
	d.Guard.PodPrefixes = self.PodPrefixes
	own := among(self.Addresses, in.LocalAddrs)
	if len(own) == 0 {
		own = among(self.Addresses, in.OtherAddrs)
	}

	if len(own) == 0 {
		d.linkProblem = fmt.Sprintf("none of the addresses of node %q (%v) is on a link of this "+
			"machine: correct the Node's addresses (kubelet --node-ip)", in.Config.Node,
			self.Addresses)
		d.Problems = append(d.Problems, d.linkProblem)
		return d
	}

	d.Host.SelfAddrs, d.Guard.SelfAddrs = own, own
	d.Guard.Datagrams, d.TunnelSources = p.datagrams(in)
	underlay := cluster.Node{Addresses: own}.AddressFamilies()
	mtu, err := cluster.TunnelMTU(in.UnderlayMTU, !underlay.V4, self.PodFamilies())
	if err != nil {
		d.linkProblem = err.Error()
		d.Problems = append(d.Problems, d.linkProblem)
		if mtu = in.LastMTU; mtu == 0 {
			return d
		}
	}

	d.Self, d.PodMTU = self, mtu
	d.Host.Devices = []hostnet.TunnelDevice{{Name: DeviceName, MTU: mtu}}
	var notes []string
	d.Host.Peers, notes = p.hostPeers(in, underlay, mtu)
	d.Notes = slices.Concat(d.Notes, notes, closedServers(in))
	for _, note := range []string{in.Overlaps, in.WideMTU} {
		if note != "" {
			d.Notes = append(d.Notes, note)
		}
	}

	d.Tunnel = p.tunnel.Plan(tunnel.Inputs{
		Devices: []tunnel.Local{{Name: DeviceName, ListenPort: in.Config.Tunnel.Port,
			PrivateKey: in.Key}},
		Mark:      abi.TunnelMark,
		MTU:       mtu,
		Peers:     in.Table.Peers,
		Changed:   p.Changed,
		Underlay4: underlay.V4, Underlay6: underlay.V6,
		Keepalive: time.Duration(in.Config.Tunnel.Keepalive) * time.Second,
		Roaming:   d.Guard.Datagrams.Sources == nil || d.Guard.Datagrams.Add,
		Prune:     in.Synced,
	})

	if len(d.Problems) == 0 {
		d.Claim = ownClaim(in, own)
	}
	return d
}

// absent returns a sentence about why this node is not in the table.
func absent(in Inputs) string {
	switch {
	case in.Complete:
		return fmt.Sprintf("node %q is not in the cluster: register it, or set `node` to the name "+
			"that it has there", in.Config.Node)
	case in.Config.Source.Kind == config.SourceSnapshot:
		return fmt.Sprintf("source.file %s has not been read yet, and there is no last good table",
			in.Config.Source.File)
	}
	return "the API server has not sent the nodes yet, and there is no last good table"
}

// among returns the addresses in addrs that are also in assigned.
func among(addrs, assigned []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs),
		func(a netip.Addr) bool { return !slices.Contains(assigned, a) })
}

// hostPeer returns the routes to a believed peer, and a note if it is unreachable; see
// Planner.hostPeers.
func hostPeer(n cluster.Node, in Inputs, underlay cluster.Families,
	deviceMTU int) (p hostnet.Peer, note string) {
	p = hostnet.Peer{Name: n.Name, PodPrefixes: n.PodPrefixes, NodeAddrs: n.Addresses}
	endpoint, ok := n.Endpoint(underlay)
	if !ok {
		return p, fmt.Sprintf("node %s has no address of an IP family that this node's underlay "+
			"has, so its pods are unreachable: add one to its Node", n.Name)
	}
	p.Devices = peerDevices
	p.MTU = routeMTU(n, endpoint, in, deviceMTU)
	if p.MTU != 0 && p.MTU < cluster.MinMTU6 && n.PodFamilies().V6 {
		note = fmt.Sprintf("the path to node %s carries %d bytes inside the tunnel and IPv6 needs "+
			"%d, so its IPv6 pods are unreachable: raise the MTU of the path", n.Name, p.MTU,
			cluster.MinMTU6)
		p.PodPrefixes = slices.DeleteFunc(slices.Clone(p.PodPrefixes),
			func(x netip.Prefix) bool { return x.Addr().Is6() })
		p.NodeAddrs = slices.DeleteFunc(slices.Clone(p.NodeAddrs), netip.Addr.Is6)
	}
	return p, note
}

// peerDevices are the devices of every reachable peer.
var peerDevices = []string{DeviceName}

// closedServers returns notes about API servers that pods cannot reach because `outside` does not
// name them, or because they have an address of a site.
func closedServers(in Inputs) (notes []string) {
	closed := in.Config.Closed()
	for _, a := range in.Table.APIServers {
		if slices.Contains(in.Table.NodeAddrs, a) || !cluster.InRanges(closed, a) {
			continue
		}
		why := "nodeRanges contain it: add it to outside"
		if !cluster.InRanges(in.Config.NodeRanges, a) {
			why = "nodeRanges of a site contain it: correct sites"
		}
		notes = append(notes, fmt.Sprintf("pods cannot reach the API server's address %s, "+
			"because %s in the configuration", a, why))
	}
	return notes
}

// routeMTU returns the MTU of the routes to a peer, or 0 if it is not below the MTU of the device.
// It is the smallest MTU of this node's underlay, the peer's underlay, and the prober's result,
// rounded down to a multiple of cluster.Padding: a packet is padded up to the MTU of the device,
// beyond the MTU of its route.
func routeMTU(n cluster.Node, endpoint netip.AddrPort, in Inputs, deviceMTU int) int {
	mtu := deviceMTU
	outer6 := endpoint.Addr().Is6()
	narrow := func(underlay int) {
		m, err := cluster.TunnelMTU(underlay, outer6, n.PodFamilies())
		if err == nil {
			mtu = min(mtu, m)
		}
	}
	narrow(in.UnderlayMTU)
	if n.Claim != nil && n.Claim.MTU > 0 {
		narrow(n.Claim.MTU)
	}
	if found := in.PathMTU[n.Name]; found > 0 {
		mtu = min(mtu, found)
	}
	if mtu == deviceMTU {
		return 0
	}
	return mtu / cluster.Padding * cluster.Padding
}

// ownClaim returns the claim of this node, with one endpoint per address family of own.
func ownClaim(in Inputs, own []netip.Addr) *cluster.Claim {
	c := &cluster.Claim{
		Keys:        []cluster.Key{{Public: in.Key.Public()}},
		PodPrefixes: in.Table.Self.PodPrefixes,
		MTU:         in.UnderlayMTU,
		Features:    cluster.Features(),
	}
	var have cluster.Families
	for _, a := range own {
		seen := &have.V4
		if a.Is6() {
			seen = &have.V6
		}
		if !*seen {
			*seen = true
			c.Endpoints = append(c.Endpoints, netip.AddrPortFrom(a, uint16(in.Config.Tunnel.Port)))
		}
	}
	return c
}
