package wire

import (
	"bufio"
	"fmt"
	"math"

	"github.com/kubeveil/kubeveil/pkg/kube/wire/stream"
)

// Bounds of one message in a stream, in bytes. An API server accepts requests of up to 3 MiB.
const maxItem, maxMeta = 16 << 20, 64 << 10

// magic are the first bytes of an object in protobuf. The envelope follows, a
// k8s.io.apimachinery.pkg.runtime.Unknown.
var magic = []byte("k8s\x00")

// IsProtobuf reports whether r begins with an object in protobuf.
func IsProtobuf(r *bufio.Reader) bool {
	b, err := r.Peek(len(magic))
	return err == nil && string(b) == string(magic)
}

// ReadList reads a list of any kind with its envelope. It calls visit with each item, which has no
// envelope. It holds one item at a time, and the item is valid until visit returns. It stops at an
// error of visit or of r, and returns it.
func ReadList(r *bufio.Reader, visit func(item []byte) error) (list ListMeta, err error) {
	if _, err := r.Discard(len(magic)); err != nil {
		return list, err
	}

	var item []byte
	content := false
	err = stream.Each(r, math.MaxInt64, func(number, size int64) (bool, error) {
		if number != 2 {
			return false, nil
		}
		content = true
		return true, stream.Each(r, size, func(number, size int64) (read bool, err error) {
			switch number {
			case 1:
				if item, err = stream.ReadInto(r, item, size, maxMeta); err == nil {
					err = each(item, list.field)
				}
			case 2:
				if item, err = stream.ReadInto(r, item, size, maxItem); err == nil {
					err = visit(item)
				}
			default:
				return false, nil
			}
			return true, err
		})
	})
	if err == nil && !content {
		err = fmt.Errorf("%w: an envelope without content", ErrMalformed)
	}
	return list, err
}
