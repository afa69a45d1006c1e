package agent

import (
	"errors"
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

// deviceName is the name of the only tunnel device. Further devices would get further numbers.
const deviceName = abi.TunnelDevicePrefix + "0"

// inputs holds all inputs of the decision of one turn.
type inputs struct {
	cfg   config.Config
	key   wgkey.Private
	table cluster.Table
	// since is when the source sent the first state after the last turn; zero if it sent none.
	since time.Time
	// complete reports whether table can be applied: it comes from the source, or it is the last
	// good one.
	complete bool
	// synced reports whether the source has sent everything. Before that the features of nodes are
	// not known, and no peer is removed.
	synced bool
	// underlayMTU is the configured MTU, or the smallest MTU of the links that carry node traffic,
	// in bytes.
	underlayMTU int
	// wideMTU is a sentence about a configured MTU that exceeds the MTU of the link, or empty.
	wideMTU string
	// overlaps is a sentence about links of other programs inside the cluster's ranges, or empty.
	overlaps string
	// localAddrs are the addresses on the link that carries node traffic. otherAddrs are the
	// addresses on all links. They are used if none of the node's addresses is in localAddrs.
	localAddrs, otherAddrs []netip.Addr
	// lastSelf and lastMTU are this node and the pods' MTU in the last turn with tunnels. If this
	// node or the link has a problem now, they are used to update the peers, so that a removed peer
	// does not stay.
	lastSelf *cluster.Node
	lastMTU  int
	// vips are the addresses of services outside the ranges.
	vips []netip.Addr
	// openings are the exported endpoints of this node.
	openings []cluster.Opening
	// rangeProblems are sentences about service ranges that the guard does not close.
	rangeProblems []string
	// clockNote is a sentence about a clock that was set back, or empty.
	clockNote string
	// pathMTU holds the inner MTUs that the prober found, by peer.
	pathMTU map[string]int
}

// waited returns the time since in.since, or 0 if the source sent no new state.
func (in inputs) waited() time.Duration {
	if in.since.IsZero() {
		return 0
	}
	return time.Since(in.since)
}

// decision holds the desired state of the kernel and the claim that this node publishes.
type decision struct {
	guard  guard.Settings
	host   hostnet.Want
	tunnel tunnel.Spec
	// self is this node; nil if there are no tunnels.
	self *cluster.Node
	// podMTU is the MTU of tunnel devices and pods in bytes; 0 while unknown.
	podMTU int
	// podPrefixes are the prefixes of this node's pods.
	podPrefixes []netip.Prefix
	// claim is what this node publishes about itself; nil while a problem prevents that.
	claim *cluster.Claim
	// problems are sentences about why the node is not ready for pods.
	problems []string
	// tunnelSources is a text for status: the sources from which tunnel datagrams are accepted.
	tunnelSources string
	// linkProblem is the sentence among problems about the link between nodes. It is empty if the
	// link has no problem.
	linkProblem string
	// notes are sentences about other problems, with which the node is still ready.
	notes []string
}

// decide computes the decision of a turn. It is a pure function.
func decide(in inputs) decision { return new(planner).decide(in) }

// decide is the function decide.
func (p *planner) decide(in inputs) decision {
	p.changed, p.last = cluster.NewDelta(p.last, in.table.Peers), in.table.Peers
	d := decision{notes: slices.Clone(in.rangeProblems)}
	if in.clockNote != "" {
		d.notes = append(d.notes, in.clockNote)
	}
	in.cfg.ServiceRanges = slices.Concat(in.cfg.ServiceRanges, in.table.ServiceRanges)
	d.guard, d.host = node.Closed(in.cfg, in.table.NodeAddrs, in.vips)
	d.guard.Openings = in.openings

	self := in.table.Self
	if self == nil {
		d.problems = append(d.problems, absent(in))
		if self = in.lastSelf; self == nil {
			return d
		}
	}

	if len(self.PodPrefixes) == 0 {
		d.problems = append(d.problems,
			fmt.Sprintf("node %q has no pod prefix (Node.spec.podCIDRs): start "+
				"kube-controller-manager with --allocate-node-cidrs, or set them", in.cfg.Node))
		return d
	}

	d.podPrefixes = self.PodPrefixes
	d.guard.PodPrefixes = self.PodPrefixes
	own := among(self.Addresses, in.localAddrs)
	if len(own) == 0 {
		own = among(self.Addresses, in.otherAddrs)
	}

	if len(own) == 0 {
		d.linkProblem = fmt.Sprintf("none of the addresses of node %q (%v) is on a link of this "+
			"machine: correct the Node's addresses (kubelet --node-ip)", in.cfg.Node,
			self.Addresses)
		d.problems = append(d.problems, d.linkProblem)
		return d
	}

	d.host.SelfAddrs, d.guard.SelfAddrs = own, own
	d.guard.Datagrams, d.tunnelSources = p.datagrams(in)
	underlay := cluster.Node{Addresses: own}.AddressFamilies()
	mtu, err := cluster.TunnelMTU(in.underlayMTU, !underlay.V4, self.PodFamilies())
	if err != nil {
		d.linkProblem = err.Error()
		d.problems = append(d.problems, d.linkProblem)
		if mtu = in.lastMTU; mtu == 0 {
			return d
		}
	}

	d.self, d.podMTU = self, mtu
	d.host.Devices = []hostnet.TunnelDevice{{Name: deviceName, MTU: mtu}}
	var notes []string
	d.host.Peers, notes = p.hostPeers(in, underlay, mtu)
	d.notes = slices.Concat(d.notes, notes, closedServers(in))
	for _, note := range []string{in.overlaps, in.wideMTU} {
		if note != "" {
			d.notes = append(d.notes, note)
		}
	}

	d.tunnel = p.tunnel.Plan(tunnel.Inputs{
		Devices: []tunnel.Local{{Name: deviceName, ListenPort: in.cfg.Tunnel.Port,
			PrivateKey: in.key}},
		Mark:      abi.TunnelMark,
		MTU:       mtu,
		Peers:     in.table.Peers,
		Changed:   p.changed,
		Underlay4: underlay.V4, Underlay6: underlay.V6,
		Keepalive: time.Duration(in.cfg.Tunnel.Keepalive) * time.Second,
		Roaming:   d.guard.Datagrams.Sources == nil || d.guard.Datagrams.Add,
		Prune:     in.synced,
	})

	if len(d.problems) == 0 {
		d.claim = ownClaim(in, own)
	}
	return d
}

// absent returns a sentence about why this node is not in the table.
func absent(in inputs) string {
	switch {
	case in.complete:
		return fmt.Sprintf("node %q is not in the cluster: register it, or set `node` to the name "+
			"that it has there", in.cfg.Node)
	case in.cfg.Source.Kind == config.SourceSnapshot:
		return fmt.Sprintf("source.file %s has not been read yet, and there is no last good table",
			in.cfg.Source.File)
	}
	return "the API server has not sent the nodes yet, and there is no last good table"
}

// among returns the addresses in addrs that are also in assigned.
func among(addrs, assigned []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs),
		func(a netip.Addr) bool { return !slices.Contains(assigned, a) })
}

