package packet

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

const (
	// maxPackets bounds the packets of a batch, and so its flows. It is what one receive returns:
	// eight messages of 64 datagrams. A further packet flushes the batch first.
	maxPackets = 512
	// slots is the size of the table of flows. It is a power of two, and at most half full.
	slots = 2 * maxPackets
)

// maxParts bounds the packets in one superpacket.
const maxParts = 64

// maxHead is the largest header of a packet that is coalesced: IPv6 and TCP with all options.
const maxHead = lenIP6 + 60

// Write writes one packet or superpacket to a TUN. parts are its consecutive pieces, the first of
// which begins with a vnet header. flow is a number that is equal for all packets of a flow, on
// every Coalescer. Write reports whether the TUN accepted the packet. If it returns false for a
// superpacket, the Coalescer writes the packets of it one by one.
type Write func(flow uint32, parts [][]byte) bool

// Coalescer joins consecutive packets of a flow into superpackets. It is for one thread. The caller
// must not change added packets until Flush.
//
// Packets of different flows may alternate: each flow has its own superpacket. Flows are found in a
// hash table with open addressing. Its hash is seeded, so that no peer can choose flows that
// collide.
type Coalescer struct {
	write Write
	// NoTCP and NoUDP switch off the coalescing of a protocol.
	NoTCP, NoUDP bool

	packets [maxPackets]link
	added   int // of packets
	flows   [maxPackets]flow
	used    int // of flows
	table   [slots]slot
	batch   uint32 // number of the batch; slots of other batches are free
	seed    [4]uint64

	head   [HeaderSize + maxHead]byte // headers of the packet that is written
	parts  [maxParts + 1][]byte
	single [2][]byte
}

// link is a packet of a flow. next is the index in Coalescer.packets of the next packet of the
// flow.
type link struct {
	p    []byte
	next int
}

// slot is an entry of the table: the index of a flow in Coalescer.flows, valid for one batch.
type slot struct {
	batch uint32
	flow  int32
}

// key identifies an inner flow.
type key struct {
	src, dst [2]uint64
	ports    uint32
	proto    uint8
	v6       bool
}

// flow holds the superpacket of a flow that is being gathered. n is the number of its packets; 0
// means that it was written, and that a new superpacket may begin.
type flow struct {
	key         key
	first, last int // indices in Coalescer.packets
	n           int
	headLen     int
	ip          int    // length of the IP header
	size        int    // payload of the first packet, bytes
	length      int    // length of the superpacket, bytes
	next        uint32 // next TCP sequence number
	push        bool   // a packet has PSH
	closed      bool   // no packet may follow
}

// NewCoalescer returns a Coalescer that writes with w.
func NewCoalescer(w Write) *Coalescer {
	c := &Coalescer{write: w, batch: 1}
	for i := range c.seed {
		c.seed[i] = rand.Uint64()
	}
	return c
}

// Add adds a packet without its padding. The packet is written now or until Flush, by itself or in
// a superpacket.
func (c *Coalescer) Add(p []byte) {
	k, ip, head, ok := classify(p)
	if !ok {
		// The packet may belong to any flow between its addresses, so write these flows first to
		// keep the order.
		c.flushBetween(&k)
		c.one(&k, p)
		return
	}
	if c.added == maxPackets {
		c.Flush()
	}

	at := c.find(&k)
	if s := &c.table[at]; s.batch == c.batch {
		f := &c.flows[s.flow]
		if f.n > 0 {
			if c.append(f, p, ip, head) {
				return
			}
			c.flush(f)
		}
		if !c.joinable(&k) || !c.begin(f, p, ip, head) {
			c.one(&k, p)
		}
		return
	}

	f := &c.flows[c.used]
	f.key = k
	if !c.joinable(&k) || !c.begin(f, p, ip, head) {
		c.one(&k, p)
		return
	}
	c.table[at] = slot{c.batch, int32(c.used)}
	c.used++
}

// find returns the index of a flow's slot, or of a free slot if the batch does not have the flow.
func (c *Coalescer) find(k *key) int {
	at := int(c.hash(k) % slots)
	for c.table[at].batch == c.batch && c.flows[c.table[at].flow].key != *k {
		at = (at + 1) % slots
	}
	return at
}

// hash mixes the key's words with the seed by folded multiplication, as wyhash does.
func (c *Coalescer) hash(k *key) uint64 {
	mix := func(a, b uint64) uint64 {
		high, low := bits.Mul64(a, b)
		return high ^ low
	}
	h := mix(k.src[0]^c.seed[0], k.dst[0]^c.seed[1])
	if k.v6 {
		h ^= mix(k.src[1]^c.seed[1], k.dst[1]^c.seed[2])
	}
	return mix(h^c.seed[2], uint64(k.ports)<<8^uint64(k.proto)^c.seed[3])
}

