package nl

import (
	"encoding/binary"
	"net/netip"

	"github.com/kubeveil/kubeveil/internal/nfnl"
)

// Tracked is a tracked connection with both sides of its NAT.
type Tracked struct {
	Connection
	// Original is the destination of the client's packets. It differs from Server and Port behind
	// destination NAT.
	Original netip.AddrPort
	// Source is the address that the server sees. It differs from Client behind source NAT.
	Source netip.Addr
	// Replied reports whether a packet of the server was seen.
	Replied bool
}

const seenReply = 2 // IPS_SEEN_REPLY

// EachTracked calls each with every tracked connection in the network namespace of c, as the kernel
// returns it: none is kept. begin is called first, and again if the kernel starts over. After an
// error c may hold answers: close it.
func EachTracked(c *nfnl.Conn, begin func(), each func(Tracked)) error {
	return dumpConnections(c, begin, func(attributes []byte) error {
		if t, ok := readTracked(attributes); ok {
			each(t)
		}
		return nil
	})
}

// readTracked reads a connection. ok is false if it has no addresses.
func readTracked(attributes []byte) (t Tracked, ok bool) {
	var tuple, reply []byte
	for kind, data := range nfnl.Attributes(attributes) {
		switch kind {
		case ctOriginal:
			tuple = data
		case ctReply:
			reply = data
		case ctStatus:
			t.Replied = len(data) == 4 && binary.BigEndian.Uint32(data)&seenReply != 0
		}
	}

	client, original, okClient := endsOf(tuple)
	server, source, okServer := endsOf(reply)
	proto := nfnl.Find(tuple, tupleProto)
	number := nfnl.Find(proto, protoNumber)
	if !okClient || !okServer || len(number) != 1 {
		return t, false
	}
	t.Connection = Connection{Client: client, Server: server, Proto: number[0],
		Port: portOf(reply), ClientPort: portOf(tuple)}
	originalPort := uint16(0)
	if to := nfnl.Find(proto, protoPortTo); len(to) == 2 {
		originalPort = binary.BigEndian.Uint16(to)
	}
	t.Original, t.Source = netip.AddrPortFrom(original, originalPort), source
	return t, true
}

// endsOf returns the source and the destination of a tuple.
func endsOf(tuple []byte) (from, to netip.Addr, ok bool) {
	for kind, data := range nfnl.Attributes(nfnl.Find(tuple, tupleIP)) {
		if len(data) != v4 && len(data) != v6 {
			continue
		}
		a, _ := netip.AddrFromSlice(data)
		switch kind {
		case source4, source6:
			from = a.Unmap()
		case source4 + 1, source6 + 1:
			to = a.Unmap()
		}
	}
	return from, to, from.IsValid() && to.IsValid()
}
