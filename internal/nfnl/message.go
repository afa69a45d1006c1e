package nfnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Sizes of struct nlmsghdr with struct nfgenmsg behind it, and of struct nlattr.
const (
	headerSize    = unix.SizeofNlMsghdr + genericSize
	genericSize   = 4
	attributeSize = unix.SizeofNlAttr
)

// Messages is a buffer of netlink messages. The zero value is empty and ready. Begin begins a
// message, and the other methods append attributes to it.
type Messages struct {
	b []byte
	// last is the offset of the last message; count is the number of messages.
	last, count int
}

// Len returns the number of messages.
func (m *Messages) Len() int { return m.count }

// Size returns the size of all messages in bytes.
func (m *Messages) Size() int { return len(m.b) }

// Reset removes all messages and keeps the memory.
func (m *Messages) Reset() { *m = Messages{b: m.b[:0]} }

// Begin begins a message. kind is subsystem<<8 | type. NLM_F_REQUEST is added to flags.
func (m *Messages) Begin(kind, flags uint16, family byte) { m.begin(kind, flags, family, 0) }

func (m *Messages) begin(kind, flags uint16, family byte, resource uint16) {
	m.last, m.count = len(m.b), m.count+1
	m.b = binary.NativeEndian.AppendUint32(m.b, headerSize)
	m.b = binary.NativeEndian.AppendUint16(m.b, kind)
	m.b = binary.NativeEndian.AppendUint16(m.b, flags|unix.NLM_F_REQUEST)
	m.b = append(m.b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence and port
	m.b = append(m.b, family, unix.NFNETLINK_V0)
	m.b = binary.BigEndian.AppendUint16(m.b, resource)
}

// Bytes adds an attribute.
func (m *Messages) Bytes(attribute uint16, data []byte) {
	m.b = AppendAttribute(m.b, attribute, data)
	m.setSize()
}

// String adds a string attribute, with a zero byte at its end.
func (m *Messages) String(attribute uint16, s string) {
	end := m.Nest(attribute)
	m.b = append(append(m.b, s...), 0)
	end()
}

// Uint32 adds a number attribute in network byte order.
func (m *Messages) Uint32(attribute uint16, n uint32) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	m.Bytes(attribute, b[:])
}

// Encoded adds attributes that AppendAttribute made.
func (m *Messages) Encoded(attributes []byte) {
	m.b = append(m.b, attributes...)
	m.setSize()
}

// Nest begins a nested attribute. Attributes that are added before the call of end are inside it.
func (m *Messages) Nest(attribute uint16) (end func()) {
	at := len(m.b)
	m.b = append(m.b, 0, 0, 0, 0)
	return func() {
		binary.NativeEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
		binary.NativeEndian.PutUint16(m.b[at+2:], attribute)
		m.b = pad(m.b)
		m.setSize()
	}
}

func (m *Messages) setSize() {
	binary.NativeEndian.PutUint32(m.b[m.last:], uint32(len(m.b)-m.last))
}

// number sets the sequence numbers of the messages to first, first+1, and so on.
func (m *Messages) number(first uint32) {
	for at := 0; at < len(m.b); first++ {
		binary.NativeEndian.PutUint32(m.b[at+8:], first)
		at += int(binary.NativeEndian.Uint32(m.b[at:]))
	}
}

// AppendAttribute appends an attribute with its padding. For a nested attribute, the caller adds
// NLA_F_NESTED to the number.
func AppendAttribute(b []byte, attribute uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeSize+len(data)))
	b = binary.NativeEndian.AppendUint16(b, attribute)
	return pad(append(b, data...))
}

// pad appends zero bytes until the length of b is a multiple of 4.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Attributes returns an iterator over the numbers, without flags, and the data of the attributes in
// b. The iterator ends at the first bytes that are not an attribute.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attributeSize {
			size := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if size < attributeSize || size > len(b) || !yield(kind, b[attributeSize:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// Find returns the data of the first attribute in b with this number, or nil if there is none.
func Find(b []byte, attribute uint16) []byte {
	for kind, data := range Attributes(b) {
		if kind == attribute {
			return data
		}
	}
	return nil
}

// Text returns the data of a string attribute without the zero byte at its end.
func Text(data []byte) string {
	if n := len(data); n > 0 && data[n-1] == 0 {
		data = data[:n-1]
	}
	return string(data)
}
