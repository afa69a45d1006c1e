package pathmtu

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// A message is
//
//	0  "kvp1"
//	4  kind: 1 probe, 2 answer
//	5  three zero bytes
//	8  nonce, 8 bytes
//	16 size of the inner packet of the probe, 2 bytes, big endian
//	18 six zero bytes
//	24 zeros up to the size (probe only)
const messageLen = 24

const magic = "kvp1"

const (
	kindProbe  = 1
	kindAnswer = 2
)

// message is the content of a datagram.
type message struct {
	kind  byte
	nonce uint64
	size  int
}

// errMessage is the error of parse for every payload that is not a valid message.
var errMessage = errors.New("not a path mtu message")

// parse reads the payload of a datagram.
func parse(b []byte) (message, error) {
	if len(b) < messageLen || string(b[:4]) != magic {
		return message{}, errMessage
	}
	m := message{kind: b[4], nonce: binary.BigEndian.Uint64(b[8:]),
		size: int(binary.BigEndian.Uint16(b[16:]))}
	if m.kind != kindProbe && m.kind != kindAnswer || m.kind == kindAnswer && len(b) != messageLen {
		return message{}, errMessage
	}
	return m, nil
}

// put returns a payload of n bytes that begins with m. n must be at least messageLen.
func (m message) put(n int) []byte {
	b := make([]byte, n)
	copy(b, magic)
	b[4] = m.kind
	binary.BigEndian.PutUint64(b[8:], m.nonce)
	binary.BigEndian.PutUint16(b[16:], uint16(m.size))
	return b
}

// headers is the length of the IP and UDP headers of a datagram to addr.
func headers(addr netip.Addr) int {
	if addr.Is4() {
		return 20 + 8
	}
	return 40 + 8
}
