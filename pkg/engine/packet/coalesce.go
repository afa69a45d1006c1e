package packet

import "encoding/binary"

// flows is how many inner flows are open at once; interleaved streams coalesce all the same.
const flows = 16

// maxParts bounds the packets in one superpacket.
const maxParts = 64

// maxHead is the largest header of a packet that is coalesced: IPv6 and TCP with all options.
const maxHead = lenIP6 + 60

// Write writes one packet to a TUN: parts, the first of which begins with a vnet header, one behind
// the other. It reports whether the TUN took it; false for a superpacket makes the Coalescer write
// its packets one by one.
type Write func(parts [][]byte) bool

// Coalescer joins consecutive packets of a flow into superpackets. It is of one thread. Packets
// that were added must stay as they are until Flush.
type Coalescer struct {
	write Write
	open  [flows]flow
	used  int
	// NoTCP and NoUDP switch coalescing of a kind off.
	NoTCP, NoUDP bool
	// Joined counts packets that were appended to another.
	Joined uint64
	single [2][]byte
	header [HeaderSize]byte
}

// key tells inner flows apart.
type key struct {
	src, dst [2]uint64
	ports    uint32
	proto    uint8
	v6       bool
}

// flow is a superpacket that grows.
type flow struct {
	key key
	// parts are the headers, written last, and the payloads; whole are the packets.
	parts   [maxParts + 1][]byte
	whole   [maxParts][]byte
	n       int
	head    [HeaderSize + maxHead]byte
	headLen int
	ip      int // length of the IP header
	size    int // payload of the first packet
	length  int // of the superpacket
	next    uint32
	closed  bool // no packet may follow
}

// NewCoalescer returns a Coalescer that writes with w.
func NewCoalescer(w Write) *Coalescer { return &Coalescer{write: w} }

// Add takes a packet without its padding. It writes it at once, later, or as a part of a
// superpacket.
func (c *Coalescer) Add(p []byte) {
	k, ip, head, ok := classify(p)
	if !ok {
		// A fragment or a packet with options may belong to an open flow of the same addresses;
		// those are rare, so order is kept by closing all.
		c.Flush()
		c.one(p)
		return
	}

	for i := range c.used {
		f := &c.open[i]
		if f.key != k {
			continue
		}
		if !f.closed && f.append(p, ip, head) {
			c.Joined++
			return
		}
		c.flush(f)
		if !c.joinable(k) || !f.begin(k, p, ip, head) {
			c.remove(i)
			c.one(p)
		}
		return
	}

	if !c.joinable(k) {
		c.one(p)
		return
	}

	if c.used == flows {
		c.flush(&c.open[0])
		c.remove(0)
	}

	if c.open[c.used].begin(k, p, ip, head) {
		c.used++
		return
	}

	c.one(p)
}

func (c *Coalescer) joinable(k key) bool {
	return k.proto == protoTCP && !c.NoTCP || k.proto == protoUDP && !c.NoUDP
}

// remove closes slot i and keeps the order of the others, the oldest first.
func (c *Coalescer) remove(i int) {
	c.used--
	if i == c.used {
		return
	}
	// The slices are views; moving a flow moves no packet.
	last := c.open[i]
	copy(c.open[i:c.used], c.open[i+1:c.used+1])
	c.open[c.used] = last
}

// Flush writes all that is open.
func (c *Coalescer) Flush() {
	for i := range c.used {
		c.flush(&c.open[i])
	}
	c.used = 0
}

func (c *Coalescer) one(p []byte) {
	Header{Flags: DataValid}.Write(c.header[:])
	c.single[0], c.single[1] = c.header[:], p
	c.write(c.single[:])
}

func (c *Coalescer) flush(f *flow) {
	if f.n == 1 {
		c.one(f.whole[0])
	} else if !c.write(f.super()) {
		for _, p := range f.whole[:f.n] {
			c.one(p)
		}
	}
	f.n = 0
}