func (c *Coalescer) joinable(k *key) bool {
	return k.proto == protoTCP && !c.NoTCP || k.proto == protoUDP && !c.NoUDP
}

// Flush writes all gathered packets and ends the batch.
func (c *Coalescer) Flush() {
	for i := range c.flows[:c.used] {
		c.flush(&c.flows[i])
	}
	for i := range c.packets[:c.added] {
		c.packets[i].p = nil
	}
	c.used, c.added = 0, 0
	if c.batch++; c.batch == 0 {
		clear(c.table[:])
		c.batch = 1
	}
}

// flushBetween writes the gathered packets of all flows with the addresses of k.
func (c *Coalescer) flushBetween(k *key) {
	for i := range c.flows[:c.used] {
		f := &c.flows[i]
		if f.key.v6 == k.v6 && f.key.src == k.src && f.key.dst == k.dst {
			c.flush(f)
		}
	}
}

// number returns the flow number for Write, a hash of addresses and ports. All packets without
// ports between two addresses have the same number.
func (k *key) number() uint32 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	h := (k.src[0]^k.src[1])*odd + k.dst[0] ^ k.dst[1]
	return uint32((h*odd + uint64(k.ports)) * odd >> 32)
}

// one writes a single packet.
func (c *Coalescer) one(k *key, p []byte) {
	Header{Flags: DataValid}.Write(c.head[:])
	c.single[0], c.single[1] = c.head[:HeaderSize], p
	c.write(k.number(), c.single[:])
}

// flush writes the gathered packets of a flow, if there are any.
func (c *Coalescer) flush(f *flow) {
	if f.n == 1 {
		c.one(&f.key, c.packets[f.first].p)
	} else if f.n > 1 && !c.write(f.key.number(), c.super(f)) {
		for i, at := 0, f.first; i < f.n; i, at = i+1, c.packets[at].next {
			c.one(&f.key, c.packets[at].p)
		}
	}
	f.n = 0
}

// classify returns the flow k of a packet, and the lengths of its IP header and of all headers. ok
// is false if the packet cannot be coalesced: another protocol, a fragment, IP options, extension
// headers or inconsistent lengths. Then k may hold only the addresses.
func classify(p []byte) (k key, ip, head int, ok bool) {
	be := binary.BigEndian
	if p[0]>>4 == 4 {
		ip = minIP4
		k.src[0], k.dst[0] = uint64(be.Uint32(p[12:])), uint64(be.Uint32(p[16:]))
		if len(p) < minIP4+lenUDP || p[0] != 0x45 || be.Uint16(p[6:])&0x3fff != 0 ||
			int(be.Uint16(p[2:])) != len(p) {
			return k, 0, 0, false
		}
		k.proto = p[9]
	} else {
		ip, k.v6 = lenIP6, true
		k.src = [2]uint64{be.Uint64(p[8:]), be.Uint64(p[16:])}
		k.dst = [2]uint64{be.Uint64(p[24:]), be.Uint64(p[32:])}
		if len(p) < lenIP6+lenUDP || int(be.Uint16(p[4:]))+lenIP6 != len(p) {
			return k, 0, 0, false
		}
		k.proto = p[6]
	}

	switch k.proto {
	case protoTCP:
		if len(p) < ip+minTCP {
			return k, 0, 0, false
		}
		n := int(p[ip+12]>>4) * 4
		if n < minTCP || ip+n > len(p) {
			return k, 0, 0, false
		}
		head = ip + n
	case protoUDP:
		if int(be.Uint16(p[ip+udpLengthAt:])) != len(p)-ip {
			return k, 0, 0, false
		}
		head = ip + lenUDP
	default:
		return k, 0, 0, false
	}

	k.ports = be.Uint32(p[ip:])
	return k, ip, head, true
}

// begin starts the superpacket of a flow with its first packet. It returns false, and does not take
// the packet, if no other packet can be joined to it.
func (c *Coalescer) begin(f *flow, p []byte, ip, head int) bool {
	size := len(p) - head
	if size < minSegmentSize {
		return false
	}

	f.closed, f.push = false, false
	if f.key.proto == protoTCP {
		flags := p[ip+tcpFlagsAt]
		if flags&^flagPSH != flagACK {
			return false
		}
		f.push = flags&flagPSH != 0
		f.closed = f.push
		f.next = binary.BigEndian.Uint32(p[ip+4:]) + uint32(size)
	} else if p[ip+udpChecksumAt] == 0 && p[ip+udpChecksumAt+1] == 0 {
		// The sender requested no checksum, but packets of a superpacket get one.
		return false
	}

	f.ip, f.headLen, f.size, f.length, f.n = ip, head, size, len(p), 1
	f.first, f.last = c.added, c.added
	c.packets[c.added].p = p
	c.added++
	return true
}

