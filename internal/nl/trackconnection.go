package nl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
)

// Opened is a TCP connection or, with UDP, a flow of datagrams that Client opened, without NAT.
type Opened struct {
	Client, Server netip.AddrPort
	UDP            bool
}

// trackedFor and datagramsFor are the timeouts in seconds of TCP connections and flows of UDP that
// TrackOpened added, until their first packet. After that packet, the kernel's timeout applies. An
// idle connection with keepalive sends a packet within two hours (tcp_keepalive_time).
const trackedFor, datagramsFor = 7500, 180

// TrackOpened adds established TCP connections and flows of UDP to conntrack, in the network
// namespace of c. It replaces an existing entry for the same two ends, which may have the wrong end
// as the client. After an error, the caller must close c, which may hold answers that were not
// read.
func TrackOpened(c *nfnl.Conn, connections []Opened) error {
	var old, added nfnl.Messages
	for _, o := range connections {
		family := byte(unix.AF_INET)
		if o.Client.Addr().Is6() {
			family = unix.AF_INET6
		}
		tuple := appendTuple(nil, o.Client, o.Server, o.UDP)
		reply := appendTuple(nil, o.Server, o.Client, o.UDP)

		old.Begin(ctDelete, 0, family)
		old.Bytes(ctOriginal|unix.NLA_F_NESTED, tuple)

		added.Begin(ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, family)
		added.Bytes(ctOriginal|unix.NLA_F_NESTED, tuple)
		added.Bytes(ctReply|unix.NLA_F_NESTED, reply)
		added.Uint32(ctStatus, statusKnown)
		if o.UDP {
			added.Uint32(ctTimeout, datagramsFor)
			continue
		}
		added.Uint32(ctTimeout, trackedFor)
		state := nfnl.AppendAttribute(nil, tcpState, []byte{tcpEstablished})
		added.Bytes(ctProto|unix.NLA_F_NESTED,
			nfnl.AppendAttribute(nil, protoTCP|unix.NLA_F_NESTED, state))
	}

	_, err := c.Send(&old, unix.ENOENT)
	if err == nil {
		_, err = c.Send(&added, unix.EEXIST)
	}
	if err != nil {
		return fmt.Errorf("add tracked connections: %w", err)
	}
	return nil
}

// Values of linux/netfilter/nf_conntrack_common.h and nf_conntrack_tcp.h, and a message of
// nfnetlink_conntrack.h.
const (
	// statusKnown is IPS_SEEN_REPLY, IPS_ASSURED and IPS_CONFIRMED. The kernel refuses a status
	// without IPS_CONFIRMED.
	statusKnown    = 2 | 4 | 8
	tcpEstablished = 3 // TCP_CONNTRACK_ESTABLISHED

	ctNew = 1 << 8 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW
)

// appendTuple appends the content of the tuple of a TCP connection, or of a flow of UDP.
func appendTuple(b []byte, from, to netip.AddrPort, udp bool) []byte {
	number := byte(unix.IPPROTO_TCP)
	if udp {
		number = unix.IPPROTO_UDP
	}
	kind := uint16(source4)
	if from.Addr().Is6() {
		kind = source6
	}
	ip := nfnl.AppendAttribute(nil, kind, from.Addr().AsSlice())
	ip = nfnl.AppendAttribute(ip, kind+1, to.Addr().AsSlice())
	b = nfnl.AppendAttribute(b, tupleIP|unix.NLA_F_NESTED, ip)

	proto := nfnl.AppendAttribute(nil, protoNumber, []byte{number})
	proto = nfnl.AppendAttribute(proto, protoPort,
		binary.BigEndian.AppendUint16(nil, from.Port()))
	proto = nfnl.AppendAttribute(proto, protoPortTo,
		binary.BigEndian.AppendUint16(nil, to.Port()))
	return nfnl.AppendAttribute(b, tupleProto|unix.NLA_F_NESTED, proto)
}
