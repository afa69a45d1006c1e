package telemetry

import "net/netip"

// FlowsPath is the admin socket's page of connections. Its answer is a Flows. ?pod=NAMESPACE/NAME
// and ?class=CLASS, which may occur several times, choose connections.
const FlowsPath = "/v1/flows"

// FlowClass is where the packets of a connection go.
type FlowClass string

// Classes of connections.
const (
	// FlowTunnel connections are in the tunnel to a peer.
	FlowTunnel FlowClass = "tunnel"
	// FlowLocal connections stay on the node.
	FlowLocal FlowClass = "local"
	// FlowOutside connections leave the node in clear. An end is outside the cluster, unless Alarm
	// is set.
	FlowOutside FlowClass = "outside"
	// FlowHost connections are in clear between processes of nodes.
	FlowHost FlowClass = "host"
	// FlowRefused connections have a route, a tunnel or a rule that drops their packets.
	FlowRefused FlowClass = "refused"
)

// FlowClasses returns all classes.
func FlowClasses() []FlowClass {
	return []FlowClass{FlowTunnel, FlowLocal, FlowOutside, FlowHost, FlowRefused}
}

// Clear reports whether packets of such connections cross the network in clear.
func (c FlowClass) Clear() bool { return c == FlowOutside || c == FlowHost }

// Flows are the connections of a node.
type Flows struct {
	// Count counts all chosen connections by class. LeftOut counts those of them that Flows lacks.
	Count   map[FlowClass]int `json:"count"`
	LeftOut map[FlowClass]int `json:"leftOut,omitempty"`
	// Alarms counts the chosen connections of pods with the cluster that are in clear.
	Alarms int `json:"alarms"`
	// Outer counts the connections that carry the tunnels, which Count does not have.
	Outer int `json:"outer"`
	// Notes are sentences about what cannot be seen on this node.
	Notes []string `json:"notes"`
	// Flows are alarms first, then in the order of FlowClasses.
	Flows []Flow `json:"flows"`
}

// Flow is a connection, or what was refused and never became one.
type Flow struct {
	Class FlowClass `json:"class"`
	// Alarm reports whether a pod's connection with the cluster is in clear.
	Alarm bool `json:"alarm,omitempty"`
	// Row is the exception of docs/security.md that allows a connection in clear; 0 means none.
	Row int `json:"row,omitempty"`
	// Peer is the node at the other end of the tunnel, or of a connection in clear between hosts.
	Peer string `json:"peer,omitempty"`
	// Link is the link by which packets leave the node, or would leave it.
	Link string `json:"link,omitempty"`
	// Reason is why the connection is refused: a drop reason, or a sentence.
	Reason   string `json:"reason,omitempty"`
	Protocol string `json:"protocol"`
	// Client opened the connection, and Server answers, behind destination NAT. Asked is the
	// address that the client connected to, where it is another. Ports are 0 for protocols without.
	Client     netip.Addr `json:"client"`
	ClientPort uint16     `json:"clientPort,omitempty"`
	Server     netip.Addr `json:"server"`
	ServerPort uint16     `json:"serverPort,omitempty"`
	Asked      netip.Addr `json:"asked,omitzero"`
	AskedPort  uint16     `json:"askedPort,omitempty"`
	// ClientPod and ServerPod are pods of this node, as NAMESPACE/NAME.
	ClientPod string `json:"clientPod,omitempty"`
	ServerPod string `json:"serverPod,omitempty"`
	// Replied reports whether the server has answered.
	Replied bool `json:"replied,omitempty"`
	// Source is conntrack, services (their flow table) or drops.
	Source string `json:"source"`
}
