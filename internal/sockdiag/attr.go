package sockdiag

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const (
	// Values of linux/inet_diag.h and linux/sock_diag.h: the attributes of a request with the
	// descriptor of a map of socket storage.
	reqStorages   = 2 // INET_DIAG_REQ_SK_BPF_STORAGES
	reqStorageMap = 1 // SK_DIAG_BPF_STORAGE_REQ_MAP_FD

	// The attributes of a reply with the values of a socket: a list, its elements, and a value.
	replyStorages = 20 // INET_DIAG_SK_BPF_STORAGES
	replyStorage  = 1  // SK_DIAG_BPF_STORAGE
	replyValue    = 3  // SK_DIAG_BPF_STORAGE_MAP_VALUE

	// attrType masks the type of a netlink attribute, without its flags.
	attrType = 1<<14 - 1
)

// appendAttr appends a netlink attribute to b, whose length is a multiple of four.
func appendAttr(b []byte, kind uint16, payload []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, payload...)
}

// attr returns the payload of the first netlink attribute of a kind in b, or nil.
func attr(b []byte, kind uint16) []byte {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&attrType == kind {
			return b[unix.SizeofNlAttr:size]
		}
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}

// storageOf returns the value of a socket in the map of the request, from the attributes of a
// reply. It returns nil if the socket has none.
func storageOf(attrs []byte) []byte {
	return attr(attr(attr(attrs, replyStorages), replyStorage), replyValue)
}
