package wire

import (
	"errors"
	"fmt"
)

// ErrMalformed matches every error of this package.
var ErrMalformed = errors.New("malformed protobuf")

// Wire types of https://protobuf.dev/programming-guides/encoding/.
const (
	typeVarint     = 0
	typeFixed64    = 1
	typeBytes      = 2
	typeStartGroup = 3
	typeEndGroup   = 4
	typeFixed32    = 5
)

// field is one field of a message.
type field struct {
	number   int32
	wireType byte
	// value is that of a varint.
	value uint64
	// data is that of a string, bytes or a message; it is part of the message.
	data []byte
}

// each calls visit for the fields of a message, in their order. Groups, which
// Kubernetes does not use, are skipped whole.
func each(message []byte, visit func(f field) error) error {
	for len(message) > 0 {
		f, rest, err := next(message)
		if err != nil {
			return err
		}
		message = rest
		if f.wireType == typeStartGroup {
			continue
		}
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// next reads one field and returns what follows it.
func next(b []byte) (f field, rest []byte, err error) {
	tag, b, err := varint(b)
	if err != nil {
		return f, nil, err
	}

	f.number, f.wireType = int32(tag>>3), byte(tag&7)
	if f.number <= 0 {
		return f, nil, fmt.Errorf("%w: field number %d", ErrMalformed, f.number)
	}

	switch f.wireType {
	case typeVarint:
		f.value, b, err = varint(b)
	case typeFixed64:
		_, b, err = cut(b, 8)
	case typeFixed32:
		_, b, err = cut(b, 4)
	case typeBytes:
		var size uint64
		if size, b, err = varint(b); err == nil {
			f.data, b, err = cut(b, size)
		}
	case typeStartGroup:
		b, err = skipGroup(b)
	default:
		err = fmt.Errorf("%w: field %d has wire type %d", ErrMalformed, f.number, f.wireType)
	}

	return f, b, err
}

// skipGroup returns what follows the end of the group that has begun. It does not
// call itself, so that nested groups cost no stack.
func skipGroup(b []byte) ([]byte, error) {
	for depth := 1; depth > 0; {
		tag, rest, err := varint(b)
		if err != nil {
			return nil, err
		}
		switch tag & 7 {
		case typeStartGroup:
			depth++
			b = rest
		case typeEndGroup:
			depth--
			b = rest
		default:
			if _, b, err = next(b); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

// varint reads a number of up to 64 bits; higher bits are lost, as in the decoder
// of k8s.io/api.
func varint(b []byte) (v uint64, rest []byte, err error) {
	for i, c := range b {
		if i == 10 {
			break
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, b[i+1:], nil
		}
	}
	return 0, nil, fmt.Errorf("%w: a number has no end", ErrMalformed)
}

// cut takes size bytes from the front of b.
func cut(b []byte, size uint64) (front, rest []byte, err error) {
	if size > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%w: a field of %d bytes where %d are left", ErrMalformed, size,
			len(b))
	}
	return b[:size:size], b[size:], nil
}

// text returns the value of a string.
func (f field) text() (string, error) {
	b, err := f.message()
	return string(b), err
}

// message returns the content of an embedded message or of a string.
func (f field) message() ([]byte, error) {
	if f.wireType != typeBytes {
		return nil, fmt.Errorf("%w: field %d has wire type %d, want %d", ErrMalformed, f.number,
			f.wireType, typeBytes)
	}
	return f.data, nil
}

// integer returns the value of an integer.
func (f field) integer() (int64, error) {
	if f.wireType != typeVarint {
		return 0, fmt.Errorf("%w: field %d has wire type %d, want %d", ErrMalformed, f.number,
			f.wireType, typeVarint)
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