// hostPeer returns the routes to a believed peer, and a note if it is unreachable; see
// planner.hostPeers.
func hostPeer(n cluster.Node, in inputs, underlay cluster.Families,
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
var peerDevices = []string{deviceName}

// closedServers returns notes about API servers that pods cannot reach because `outside` does not
// name them, or because they have an address of a site.
func closedServers(in inputs) (notes []string) {
	closed := in.cfg.Closed()
	for _, a := range in.table.APIServers {
		contains := func(p netip.Prefix) bool { return p.Contains(a) }
		if slices.Contains(in.table.NodeAddrs, a) || !slices.ContainsFunc(closed, contains) {
			continue
		}
		why := "nodeRanges contain it: add it to outside"
		if !slices.ContainsFunc(in.cfg.NodeRanges, contains) {
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
func routeMTU(n cluster.Node, endpoint netip.AddrPort, in inputs, deviceMTU int) int {
	mtu := deviceMTU
	outer6 := endpoint.Addr().Is6()
	narrow := func(underlay int) {
		m, err := cluster.TunnelMTU(underlay, outer6, n.PodFamilies())
		if err == nil {
			mtu = min(mtu, m)
		}
	}
	narrow(in.underlayMTU)
	if n.Claim != nil && n.Claim.MTU > 0 {
		narrow(n.Claim.MTU)
	}
	if found := in.pathMTU[n.Name]; found > 0 {
		mtu = min(mtu, found)
	}
	if mtu == deviceMTU {
		return 0
	}
	return mtu / cluster.Padding * cluster.Padding
}

// ownClaim returns the claim of this node, with one endpoint per address family of own.
func ownClaim(in inputs, own []netip.Addr) *cluster.Claim {
	c := &cluster.Claim{
		Keys:        []cluster.Key{{Public: in.key.Public()}},
		PodPrefixes: in.table.Self.PodPrefixes,
		MTU:         in.underlayMTU,
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
			c.Endpoints = append(c.Endpoints, netip.AddrPortFrom(a, uint16(in.cfg.Tunnel.Port)))
		}
	}
	return c
}

// errNotReady is the result of a successful turn with problems, after which the node is not ready.
var errNotReady = errors.New("not ready for pods")
