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

// Messages are netlink messages in a row. The zero value is ready. Each message begins with Begin
// and goes on with its attributes.
type Messages struct {
	b []byte
	// last is the offset of the last message; count is the number of messages.
	last, count int
}

// Len returns the number of messages.
func (m *Messages) Len() int { return m.count }

// Size returns their size in bytes.
func (m *Messages) Size() int { return len(m.b) }

// Reset removes all messages and keeps the memory.
func (m *Messages) Reset() { *m = Messages{b: m.b[:0]} }

// Begin begins a message. Its kind is subsystem<<8 | type. NLM_F_REQUEST is added to flags.
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

// String adds an attribute that ends with a zero byte.
func (m *Messages) String(attribute uint16, s string) {
	end := m.Nest(attribute)
	m.b = append(append(m.b, s...), 0)
	end()
}

// Uint32 adds an attribute in network byte order.
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

// Nest begins an attribute that ends with the call of end. The attributes between are inside.
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

// number numbers the messages from first on.
func (m *Messages) number(first uint32) {
	for at := 0; at < len(m.b); first++ {
		binary.NativeEndian.PutUint32(m.b[at+8:], first)
		at += int(binary.NativeEndian.Uint32(m.b[at:]))
	}
}

// AppendAttribute appends an attribute with its padding. Add NLA_F_NESTED to the number of one that
// holds others.
func AppendAttribute(b []byte, attribute uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeSize+len(data)))
	b = binary.NativeEndian.AppendUint16(b, attribute)
	return pad(append(b, data...))
}

// pad aligns the end of the appended bytes. All bytes before them are aligned.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Attributes returns the attributes in b, without flags in their numbers. It ends at the first
// bytes that are not an attribute.
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

// Find returns the data of the first attribute of a number, or nil if there is none.
func Find(b []byte, attribute uint16) []byte {
	for kind, data := range Attributes(b) {
		if kind == attribute {
			return data
		}
	}
	return nil
}

// Text returns a string attribute without the zero byte at its end.
func Text(data []byte) string {
	if n := len(data); n > 0 && data[n-1] == 0 {
		data = data[:n-1]
	}
	return string(data)
}