// classify returns the flow of a packet that may be coalesced, and the lengths of its IP header and
// of all headers. Fragments, options and extension headers, and odd lengths are not coalesced.
func classify(p []byte) (k key, ip, head int, ok bool) {
	be := binary.BigEndian
	if p[0]>>4 == 4 {
		if len(p) < minIP4+lenUDP || p[0] != 0x45 || be.Uint16(p[6:])&0x3fff != 0 ||
			int(be.Uint16(p[2:])) != len(p) {
			return k, 0, 0, false
		}
		ip = minIP4
		k.proto = p[9]
		k.src[0], k.dst[0] = uint64(be.Uint32(p[12:])), uint64(be.Uint32(p[16:]))
	} else {
		if len(p) < lenIP6+lenUDP || int(be.Uint16(p[4:]))+lenIP6 != len(p) {
			return k, 0, 0, false
		}
		ip, k.v6 = lenIP6, true
		k.proto = p[6]
		k.src = [2]uint64{be.Uint64(p[8:]), be.Uint64(p[16:])}
		k.dst = [2]uint64{be.Uint64(p[24:]), be.Uint64(p[32:])}
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

// begin opens a flow with its first packet, and reports whether others may follow it.
func (f *flow) begin(k key, p []byte, ip, head int) bool {
	size := len(p) - head
	if size < minSegmentSize {
		return false
	}
	if k.proto == protoTCP {
		flags := p[ip+tcpFlagsAt]
		if flags&^flagPSH != flagACK {
			return false
		}
		f.closed = flags&flagPSH != 0
		f.next = binary.BigEndian.Uint32(p[ip+4:]) + uint32(size)
	} else {
		// Without a checksum, the superpacket's would be one that the sender did not want.
		if p[ip+udpChecksumAt] == 0 && p[ip+udpChecksumAt+1] == 0 {
			return false
		}
		f.closed = false
	}
	f.key, f.ip, f.headLen, f.size, f.length = k, ip, head, size, len(p)
	f.whole[0], f.parts[1] = p, p[head:]
	f.n = 1
	copy(f.head[HeaderSize:], p[:head])
	return true
}

// append adds a packet of the same flow if the kernel, splitting the superpacket, would make the
// same packet of it.
func (f *flow) append(p []byte, ip, head int) bool {
	size := len(p) - head
	if size == 0 || size > f.size || head != f.headLen || f.n == maxParts ||
		f.length+size > maxPacket {
		return false
	}

	h := f.head[HeaderSize:]
	if f.key.v6 {
		// Version, traffic class and flow label; hop limit.
		if [4]byte(h[:4]) != [4]byte(p[:4]) || h[7] != p[7] {
			return false
		}
	} else if h[1] != p[1] || h[6] != p[6] || h[8] != p[8] {
		// TOS, DF, TTL. The kernel counts IDs up; they have a meaning without DF only.
		return false
	} else if h[6]&0x40 == 0 && binary.BigEndian.Uint16(p[4:]) != binary.BigEndian.Uint16(h[4:])+
		uint16(f.n) {
		return false
	}

	if f.key.proto == protoTCP {
		if !f.appendTCP(h[ip:head], p[ip:head], size) {
			return false
		}
	} else if p[ip+udpChecksumAt] == 0 && p[ip+udpChecksumAt+1] == 0 {
		return false
	}

	f.whole[f.n], f.parts[f.n+1] = p, p[head:]
	f.n++
	f.length += size
	if size < f.size {
		f.closed = true
	}

	return true
}

func (f *flow) appendTCP(h, t []byte, size int) bool {
	flags := t[tcpFlagsAt]
	if flags&^flagPSH != flagACK || binary.BigEndian.Uint32(t[4:]) != f.next {
		return false
	}
	// Acknowledgement; window; options, time stamps included.
	if [4]byte(h[8:12]) != [4]byte(t[8:12]) || [2]byte(h[14:16]) != [2]byte(t[14:16]) ||
		string(h[20:]) != string(t[20:]) {
		return false
	}
	f.next += uint32(size)
	if flags&flagPSH != 0 {
		h[tcpFlagsAt] |= flagPSH
		f.closed = true
	}
	return true
}

// super completes the headers and returns the parts of the superpacket.
func (f *flow) super() [][]byte {
	be := binary.BigEndian
	h := f.head[HeaderSize : HeaderSize+f.headLen]
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
	} else {
		be.PutUint16(h[f.ip+udpLengthAt:], uint16(f.length-f.ip))
	}

	// The sum of the pseudo-header, not complemented, is what the kernel adds the rest to.
	be.PutUint16(h[f.ip+int(vnet.ChecksumAt):],
		fold(pseudo(h, f.key.v6, f.key.proto, f.length-f.ip)))
	vnet.Write(f.head[:])
	f.parts[0] = f.head[:HeaderSize+f.headLen]
	return f.parts[:f.n+1]
}
