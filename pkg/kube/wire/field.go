package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kubeveil/kubeveil/pkg/kube/wire/stream"
)

// ErrMalformed matches every error of this package.
var ErrMalformed = stream.ErrMalformed

// field is one field of a message.
type field struct {
	number   protowire.Number
	wireType protowire.Type
	// value is the value of a varint.
	value uint64
	// data is the content of a string, bytes or a message. It shares the memory of the message.
	data []byte
}

// each calls visit for the fields of a message, in their order. It skips groups, which Kubernetes
// does not use.
func each(message []byte, visit func(f field) error) error {
	for len(message) > 0 {
		// Most tags and lengths have one byte, which protowire reads with calls of functions.
		f, n := field{number: protowire.Number(message[0] >> 3),
			wireType: protowire.Type(message[0] & 7)}, 1
		if message[0] < 1<<3 || message[0] > 0x7f {
			f.number, f.wireType, n = protowire.ConsumeTag(message)
		}
		if n < 0 {
			return fmt.Errorf("%w: a tag: %w", ErrMalformed, protowire.ParseError(n))
		}
		message = message[n:]

		switch f.wireType {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			if len(message) > 0 && message[0] <= 0x7f && len(message) > int(message[0]) {
				n = 1 + int(message[0])
				f.data = message[1:n]
			} else {
				f.data, n = protowire.ConsumeBytes(message)
			}
		default:
			n = protowire.ConsumeFieldValue(f.number, f.wireType, message)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d of wire type %d: %w", ErrMalformed, f.number, f.wireType,
				protowire.ParseError(n))
		}
		message = message[n:]

		if f.wireType == protowire.StartGroupType {
			continue
		}
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// count returns how often a message has a field, up to its first malformed field.
func count(message []byte, number protowire.Number) (n int) {
	_ = each(message, func(f field) error {
		if f.number == number {
			n++
		}
		return nil
	})
	return n
}

// text returns the value of a string.
func (f field) text() (string, error) {
	b, err := f.message()
	return string(b), err
}

// message returns the content of an embedded message or of a string.
func (f field) message() ([]byte, error) {
	if f.wireType != protowire.BytesType {
		return nil, fmt.Errorf("%w: field %d has wire type %d, want %d", ErrMalformed, f.number,
			f.wireType, protowire.BytesType)
	}
	return f.data, nil
}

// integer returns the value of an integer.
func (f field) integer() (int64, error) {
	if f.wireType != protowire.VarintType {
		return 0, fmt.Errorf("%w: field %d has wire type %d, want %d", ErrMalformed, f.number,
			f.wireType, protowire.VarintType)
	}
	return int64(f.value), nil
}

// set stores the value of a string.
func (f field) set(s *string) (err error) {
	*s, err = f.text()
	return err
}

// within calls visit for the fields of an embedded message.
func (f field) within(visit func(f field) error) error {
	b, err := f.message()
	if err != nil {
		return err
	}
	return each(b, visit)
}

// only calls visit for those fields of an embedded message that have a number.
func (f field) only(number protowire.Number, visit func(f field) error) error {
	return f.within(func(f field) error {
		if f.number != number {
			return nil
		}
		return visit(f)
	})
}
