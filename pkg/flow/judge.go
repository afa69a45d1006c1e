package flow

import (
	"net/netip"

	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// end is one end of a connection.
type end struct {
	addr netip.Addr
	// pod is the pod of this node with the address, and link the index of its link.
	pod  string
	link int
	// node is the other node that has the address. inner reports whether the address is one of pods
	// or services.
	node  string
	inner bool
}

// ofPod reports whether the end is a pod, of this node or another.
func (e end) ofPod() bool { return e.pod != "" || e.inner }

// course is where the packets of a leg go.
type course int

// Courses, the best first.
const (
	stays course = iota
	tunnelled
	refused
	inClear
)

// leg is the way from this node to an end that may be away, or from there to this node.
type leg struct {
	course course
	link   string
	peer   string
	reason string
	// near is the end whose packets take the leg, far is the end at its other side. wire is the
	// address of near on the leg, behind NAT; it is not valid if that is not known.
	near, far end
	wire      netip.Addr
	// toClient reports whether far is the client. arrival is the way of the client's packets to an
	// address of this node, before NAT.
	toClient, arrival bool
}

// Rows of the exceptions in docs/security.md.
const (
	rowOutside   = 1
	rowHost      = 2
	rowNodePort  = 3
	rowNoNode    = 8
	rowLinkLocal = 17
)

// addresses decide which row allows a leg in clear.
type addresses struct {
	// nodeRanges contain all addresses that nodes may have. former are addresses of deleted nodes.
	nodeRanges ranges
	former     map[netip.Addr]bool
	ranges     ranges
}

var linkLocal4 = netip.MustParsePrefix("169.254.0.0/16")

// judge returns the class of a connection by its legs, with the row that allows it in clear. It is
// pure. translated reports whether the client connected to another address than the server's.
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

// judgeClear sets what the legs in clear mean. An alarm comes first, then the outside.
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

// alarms reports whether no exception allows the leg in clear: an inner address is on the wire, or
// a pod's packets go to a node. What a host sends to a NodePort of a pod arrives as row 2 allows.
func (c addresses) alarms(l leg) bool {
	return l.far.inner || c.inner(l.wire) || l.far.node != "" && l.near.ofPod() && !l.arrival
}

// rowOf returns the row that allows a leg in clear with an end outside.
func (c addresses) rowOf(l leg, translated bool) int {
	a := l.far.addr
	switch {
	case l.toClient && translated:
		return rowNodePort
	case l.toClient || !l.near.ofPod():
		return rowOutside
	case linkLocal4.Contains(a):
		return rowLinkLocal
	case c.former[a] || c.nodeRanges.has(a):
		return rowNoNode
	}
	return rowOutside
}

// inner reports whether an address is one of pods or services.
func (c addresses) inner(a netip.Addr) bool { return c.ranges.has(a) }
