package nl

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
)

// Connection is a connection that the kernel tracks. Client is the address that opened it. Server
// is the address that answers, after destination NAT. Port is the port of the server, and
// ClientPort the port of the client. Both are 0 if the protocol has no ports.
type Connection struct {
	Client, Server   netip.Addr
	Proto            uint8
	Port, ClientPort uint16
	// Midstream reports whether conntrack did not see the TCP handshake, and therefore took the
	// sender of the first packet that it saw for the client. Midstream is also true if the client
	// has no window scaling and the connection is in a flow table, which is wrong.
	Midstream bool
}

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = 1<<8 | 1 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
	ctDelete = 1<<8 | 2 // IPCTNL_MSG_CT_DELETE

	ctOriginal, ctReply      = 1, 2 // CTA_TUPLE_ORIG, CTA_TUPLE_REPLY
	ctStatus, ctProto        = 3, 4 // CTA_STATUS, CTA_PROTOINFO
	ctTimeout, ctID, ctZone  = 7, 12, 18
	protoTCP                 = 1    // CTA_PROTOINFO_TCP
	tcpState, tcpFlagsClient = 1, 4 // CTA_PROTOINFO_TCP_STATE, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL

	tupleIP, tupleProto            = 1, 2        // CTA_TUPLE_IP, CTA_TUPLE_PROTO
	source4, source6               = 1, 3        // CTA_IP_V4_SRC, CTA_IP_V6_SRC; the destination is next
	protoNumber, protoPort, v4, v6 = 1, 2, 4, 16 // CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, sizes
	protoPortTo                    = 3           // CTA_PROTO_DST_PORT
)

// Connections is a list of tracked connections that FindConnections or FindSome read.
type Connections struct {
	conn    *nfnl.Conn
	entries []entry
	more    bool
}

// entry is a tracked connection and the attributes that identify it: the tuple of the original
// direction, the ID and the zone.
type entry struct {
	Connection
	identity []byte
}

// FindConnections reads the tracked connections for which match returns true, in the network
// namespace of c. After an error, the caller must close c, which may hold answers that were not
// read.
func FindConnections(c *nfnl.Conn, match func(Connection) bool) (*Connections, error) {
	return FindSome(c, math.MaxInt, match)
}

// FindSome is FindConnections for the first connections, at most most. Each takes about 200 bytes.
func FindSome(c *nfnl.Conn, most int, match func(Connection) bool) (*Connections, error) {
	found := &Connections{conn: c}
	some := func(c Connection) bool {
		if found.more || !match(c) {
			return false
		}
		found.more = len(found.entries) >= most
		return !found.more
	}
	begin := func() { found.entries, found.more = nil, false }
	err := dumpConnections(c, begin, func(attributes []byte) error {
		if e, ok := readEntry(attributes, some); ok {
			found.entries = append(found.entries, e)
		}
		return nil
	})
	return found, err
}

// EachConnection calls each with every tracked connection in the network namespace of c. It calls
// begin before that. If the kernel's table changed during the reading, it starts again with begin.
// After an error, the caller must close c, which may hold answers that were not read.
func EachConnection(c *nfnl.Conn, begin func(), each func(Connection)) error {
	return dumpConnections(c, begin, func(attributes []byte) error {
		readEntry(attributes, func(c Connection) bool { each(c); return false })
		return nil
	})
}

func dumpConnections(c *nfnl.Conn, begin func(), each func(attributes []byte) error) error {
	var request nfnl.Messages
	request.Begin(ctGet, 0, unix.AF_UNSPEC)
	if err := c.Dump(&request, begin, each); err != nil {
		return fmt.Errorf("read tracked connections: %w", err)
	}
	return nil
}

// Keep removes from c the connections for which match returns false.
func (c *Connections) Keep(match func(Connection) bool) {
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool { return !match(e.Connection) })
}

// More reports whether more connections matched than FindSome kept.
func (c *Connections) More() bool { return c.more }

// Len returns the number of connections in c.
func (c *Connections) Len() int { return len(c.entries) }

