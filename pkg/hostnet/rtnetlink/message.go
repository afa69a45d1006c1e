package rtnetlink

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Messages iterates over the messages of a datagram: the type and body of each. A malformed message
// is yielded with type 0, and ends the iteration.
func Messages(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				yield(0, nil)
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]) {
				return
			}
			b = b[min(len(b), Align(size)):]
		}
	}
}

// Align returns n rounded up to the alignment of messages and attributes.
func Align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// attributeType is NLA_TYPE_MASK (include/uapi/linux/netlink.h).
const attributeType = 1<<14 - 1

// Attributes iterates over the attributes of a message or of a nested attribute: the type, without
// flags, and value of each. It ends at the first malformed attribute.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) & attributeType
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(len(b), Align(size)):]
		}
	}
}

// Attribute returns the value of the first attribute of a kind, or nil if there is none.
func Attribute(b []byte, kind uint16) []byte {
	for k, v := range Attributes(b) {
		if k == kind {
			return v
		}
	}
	return nil
}

// Number returns the first four bytes of b as a number in the host's byte order, or 0 if b is
// shorter.
func Number(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b))
}

// Text returns b up to its first zero byte.
func Text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
