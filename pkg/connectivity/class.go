package connectivity

import (
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// class is a kind of flow.
type class struct {
	name string
	// promise is the verdict that the documentation promises.
	promise Verdict
	// from returns the sender.
	from func(*stage) *remote.Pod
	// to returns the destination. ok is false if the destination has no address of the family, or
	// does not serve the protocol.
	to func(s *stage, way Way) (netip.AddrPort, bool)
	// far reports whether the receiver is on node B. The verdict then counts frames of the uplinks
	// of both nodes.
	far bool
	// knock reports whether the server does not echo. Any answer then counts as delivery.
	knock bool
}

// Way is the family and the protocol of a flow: IPv4 or IPv6, TCP or UDP.
type Way struct {
	// Family is 4 or 6.
	Family int `json:"family"`
	// Proto is "tcp" or "udp".
	Proto string `json:"proto"`
}

func (w Way) is4() bool { return w.Family == 4 }

var ways = []Way{{4, "tcp"}, {4, "udp"}, {6, "tcp"}, {6, "udp"}}

// control is the first flow of a walk. Its payload crosses the uplinks in clear, so watchers that
// do not see it do not work.
var control = class{name: "node to node", promise: HostToHost, from: hostA, to: toHost(nodeB),
	far: true}

// classes are the kinds of flow in the order of the walk. stage.addClasses appends the kinds that
// depend on the cluster.
var classes = []class{
	{name: "pod to pod, same node", promise: Stays, from: client, to: toPod(local)},
	{name: "pod to pod, other node", promise: Encrypted, from: client, to: toPod(server),
		far: true},
	{name: "pod to service, backend on other node", promise: Encrypted, from: client, to: toService,
		far: true},
	{name: "pod to its own node", promise: Stays, from: client, to: toHost(nodeA)},
	{name: "pod to other node", promise: Encrypted, from: client, to: toHost(nodeB), far: true},
	{name: "pod to hostPort of other node", promise: Encrypted, from: client, to: toHostPort,
		far: true},
	{name: "pod to NodePort of other node", promise: Encrypted, from: client, to: toNodePort,
		far: true},
	{name: "pod to a pod address that nobody has", promise: Refused, from: client, to: toUnassigned,
		far: true},
	{name: "node to pod, same node", promise: Stays, from: hostA, to: toPod(local)},
	{name: "node to pod, other node", promise: Encrypted, from: hostA, to: toPod(server),
		far: true},
	{name: "node to service, backend on other node", promise: Encrypted, from: hostA, to: toService,
		far: true},
	{name: "node to hostPort of other node", promise: HostToHost, from: hostA, to: toHostPort,
		far: true},
	{name: "node to NodePort of other node", promise: HostToHost, from: hostA, to: toNodePort,
		far: true},
}

func client(s *stage) *remote.Pod { return s.client }
func local(s *stage) *remote.Pod  { return s.local }
func server(s *stage) *remote.Pod { return s.server }
func hostA(s *stage) *remote.Pod  { return s.hosts[0] }
func nodeA(s *stage) remote.Node  { return s.nodes[0] }
func nodeB(s *stage) remote.Node  { return s.nodes[1] }

type target = func(*stage, Way) (netip.AddrPort, bool)

func toPod(pod func(*stage) *remote.Pod) target {
	return func(s *stage, w Way) (netip.AddrPort, bool) {
		addr, ok := pod(s).Addr(w.is4())
		return netip.AddrPortFrom(addr, remote.EchoPort), ok
	}
}

// toHost returns a target: the echo server of a node's host-network pod.
func toHost(node func(*stage) remote.Node) target {
	return func(s *stage, w Way) (netip.AddrPort, bool) {
		addr, ok := node(s).Addr(w.is4())
		return netip.AddrPortFrom(addr, uint16(s.opts.HostPort)+1), ok
	}
}

func toService(s *stage, w Way) (netip.AddrPort, bool) {
	addr, ok := s.service.Addr(w.is4())
	return netip.AddrPortFrom(addr, remote.EchoPort), ok
}

func toHostPort(s *stage, w Way) (netip.AddrPort, bool) {
	// If the pod has no address of the family, nothing answers at the host port.
	_, pod := s.server.Addr(w.is4())
	addr, ok := nodeB(s).Addr(w.is4())
	return netip.AddrPortFrom(addr, uint16(s.opts.HostPort)), ok && pod
}

func toNodePort(s *stage, w Way) (netip.AddrPort, bool) {
	_, service := s.service.Addr(w.is4())
	addr, ok := nodeB(s).Addr(w.is4())
	return netip.AddrPortFrom(addr, uint16(s.service.NodePorts[w.Proto])), ok && service
}

// toUnassigned returns the last address but one of node B's pod prefix. IPAM plugins assign the
// lowest addresses first, so no pod is likely to have it.
func toUnassigned(s *stage, w Way) (netip.AddrPort, bool) {
	for _, p := range nodeB(s).PodPrefixes {
		if p.Addr().Is4() == w.is4() {
			return netip.AddrPortFrom(lastAddr(p).Prev(), remote.EchoPort), true
		}
	}
	return netip.AddrPort{}, false
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// toAddr returns a target for TCP only: the first of addrs that has the family.
func toAddr(addrs []netip.AddrPort) target {
	return func(_ *stage, w Way) (netip.AddrPort, bool) {
		for _, a := range addrs {
			if a.Addr().Is4() == w.is4() && w.Proto == "tcp" {
				return a, true
			}
		}
		return netip.AddrPort{}, false
	}
}
