package packet

import "encoding/binary"

// HeaderSize is the size of a vnet header without its field num_buffers, bytes.
const HeaderSize = 10

// Flags of Header.Flags (VIRTIO_NET_HDR_F_…).
const (
	NeedsChecksum = 1
	DataValid     = 2
)

// Kinds of superpackets, Header.GSO (VIRTIO_NET_HDR_GSO_…).
const (
	GSONone = 0
	GSOTCP4 = 1
	GSOTCP6 = 4
	GSOUDP  = 5
)

// Header is a vnet header (struct virtio_net_hdr). On the wire, its fields have the machine's byte
// order.
type Header struct {
	Flags, GSO                                        uint8
	HeaderLen, SegmentSize, ChecksumStart, ChecksumAt uint16
}

// ReadHeader reads the first HeaderSize bytes of b.
func ReadHeader(b []byte) Header {
	_ = b[HeaderSize-1]
	n := binary.NativeEndian
	return Header{b[0], b[1], n.Uint16(b[2:]), n.Uint16(b[4:]), n.Uint16(b[6:]), n.Uint16(b[8:])}
}

// Write writes the header into the first HeaderSize bytes of b.
func (h Header) Write(b []byte) {
	_ = b[HeaderSize-1]
	n := binary.NativeEndian
	b[0], b[1] = h.Flags, h.GSO
	n.PutUint16(b[2:], h.HeaderLen)
	n.PutUint16(b[4:], h.SegmentSize)
	n.PutUint16(b[6:], h.ChecksumStart)
	n.PutUint16(b[8:], h.ChecksumAt)
}