// Cut removes the first n connections from c, or all if there are fewer, and returns them.
func (c *Connections) Cut(n int) *Connections {
	n = min(n, len(c.entries))
	piece := &Connections{conn: c.conn, entries: c.entries[:n:n]}
	c.entries = c.entries[n:]
	return piece
}

// All returns an iterator over the connections in c.
func (c *Connections) All() iter.Seq[Connection] {
	return func(yield func(Connection) bool) {
		for _, e := range c.entries {
			if !yield(e.Connection) {
				return
			}
		}
	}
}

// Delete deletes in the kernel the connections in c that still exist, and returns their number. It
// sends many deletions at once.
func (c *Connections) Delete() (int, error) {
	var m nfnl.Messages
	for _, e := range c.entries {
		family := byte(unix.AF_INET)
		if e.Client.Is6() {
			family = unix.AF_INET6
		}
		m.Begin(ctDelete, 0, family)
		m.Encoded(e.identity)
	}
	gone, err := c.conn.Send(&m, unix.ENOENT)
	if err != nil {
		return 0, fmt.Errorf("delete tracked connections: %w", err)
	}
	return m.Len() - gone, nil
}

// readEntry parses a connection. ok is false if match returns false or the attributes are
// incomplete. The identity always has a tuple, because the kernel deletes all connections if a
// message has none.
func readEntry(attributes []byte, match func(Connection) bool) (e entry, ok bool) {
	var tuple, reply, id, zone, info []byte
	for kind, data := range nfnl.Attributes(attributes) {
		switch kind {
		case ctOriginal:
			tuple = data
		case ctReply:
			reply = data
		case ctProto:
			info = data
		case ctID:
			id = data
		case ctZone:
			zone = data
		}
	}
	client, ok := sourceOf(tuple)
	server, ok2 := sourceOf(reply)
	number := nfnl.Find(nfnl.Find(reply, tupleProto), protoNumber)
	if !ok || !ok2 || len(number) != 1 {
		return e, false
	}
	e.Connection = Connection{Client: client, Server: server, Proto: number[0],
		Port: portOf(reply), ClientPort: portOf(tuple),
		Midstream: isMidstream(nfnl.Find(nfnl.Find(info, protoTCP), tcpFlagsClient))}
	if !match(e.Connection) {
		return e, false
	}

	e.identity = nfnl.AppendAttribute(nil, ctOriginal|unix.NLA_F_NESTED, tuple)
	if id != nil {
		e.identity = nfnl.AppendAttribute(e.identity, ctID, id)
	}
	if zone != nil {
		e.identity = nfnl.AppendAttribute(e.identity, ctZone, zone)
	}
	return e, true
}

// portOf returns the source port in a tuple, or 0 if the tuple has no port.
func portOf(tuple []byte) uint16 {
	port := nfnl.Find(nfnl.Find(tuple, tupleProto), protoPort)
	if len(port) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(port)
}

// Flags of one end of a TCP connection (linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpScales  = 1 // IP_CT_TCP_FLAG_WINDOW_SCALE
	tcpSack    = 2 // IP_CT_TCP_FLAG_SACK_PERM
	tcpLiberal = 8 // IP_CT_TCP_FLAG_BE_LIBERAL
)

// isMidstream reports whether these are the flags that tcp_new
// (net/netfilter/nf_conntrack_proto_tcp.c) sets for a segment that is not a SYN. After a handshake,
// only flow tables set tcpLiberal.
func isMidstream(flags []byte) bool {
	return len(flags) > 0 && flags[0]&(tcpScales|tcpSack|tcpLiberal) == tcpSack|tcpLiberal
}

func sourceOf(tuple []byte) (netip.Addr, bool) {
	for kind, data := range nfnl.Attributes(nfnl.Find(tuple, tupleIP)) {
		if kind == source4 && len(data) == v4 || kind == source6 && len(data) == v6 {
			a, ok := netip.AddrFromSlice(data)
			return a.Unmap(), ok
		}
	}
	return netip.Addr{}, false
}
