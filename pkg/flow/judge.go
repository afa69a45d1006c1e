package flow

import (
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// end is one end of a connection.
type end struct {
	addr netip.Addr
	// pod is the pod of this node that has the address, and link the index of its host link.
	pod  string
	link int
	// node is the other node that has the address; "" if there is none. inner reports whether the
	// address is in the ranges of pods or services.
	node  string
	inner bool
}

// ofPod reports whether the end is a pod, of this node or another.
func (e end) ofPod() bool { return e.pod != "" || e.inner }

// course is the place to which the packets of a leg go.
type course int

// Courses, from best to worst.
const (
	stays course = iota
	tunnelled
	refused
	inClear
)

// leg is the path of packets from this node to an end of the connection that may be on another
// host.
type leg struct {
	course course
	link   string
	peer   string
	reason string
	// near is the end whose packets take the leg. far is the end that receives them. wire is the
	// address of near after NAT; it is invalid if unknown.
	near, far end
	wire      netip.Addr
	// toClient reports whether far is the client. arrival reports whether the leg stands for the
	// client's packets to an address of this node, before NAT.
	toClient, arrival bool
}

// Rows of the exceptions in docs/security.md.
const (
	rowOutside   = 1
	rowHost      = 2
	rowNodePort  = 3
	rowNoNode    = 8
	rowNoService = 9
	rowBalancer  = 10
	rowLinkLocal = 17
)

// addresses holds the addresses that decide which row allows a leg in clear.
type addresses struct {
	// nodeRanges contains all addresses that nodes may have. former holds the addresses of deleted
	// nodes. ranges contains the addresses of pods and services.
	nodeRanges ranges
	former     map[netip.Addr]bool
	ranges     ranges
	// rows holds the rows of addresses that services had or that load balancers have.
	rows map[netip.Addr]int
}

// rowsOf returns addresses.rows.
func rowsOf(former, balancers []netip.Addr) map[netip.Addr]int {
	rows := map[netip.Addr]int{}
	for _, a := range former {
		rows[a] = rowNoService
	}
	for _, a := range balancers {
		rows[a] = rowBalancer
	}
	return rows
}

var linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")

// judge returns a Flow with the class of a connection, which its worst leg decides, and the row
// that allows it in clear. translated reports whether the client connected to an address other
// than the server's. It is pure.
func (c addresses) judge(legs []leg, translated bool) (v telemetry.Flow) {
	worst := -1
	for i, l := range legs {
		if worst < 0 || l.course > legs[worst].course {
			worst = i
		}
	}
	v.Class = telemetry.FlowLocal
	if worst < 0 {
		return v
	}

	l := legs[worst]
	v.Link, v.Peer, v.Reason = l.link, l.peer, l.reason
	switch l.course {
	case tunnelled:
		v.Class = telemetry.FlowTunnel
	case refused:
		v.Class = telemetry.FlowRefused
	case inClear:
		c.judgeClear(&v, legs, translated)
	}
	return v
}

// judgeClear sets the class and the row of a connection with legs in clear. An alarm takes
// precedence over the class outside, and outside over host.
func (c addresses) judgeClear(v *telemetry.Flow, legs []leg, translated bool) {
	for _, l := range legs {
		if l.course != inClear || v.Alarm {
			continue
		}
		class, row := telemetry.FlowOutside, 0
		switch {
		case c.alarms(l):
			v.Alarm = true
		case l.far.node != "":
			class, row = telemetry.FlowHost, rowHost
		default:
			row = c.rowOf(l, translated)
		}
		if v.Alarm || v.Class != telemetry.FlowOutside {
			v.Class, v.Row, v.Link, v.Peer = class, row, l.link, l.far.node
		}
	}
}

// alarms reports whether no exception allows the leg in clear: it has an inner address on the wire,
// or carries a pod's packets to a node. Packets from a host to a NodePort are not an alarm, because
// row 2 allows them.
func (c addresses) alarms(l leg) bool {
	return l.far.inner || c.inner(l.wire) || l.far.node != "" && l.near.ofPod() && !l.arrival
}

// rowOf returns the row that allows a leg in clear whose far end is outside the cluster.
func (c addresses) rowOf(l leg, translated bool) int {
	a := l.far.addr
	switch {
	case l.toClient && translated:
		return rowNodePort
	case l.toClient || !l.near.ofPod():
		return rowOutside
	case linkLocal4.Contains(a):
		return rowLinkLocal
	case c.rows[a] != 0:
		return c.rows[a]
	case c.former[a] || c.nodeRanges.has(a):
		return rowNoNode
	}
	return rowOutside
}

// inner reports whether a is in the ranges of pods or services.
func (c addresses) inner(a netip.Addr) bool { return c.ranges.has(a) }