// append adds a packet to the superpacket of its flow, and reports whether it did. It adds a packet
// only if the kernel would restore exactly this packet when it splits the superpacket.
func (c *Coalescer) append(f *flow, p []byte, ip, head int) bool {
	size := len(p) - head
	if f.closed || size == 0 || size > f.size || head != f.headLen || f.n == maxParts ||
		f.length+size > maxPacket || !f.sameIP(c.packets[f.first].p, p) {
		return false
	}

	if f.key.proto == protoTCP {
		if !f.appendTCP(c.packets[f.first].p[ip:head], p[ip:head], size) {
			return false
		}
	} else if p[ip+udpChecksumAt] == 0 && p[ip+udpChecksumAt+1] == 0 {
		return false
	}

	c.packets[c.added].p = p
	c.packets[f.last].next = c.added
	f.last = c.added
	c.added++
	f.n++
	f.length += size
	if size < f.size {
		f.closed = true
	}

	return true
}

// sameIP reports whether the IP header of the next packet p can follow the header h of the first
// packet.
func (f *flow) sameIP(h, p []byte) bool {
	if f.key.v6 {
		// Version, traffic class and flow label; hop limit.
		return [4]byte(h[:4]) == [4]byte(p[:4]) && h[7] == p[7]
	}
	// TOS, flags, TTL. IDs matter only without DF. They must then count up, as the kernel sets
	// them.
	return h[1] == p[1] && h[6] == p[6] && h[8] == p[8] && (h[6]&0x40 != 0 ||
		binary.BigEndian.Uint16(p[4:]) == binary.BigEndian.Uint16(h[4:])+uint16(f.n))
}

// appendTCP reports whether a packet with the TCP header t can follow the first packet, which has
// the header h. If so, it updates the flow. The headers must be equal except for the sequence
// number, PSH and the checksum. Byte 12 holds the AE bit of AccECN (RFC 9768).
func (f *flow) appendTCP(h, t []byte, size int) bool {
	flags := t[tcpFlagsAt]
	if flags&^flagPSH != flagACK || binary.BigEndian.Uint32(t[4:]) != f.next ||
		[5]byte(h[8:13]) != [5]byte(t[8:13]) || [2]byte(h[14:16]) != [2]byte(t[14:16]) ||
		string(h[18:]) != string(t[18:]) {
		return false
	}
	f.next += uint32(size)
	if flags&flagPSH != 0 {
		f.push, f.closed = true, true
	}
	return true
}

// super returns the parts of the superpacket of a flow: its headers and the payload of each packet.
func (c *Coalescer) super(f *flow) [][]byte {
	be := binary.BigEndian
	h := c.head[HeaderSize : HeaderSize+f.headLen]
	copy(h, c.packets[f.first].p)
	vnet := Header{Flags: NeedsChecksum, GSO: GSOUDP, HeaderLen: uint16(f.headLen),
		SegmentSize:   uint16(f.size),
		ChecksumStart: uint16(f.ip), ChecksumAt: udpChecksumAt}
	if f.key.v6 {
		be.PutUint16(h[4:], uint16(f.length-lenIP6))
	} else {
		be.PutUint16(h[2:], uint16(f.length))
		h[10], h[11] = 0, 0
		be.PutUint16(h[10:], ^fold(sum(h[:f.ip], 0)))
	}

	if f.key.proto == protoTCP {
		vnet.GSO, vnet.ChecksumAt = GSOTCP4, tcpChecksumAt
		if f.key.v6 {
			vnet.GSO = GSOTCP6
		}
		if f.push {
			h[f.ip+tcpFlagsAt] |= flagPSH
		}
	} else {
		be.PutUint16(h[f.ip+udpLengthAt:], uint16(f.length-f.ip))
	}

	// The kernel completes the checksum, so the field holds the sum of the pseudo-header, not
	// complemented.
	be.PutUint16(h[f.ip+int(vnet.ChecksumAt):],
		fold(pseudo(h, f.key.v6, f.key.proto, f.length-f.ip)))
	vnet.Write(c.head[:])

	c.parts[0] = c.head[:HeaderSize+f.headLen]
	for i, at := 1, f.first; i <= f.n; i, at = i+1, c.packets[at].next {
		c.parts[i] = c.packets[at].p[f.headLen:]
	}
	return c.parts[:f.n+1]
}
