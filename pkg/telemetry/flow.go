package telemetry

import (
	"net/netip"
	"time"
)

// FlowsPath is the admin socket's page of connections. Its answer is a Flows. The parameters
// ?pod=NAMESPACE/NAME and ?class=CLASS select connections. ?class may occur several times.
const FlowsPath = "/v1/flows"

// FlowClass is where the packets of a connection go.
type FlowClass string

// Classes of connections.
const (
	// FlowTunnel connections are in the tunnel to a peer.
	FlowTunnel FlowClass = "tunnel"
	// FlowLocal connections stay on the node.
	FlowLocal FlowClass = "local"
	// FlowOutside connections leave the node in clear. Unless Alarm is set, one end is outside the
	// cluster.
	FlowOutside FlowClass = "outside"
	// FlowHost connections are in clear between this node and another node.
	FlowHost FlowClass = "host"
	// FlowRefused connections do not work: a route, the tunnel or a rule drops their packets, or
	// dropped one in the last two minutes.
	FlowRefused FlowClass = "refused"
)

// FlowClasses returns all classes.
func FlowClasses() []FlowClass {
	return []FlowClass{FlowTunnel, FlowLocal, FlowOutside, FlowHost, FlowRefused}
}

// Clear reports whether the packets of connections of class c cross the network in clear.
func (c FlowClass) Clear() bool { return c == FlowOutside || c == FlowHost }

// Flows holds the selected connections of a node.
type Flows struct {
	// Count counts all selected connections by class. LeftOut counts the connections in Count that
	// are missing in Flows.
	Count   map[FlowClass]int `json:"count"`
	LeftOut map[FlowClass]int `json:"leftOut,omitempty"`
	// Alarms counts the selected connections with Alarm set.
	Alarms int `json:"alarms"`
	// Outer counts the connections that carry the tunnels' datagrams. Count does not include them.
	Outer int `json:"outer"`
	// Notes are sentences about the traffic that cannot be seen on this node.
	Notes []string `json:"notes"`
	// Flows lists alarms first, then the others in the order of FlowClasses.
	Flows []Flow `json:"flows"`
}

// Flow is a connection, or a refused attempt to open one.
type Flow struct {
	Class FlowClass `json:"class"`
	// Alarm reports whether the connection is between a pod and the cluster, and in clear.
	Alarm bool `json:"alarm,omitempty"`
	// Row is the exception of docs/security.md that allows a connection in clear; 0 means none.
	Row int `json:"row,omitempty"`
	// Peer is the node at the other end of the tunnel, or of a connection in clear between hosts.
	Peer string `json:"peer,omitempty"`
	// Link is the link on which packets leave the node, or would leave it.
	Link string `json:"link,omitempty"`
	// Reason is why the connection is refused: a drop reason, or a sentence.
	Reason string `json:"reason,omitempty"`
	// Dropped is the reason for which the last sampled packet of the client was dropped, at
	// DroppedAt. They are empty without such a sample, and if the server has answered.
	Dropped   string    `json:"dropped,omitempty"`
	DroppedAt time.Time `json:"droppedAt,omitzero"`
	Protocol  string    `json:"protocol"`
	// Client opened the connection. Server is the other end, after destination NAT. Original is the
	// address that the client connected to; it is only set if it differs from Server. Ports are 0
	// if the protocol has none.
	Client       netip.Addr `json:"client"`
	ClientPort   uint16     `json:"clientPort,omitempty"`
	Server       netip.Addr `json:"server"`
	ServerPort   uint16     `json:"serverPort,omitempty"`
	Original     netip.Addr `json:"original,omitzero"`
	OriginalPort uint16     `json:"originalPort,omitempty"`
	// ClientPod and ServerPod are pods of this node, as NAMESPACE/NAME. They are empty for others.
	ClientPod string `json:"clientPod,omitempty"`
	ServerPod string `json:"serverPod,omitempty"`
	// Replied reports whether the server has answered.
	Replied bool `json:"replied,omitempty"`
	// Source names where the connection was read: conntrack, services (the services' flow table),
	// sockets (a host process's socket whose packets conntrack does not track; the end with the
	// lower port counts as the server) or drops (the samples of dropped packets).
	Source string `json:"source"`
}
