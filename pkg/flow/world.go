package flow

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/pod"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// waysKept bounds the routes that one page caches.
const waysKept = 1 << 16

// connection is a connection of conntrack or of the services' flow table; source names the table.
type connection struct {
	nl.Tracked
	source string
}

// translated reports whether the client connected to an address or port other than the server's.
func (c connection) translated() bool {
	return c.Original != netip.AddrPortFrom(c.Server, c.Port)
}

// link is a link of this node.
type link struct {
	name             string
	pod, tunnel, own bool
	guarded          bool
}

// podEnd is a pod of this node.
type podEnd struct {
	name string
	link int
}

// world holds the node's state that decides the class of connections, for one page. It is not for
// concurrent use.
type world struct {
	addresses
	links map[int]link
	pods  map[netip.Addr]podEnd
	// nodes holds the names of other nodes by address. marked holds the node addresses that the
	// guard closes to pods.
	nodes  map[netip.Addr]string
	marked map[netip.Addr]bool
	// guardRanges are the ranges to which the guard drops packets in clear.
	guardRanges ranges
	tunnels     tunnels
	// assigned holds the addresses of this node's links, which need no route look-up.
	assigned map[netip.Addr]bool
	router   *nl.Router
	ways     map[nl.Packet]nl.Way
}

// readLinks reads the links of the node and the pods behind them.
func (w *world) readLinks(paths pod.Paths, guarded []string) error {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return err
	}
	defer h.Close()
	addrs, err := h.AddrList(nil, nl.FamilyAll)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	w.assigned = make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if own, ok := netip.AddrFromSlice(a.IP); ok {
			w.assigned[own.Unmap()] = true
		}
	}

	index := map[string]int{}
	w.links = make(map[int]link, len(links))
	for _, l := range links {
		a := l.Attrs()
		index[a.Name] = a.Index
		w.links[a.Index] = link{name: a.Name, pod: a.Group == abi.PodGroup,
			tunnel: a.Group == abi.TunnelGroup, own: a.Flags&net.FlagLoopback != 0,
			guarded: slices.Contains(guarded, a.Name)}
	}

	w.pods = map[netip.Addr]podEnd{}
	records, _ := paths.List() // The keeper of pods reports records that cannot be read.
	for _, r := range records {
		name := r.HostLink
		if r.Workload.Name != "" {
			name = r.Workload.Namespace + "/" + r.Workload.Name
		}
		for _, a := range r.Addrs {
			w.pods[a] = podEnd{name, index[r.HostLink]}
		}
	}
	return nil
}

// podAddr returns the address of the pod called name in the family of a. It returns a if the pod
// has none.
func (w *world) podAddr(name string, a netip.Addr) netip.Addr {
	for own, p := range w.pods {
		if p.name == name && own.Is4() == a.Is4() {
			return own
		}
	}
	return a
}

// podNames returns the names of this node's pods, sorted.
func (w *world) podNames() (names []string) {
	for _, p := range w.pods {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// end returns the end with address a, without a route look-up.
func (w *world) end(a netip.Addr) end {
	p := w.pods[a]
	node := w.nodes[a]
	return end{addr: a, pod: p.name, link: p.link, node: node, inner: node == "" && w.inner(a)}
}

// way returns the kernel's route for a packet, from the cache if it is there.
func (w *world) way(p nl.Packet) (nl.Way, error) {
	if way, known := w.ways[p]; known {
		return way, nil
	}
	way, err := w.router.Way(p)
	if err != nil {
		return way, err
	}
	if len(w.ways) < waysKept {
		w.ways[p] = way
	}
	return way, nil
}

// isHost reports whether an address belongs to this node.
func (w *world) isHost(a netip.Addr) (bool, error) {
	if w.assigned[a] {
		return true, nil
	}
	way, err := w.way(nl.Packet{Dst: a})
	return way.Local, err
}

// legs returns the ends of a connection and its legs.
func (w *world) legs(c connection) (client, server end, legs []leg, err error) {
	client, server = w.end(c.Client), w.end(c.Server)
	switch {
	case w.isProbe(c):
		legs = []leg{w.tunnels.probe(c, w.assigned[c.Client])}
	case client.pod != "":
		legs, err = w.add(legs, w.fromPod(client, server), leg{near: client, far: server,
			wire: c.Source})
	case server.pod != "":
		legs, err = w.add(legs, w.fromPod(server, client), leg{near: server, far: client,
			wire: c.Original.Addr(), toClient: true})
		if err == nil && c.translated() && legs[0].course != stays {
			legs, err = w.addArrival(legs, c, server, client)
		}
	default:
		legs, err = w.betweenHosts(c, client, server)
	}
	return client, server, legs, err
}

// fromPod returns the packet for the route look-up of a pod of this node to an address.
func (w *world) fromPod(from, to end) nl.Packet {
	return nl.Packet{Dst: to.addr, Src: from.addr, In: from.link, Mark: abi.PodMark}
}

// addArrival adds a leg for the client's packets to the address that it connected to. It uses this
// node's route to the client, because the client's node chooses the route in the same way.
func (w *world) addArrival(legs []leg, c connection, server, client end) ([]leg, error) {
	p := nl.Packet{Dst: client.addr}
	host, err := w.isHost(c.Original.Addr())
	if err != nil {
		return legs, err
	}
	if host {
		p.Src = c.Original.Addr()
	}
	return w.add(legs, p, leg{near: server, far: client, wire: c.Original.Addr(), toClient: true,
		arrival: true})
}

// betweenHosts returns the legs of a connection without a pod of this node. If an end is this node,
// only the leg to the other end is needed, because packets to this node stay here.
func (w *world) betweenHosts(c connection, client, server end) (legs []leg, err error) {
	forward := leg{near: client, far: server, wire: c.Source}
	back := leg{near: server, far: client, wire: c.Original.Addr(), toClient: true}
	host := w.assigned[c.Server]
	if !host && !w.assigned[c.Client] {
		if host, err = w.isHost(c.Server); err != nil {
			return nil, err
		}
	}
	if host {
		return w.add(nil, nl.Packet{Dst: c.Client, Src: c.Server}, back)
	}
	if host, err = w.isHost(c.Client); err != nil {
		return nil, err
	}
	if host {
		return w.add(nil, nl.Packet{Dst: c.Server, Src: c.Client}, forward)
	}

	// This node forwards the packets, from the link that leads to the client. The leg to the client
	// stands for packets before NAT: a pod of this node sends none of them to a node in clear.
	back.arrival = c.translated()
	if legs, err = w.add(nil, nl.Packet{Dst: c.Client}, back); err != nil {
		return nil, err
	}
	way, err := w.way(nl.Packet{Dst: c.Client})
	if err != nil {
		return nil, err
	}
	return w.add(legs, nl.Packet{Dst: c.Server, Src: c.Client, In: way.Out}, forward)
}

// add adds a leg with the course that the kernel's route, the tunnels and the guard give it.
func (w *world) add(legs []leg, p nl.Packet, l leg) ([]leg, error) {
	way, err := w.way(p)
	if err != nil {
		return legs, err
	}
	out := w.links[way.Out]
	l.link = out.name
	if out.name == "" && way.Out != 0 {
		l.link = fmt.Sprintf("link %d", way.Out)
	}
	switch {
	case way.Refused != nil:
		l.course, l.reason = refused, fmt.Sprintf("no route: %v", way.Refused)
	case way.Local, out.pod, out.own:
		l.course = stays
	case out.tunnel:
		l.course, l.peer = tunnelled, w.tunnels.peer(out.name, l.far.addr)
		if l.peer == "" {
			l.course, l.reason = refused, "no peer of the tunnel has the address"
		}
	case out.guarded && w.guardDrops(l):
		l.course, l.reason = refused, "the guard drops it"
	default:
		l.course = inClear
	}
	return append(legs, l), nil
}

// guardDrops reports whether the guard's programs, if the link has them, drop the packets of a leg.
func (w *world) guardDrops(l leg) bool {
	return w.guardRanges.has(l.far.addr) || w.guardRanges.has(l.wire) ||
		l.near.pod != "" && !l.arrival && w.marked[l.far.addr]
}

// tunnels finds peers by the allowed IPs of the tunnel devices.
type tunnels struct {
	// names holds the peers by device and allowed IP. bits lists the prefix lengths in names, the
	// longest first. ports holds the devices' UDP ports. ends holds the addresses of endpoints.
	names   map[allowed]string
	bits    []int
	ports   map[uint16]bool
	ends    map[netip.Addr]bool
	devices []string
}

type allowed struct {
	device string
	prefix netip.Prefix
}

func newTunnels(devices []telemetry.Device, peers []telemetry.Peer) tunnels {
	t := tunnels{names: map[allowed]string{}, ports: map[uint16]bool{}, ends: map[netip.Addr]bool{}}
	lengths := map[int]bool{}
	for _, d := range devices {
		t.ports[uint16(d.Port)] = true
		t.devices = append(t.devices, d.Name)
	}
	for _, p := range peers {
		if p.Endpoint.IsValid() {
			t.ends[p.Endpoint.Addr().Unmap()] = true
		}
		name := p.Name
		if name == "" {
			name = "an unknown peer"
		}
		for _, ip := range p.AllowedIPs {
			t.names[allowed{p.Device, ip}] = name
			lengths[ip.Bits()] = true
		}
	}
	for n := range lengths {
		t.bits = append(t.bits, n)
	}
	slices.SortFunc(t.bits, func(a, b int) int { return b - a })
	return t
}

// peer returns the peer to which a device sends packets to a, or "". It searches for the longest
// matching prefix.
func (t tunnels) peer(device string, a netip.Addr) string {
	for _, n := range t.bits {
		if n > a.BitLen() {
			continue
		}
		if p, err := a.Prefix(n); err == nil {
			if name := t.names[allowed{device, p}]; name != "" {
				return name
			}
		}
	}
	return ""
}

// carries reports whether a connection carries the tunnels' datagrams: one end is this node and has
// a device's UDP port, and the other end is a peer's endpoint. A pod may choose the same port, so
// the port alone proves nothing.
func (w *world) carries(c connection) bool {
	const udp = 17
	t := &w.tunnels
	return c.Proto == udp &&
		(w.assigned[c.Client] && t.ports[c.ClientPort] && t.ends[c.Server] ||
			w.assigned[c.Server] && t.ports[c.Port] && t.ends[c.Client])
}

// isProbe reports whether a connection is a probe of the path MTU between this node and another. The
// socket of such a probe is bound to the tunnel, so the kernel's route look-up for its addresses
// would be wrong. A pod may choose the same ports, so the ports alone prove nothing.
func (w *world) isProbe(c connection) bool {
	const udp = 17
	return c.Proto == udp && c.Port == abi.ProbePort && c.ClientPort == abi.ProbePort &&
		!c.translated() && (w.assigned[c.Client] && w.nodes[c.Server] != "" ||
		w.assigned[c.Server] && w.nodes[c.Client] != "")
}

// probe returns the leg of a probe. sent reports whether this node is the client.
func (t tunnels) probe(c connection, sent bool) leg {
	far := c.Client
	if sent {
		far = c.Server
	}
	for _, device := range t.devices {
		if peer := t.peer(device, far); peer != "" {
			return leg{course: tunnelled, link: device, peer: peer}
		}
	}
	return leg{course: refused, reason: "no peer of the tunnel has the address"}
}
